// Plan: the op calls of one step, recorded while the model's forward runs, and run again in one
// call without Python. Pointers and shapes are bound at recording; what varies between steps is
// read from index arrays whose memory the caller keeps.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/thread_pool.h"

namespace pyvt::cpu {

class Plan {
 public:
  void append(const char* op, std::function<void()> run) { calls_.push_back({op, std::move(run)}); }

  // In one region.
  void run() const {
    Region region;
    for (const Call& call : calls_) call.run();
  }

  // Runs all calls; returns the nanoseconds of each.
  std::vector<int64_t> timed_run() const {
    using Clock = std::chrono::steady_clock;
    Region region;
    std::vector<int64_t> times;
    Clock::time_point last = Clock::now();
    for (const Call& call : calls_) {
      call.run();
      const Clock::time_point now = Clock::now();
      times.push_back(std::chrono::nanoseconds(now - last).count());
      last = now;
    }
    return times;
  }

  std::vector<const char*> ops() const {
    std::vector<const char*> names;
    for (const Call& call : calls_) names.push_back(call.op);
    return names;
  }

  size_t size() const { return calls_.size(); }

 private:
  struct Call {
    const char* op;
    std::function<void()> run;
  };
  std::vector<Call> calls_;
};

// The plan that ops called from this thread are appended to; null when none is recorded. It owns
// the plan: its maker may drop it before it stops.
inline std::shared_ptr<Plan>& recording_plan() {
  static thread_local std::shared_ptr<Plan> plan;
  return plan;
}

}  // namespace pyvt::cpu
