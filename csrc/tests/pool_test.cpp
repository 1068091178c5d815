// Drives the thread pool the ways that the module does, for the thread sanitizer: regions one after
// the other, from two callers at once, with another number of threads, after a shutdown.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"

namespace {

using pyvt::cpu::parallel_all;
using pyvt::cpu::parallel_for;

constexpr int64_t kItems = 1000;

// Whether every item is written once.
bool covers_each_item() {
  std::vector<int> counts(kItems, 0);
  parallel_for(kItems, 7, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
  });
  for (int count : counts) {
    if (count != 1) return false;
  }
  return true;
}

bool runs_on_each_thread() {
  std::atomic<int> calls{0};
  parallel_all([&](int) { calls.fetch_add(1); });
  return calls.load() == pyvt::cpu::num_threads();
}

}  // namespace

int main() {
  std::atomic<bool> is_right{true};
  const auto drive = [&] {
    for (int i = 0; i < 200; ++i) {
      if (!covers_each_item() || !runs_on_each_thread()) is_right.store(false);
    }
  };
  for (int count : {1, 2, 4}) {
    pyvt::cpu::set_num_threads(count);
    drive();
    std::thread other(drive);
    drive();
    other.join();
    pyvt::cpu::shutdown_threads();
  }
  std::puts(is_right.load() ? "the pool covers every item once"
                            : "the pool lost or repeated items");
  return is_right.load() ? 0 : 1;
}
