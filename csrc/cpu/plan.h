// Plan: the op calls of one step, recorded while the model's forward runs, and run again in one
// call without Python. Pointers and shapes are bound at recording; what varies between steps is
// read from index arrays whose memory the caller keeps.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace pyvt::cpu {

class Plan {
 public:
  void append(std::function<void()> call) { calls_.push_back(std::move(call)); }

  void run() const {
    for (const std::function<void()>& call : calls_) call();
  }

  size_t size() const { return calls_.size(); }

 private:
  std::vector<std::function<void()>> calls_;
};

// The plan that ops called from this thread are appended to; null when none is recorded.
inline Plan*& recording_plan() {
  static thread_local Plan* plan = nullptr;
  return plan;
}

}  // namespace pyvt::cpu
