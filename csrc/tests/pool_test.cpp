// Drives the thread pool the ways that the module does, for the thread sanitizer: regions one after
// the other, from two callers at once, with another number of threads, after a shutdown, and bodies
// that throw.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
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

// Phases of one region: each reads what the one before wrote.
bool keeps_order_in_a_region() {
  const pyvt::cpu::Region region;
  std::vector<int64_t> values(kItems, 0);
  for (int64_t phase = 0; phase < 10; ++phase) {
    parallel_for(kItems, 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t& value = values[static_cast<size_t>(phase % 2 == 0 ? i : kItems - 1 - i)];
        if (value == phase) ++value;
      }
    });
  }
  for (int64_t value : values) {
    if (value != 10) return false;
  }
  return true;
}

// Whether the caller gets what a body throws, on whichever thread, once the phase is over.
bool throws_to_its_caller(int64_t bad) {
  std::atomic<int64_t> num_inside{0};
  try {
    parallel_for(kItems, 7, [&](int64_t begin, int64_t end) {
      num_inside.fetch_add(1);
      const bool is_bad = begin <= bad && bad < end;
      num_inside.fetch_sub(1);
      if (is_bad) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    return num_inside.load() == 0 && covers_each_item();
  }
  return false;
}

}  // namespace

int main() {
  std::atomic<bool> is_right{true};
  const auto drive = [&] {
    for (int i = 0; i < 200; ++i) {
      if (!covers_each_item() || !keeps_order_in_a_region()) is_right.store(false);
      if (!throws_to_its_caller(i % 2 == 0 ? 3 : kItems - 3)) is_right.store(false);
    }
  };
  for (int count : {1, 2, 4}) {
    pyvt::cpu::set_num_threads(count);
    if (!runs_on_each_thread()) is_right.store(false);
    std::thread other(drive);
    drive();
    other.join();
    pyvt::cpu::shutdown_threads();
  }
  std::puts(is_right.load() ? "the pool covers every item once"
                            : "the pool lost or repeated items");
  return is_right.load() ? 0 : 1;
}
