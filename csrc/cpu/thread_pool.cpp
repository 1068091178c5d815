#include "cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/usable_cores.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pyvt::cpu {
namespace {

// Long enough to bridge what one thread does between two phases of a step, short enough to free a
// core for a neighbour: 30 to 60 µs.
constexpr int kSpinPauses = 2000;

inline void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename F>
bool spin_until(F&& is_true) {
  for (int i = 0; i < kSpinPauses; ++i) {
    if (is_true()) return true;
    pause_core();
  }
  return false;
}

// Where threads sleep. A sleeper says so first, then looks once more whether it has to; a waker
// makes its change first, then looks for sleepers: one of them sees the other.
class Bed {
 public:
  // Returns when it was woken, or at once where `is_needless()`; maybe for no reason.
  template <typename F>
  void sleep(F&& is_needless) {
    std::unique_lock<std::mutex> lock(mutex_);
    has_sleepers_.store(true, std::memory_order_seq_cst);
    if (is_needless()) return;
    const uint64_t before = num_wakes_;
    woken_.wait(lock, [&] { return num_wakes_ != before; });
  }

  void wake() {
    if (!has_sleepers_.load(std::memory_order_seq_cst)) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      has_sleepers_.store(false, std::memory_order_relaxed);
      ++num_wakes_;
    }
    woken_.notify_all();
  }

 private:
  alignas(64) std::atomic<bool> has_sleepers_{false};
  std::mutex mutex_;
  uint64_t num_wakes_ = 0;  // under the mutex
  std::condition_variable woken_;
};

// The state of the phase is one word: its number, whether it may be joined, the workers inside.
constexpr uint64_t kInside = 0xffff;
constexpr uint64_t kOpen = 0x10000;
constexpr uint64_t kNumber = 0x20000;

class Pool {
 public:
  // Where the system gives no more threads, those that there are do the work.
  explicit Pool(int num_asked) : num_asked(num_asked) {
    try {
      for (int id = 1; id < num_asked; ++id) workers_.emplace_back([this, id] { work(id); });
    } catch (const std::system_error&) {
    }
  }

  ~Pool() {
    is_ending_.store(true, std::memory_order_seq_cst);
    workers_bed_.wake();
    for (std::thread& worker : workers_) worker.join();
  }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(ThreadBody body, void* context) {
    body_ = body;
    context_ = context;
    number_ += kNumber;
    state_.store(number_ | kOpen, std::memory_order_seq_cst);
    workers_bed_.wake();
    enter(0);
    state_.fetch_and(~kOpen, std::memory_order_seq_cst);
    while (!spin_until([this] { return is_empty(); })) {
      caller_bed_.sleep([this] { return is_empty(); });
    }
    if (has_failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  const int num_asked;

 private:
  // The first exception of a phase is kept for its caller.
  void enter(int id) noexcept {
    try {
      body_(context_, id);
    } catch (...) {
      if (!has_failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  bool is_empty() const { return (state_.load(std::memory_order_seq_cst) & kInside) == 0; }

  bool is_called(uint64_t joined) const {
    const uint64_t state = state_.load(std::memory_order_seq_cst);
    return ((state & kOpen) != 0 && (state & ~(kNumber - 1)) != joined) ||
           is_ending_.load(std::memory_order_seq_cst);
  }

  void work(int id) {
    uint64_t joined = 0;  // the last phase
    while (!is_ending_.load(std::memory_order_relaxed)) {
      if (!spin_until([&] { return is_called(joined); })) {
        workers_bed_.sleep([&] { return is_called(joined); });
        continue;
      }
      uint64_t state = state_.load(std::memory_order_relaxed);
      const uint64_t number = state & ~(kNumber - 1);
      if ((state & kOpen) == 0 || number == joined ||
          !state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) {
        continue;
      }
      joined = number;
      enter(id);
      state_.fetch_sub(1, std::memory_order_seq_cst);
      if (is_empty()) caller_bed_.wake();
    }
  }

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<bool> is_ending_{false};
  uint64_t number_ = 0;  // the caller's
  ThreadBody body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;  // its writer's until the phase is empty
  Bed workers_bed_, caller_bed_;
  std::vector<std::thread> workers_;
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

// Regions that this thread is in.
thread_local int region_depth = 0;

struct Ranges {
  struct alignas(64) Share {
    std::atomic<int64_t> next;  // grain
    int64_t end;
  };

  int64_t num_items, grain;
  int num_threads;
  RangeBody body;
  void* context;
  Share shares[kMaxThreads];

  // A thread streams its own share grain by grain, so that it reads memory in order; then it helps
  // others with theirs.
  void run(int thread_id) {
    for (int i = 0; i < num_threads; ++i) {
      Share& share = shares[(thread_id + i) % num_threads];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t claimed = share.next.fetch_add(1, std::memory_order_relaxed);
        if (claimed >= share.end) break;
        body(context, claimed * grain, std::min(num_items, (claimed + 1) * grain));
      }
    }
  }
};

}  // namespace

int num_threads() {
  const int count = state().num_threads.load(std::memory_order_relaxed);
  if (count > 0) return count;
  set_num_threads(0);
  return state().num_threads.load(std::memory_order_relaxed);
}

void set_num_threads(int count) {
  state().num_threads.store(std::min(kMaxThreads, count > 0 ? count : num_usable_cores()));
}

void shutdown_threads() {
  std::lock_guard<std::mutex> lock(state().region);
  state().pool.reset();
}

Region::Region() {
  if (region_depth++ > 0) return;
  State& shared = state();
  shared.region.lock();
  const int count = cpu::num_threads();
  if (!shared.pool || shared.pool->num_asked != count) {
    shared.pool.reset();
    shared.pool = std::make_unique<Pool>(count);
  }
}

Region::~Region() {
  if (--region_depth == 0) state().region.unlock();
}

int Region::num_threads() const { return state().pool->num_threads(); }

void parallel_threads(ThreadBody body, void* context) {
  Region region;
  state().pool->run(body, context);
}

void parallel_ranges(int64_t num_items, int64_t grain, RangeBody body, void* context) {
  if (num_items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (num_items <= grain || num_threads() == 1) {
    body(context, 0, num_items);
    return;
  }
  Region region;
  const int count = region.num_threads();
  Ranges ranges;
  ranges.num_items = num_items;
  ranges.grain = grain;
  ranges.num_threads = count;
  ranges.body = body;
  ranges.context = context;
  const int64_t num_grains = (num_items + grain - 1) / grain;
  for (int i = 0; i < count; ++i) {
    ranges.shares[i].next.store(num_grains * i / count, std::memory_order_relaxed);
    ranges.shares[i].end = num_grains * (i + 1) / count;
  }
  state().pool->run(
      [](void* shared, int thread_id) { static_cast<Ranges*>(shared)->run(thread_id); }, &ranges);
}

}  // namespace pyvt::cpu
