#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pyvt::cpu {
namespace {

// Long enough to bridge the Python between two ops of a step, short enough to free a core at rest.
constexpr int kSpinPauses = 4000;

inline void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter that threads wait on: they spin, then sleep; a change wakes the sleepers.
class Event {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
      }
      changed_.notify_all();
    }
  }

  // Waits until the value differs from `seen`.
  void wait_while(uint64_t seen) {
    for (int i = 0; i < kSpinPauses; ++i) {
      if (value() != seen) return;
      pause_core();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
    num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  alignas(64) std::atomic<uint64_t> value_{0};
  alignas(64) std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int id = 1; id < num_threads; ++id) workers_.emplace_back([this, id] { work(id); });
  }

  ~Pool() {
    is_ending_.store(true);
    started_.advance();
    for (std::thread& worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }

  void run(ThreadBody body, void* context) {
    body_ = body;
    context_ = context;
    const uint64_t before = finished_.value();
    num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
    started_.advance();
    body(context, 0);
    if (num_threads_ > 1) finished_.wait_while(before);
  }

 private:
  void work(int id) {
    uint64_t seen = 0;
    for (;;) {
      started_.wait_while(seen);
      ++seen;
      if (is_ending_.load()) return;
      body_(context_, id);
      if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_.advance();
    }
  }

  const int num_threads_;
  std::vector<std::thread> workers_;
  Event started_;
  Event finished_;
  alignas(64) std::atomic<int> num_running_{0};
  std::atomic<bool> is_ending_{false};
  ThreadBody body_ = nullptr;
  void* context_ = nullptr;
};

struct State {
  std::mutex region;  // held while a region runs, and while the pool changes
  std::unique_ptr<Pool> pool;
  std::atomic<int> num_threads{0};
};

// Never destroyed: a worker may outlive static destructors at exit.
State& state() {
  static State* made = [] {
    // A child of fork has no workers: it drops the pool without joining and starts anew.
    pthread_atfork(nullptr, nullptr, [] {
      State& child = state();
      child.pool.release();
      new (&child.region) std::mutex;
    });
    return new State;
  }();
  return *made;
}

int quota_cores() {
  std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file == nullptr) return 1 << 20;
  long long quota = 0, period = 0;
  const int num_read = std::fscanf(file, "%lld %lld", &quota, &period);
  std::fclose(file);
  if (num_read != 2 || quota <= 0 || period <= 0) return 1 << 20;
  return static_cast<int>(std::max<long long>(1, quota / period));
}

}  // namespace

int num_usable_cores() {
  int affinity = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) affinity = CPU_COUNT(&set);
#endif
  return std::max(1, std::min(affinity, quota_cores()));
}

int num_threads() {
  const int count = state().num_threads.load(std::memory_order_relaxed);
  if (count > 0) return count;
  set_num_threads(0);
  return state().num_threads.load(std::memory_order_relaxed);
}

void set_num_threads(int count) {
  state().num_threads.store(count > 0 ? count : num_usable_cores());
}

void shutdown_threads() {
  std::lock_guard<std::mutex> lock(state().region);
  state().pool.reset();
}

void parallel_threads(ThreadBody body, void* context) {
  State& shared = state();
  std::lock_guard<std::mutex> lock(shared.region);
  const int count = num_threads();
  if (!shared.pool || shared.pool->num_threads() != count) {
    shared.pool.reset();
    shared.pool = std::make_unique<Pool>(count);
  }
  shared.pool->run(body, context);
}

namespace {

struct Ranges {
  int64_t num_items;
  int64_t grain;
  int num_threads;
  RangeBody body;
  void* context;
  alignas(64) std::atomic<int64_t> next{0};

  // Three quarters of the grains are dealt out, so that each thread streams its own memory; the
  // rest is claimed one by one, so that a thread that lost its core holds nobody up for long.
  void run(int thread_id) {
    const int64_t num_grains = (num_items + grain - 1) / grain;
    const int64_t dealt = num_grains / num_threads * 3 / 4;
    call(thread_id * dealt, (thread_id + 1) * dealt);
    const int64_t first = dealt * num_threads;
    for (;;) {
      const int64_t claimed = first + next.fetch_add(1, std::memory_order_relaxed);
      if (claimed >= num_grains) return;
      call(claimed, claimed + 1);
    }
  }

  void call(int64_t first_grain, int64_t last_grain) {
    const int64_t begin = first_grain * grain;
    const int64_t end = std::min(num_items, last_grain * grain);
    if (begin < end) body(context, begin, end);
  }
};

}  // namespace

void parallel_ranges(int64_t num_items, int64_t grain, RangeBody body, void* context) {
  if (num_items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int count = num_threads();
  if (count == 1 || num_items <= grain) {
    body(context, 0, num_items);
    return;
  }
  Ranges ranges{num_items, grain, count, body, context};
  parallel_threads(
      [](void* shared, int thread_id) { static_cast<Ranges*>(shared)->run(thread_id); }, &ranges);
}

}  // namespace pyvt::cpu
