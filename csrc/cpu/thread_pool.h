// The pool: the only owner of threads.
//
// Work comes in phases. The caller of a phase opens it, works, and closes it when no work is left;
// a worker joins a phase while it is open. So a phase never waits for a worker that has no core at
// the moment, only for one that is in the middle of an item. Idle workers spin for a moment, then
// sleep: a pool at rest takes no core, and a busy neighbour costs no more than its share.
//
// Phases that follow each other closely, as the ops of a step do, form a region: workers stay awake
// between its phases and nobody else's phases come between. Outside of a region, a phase is a
// region of its own. One region runs at a time; a second caller waits for it.
//
// Work is split by item, never by reduction, so results do not depend on the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>

namespace pyvt::cpu {

// Holds the pool for this thread's phases until it is destroyed. May be nested.
class Region {
 public:
  Region();
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // The threads that there are, fewer than asked for where the system gives no more.
  int num_threads() const;
};

// A phase: calls `body(context, begin, end)` over [0, num_items) in ranges of whole grains. `body`
// must not start a phase. What it throws, for want of memory, ends its thread's work; the phase
// then throws it once no thread is inside.
using RangeBody = void (*)(void* context, int64_t begin, int64_t end);
void parallel_ranges(int64_t num_items, int64_t grain, RangeBody body, void* context);

// A phase: calls `body(context, thread_id)` on the caller, whose id is 0, and on each worker that
// joins; the body claims its work by itself and returns when none is left.
using ThreadBody = void (*)(void* context, int thread_id);
void parallel_threads(ThreadBody body, void* context);

// Splits [0, num_items) into ranges of `grain` items: `f(begin, end)`.
template <typename F>
void parallel_for(int64_t num_items, int64_t grain, F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_ranges(
      num_items, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Runs `f(thread_id)` on every thread that joins.
template <typename F>
void parallel_each(F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_threads([](void* context, int thread_id) { (*static_cast<Body*>(context))(thread_id); },
                   const_cast<void*>(static_cast<const void*>(&f)));
}

// Runs `f(thread_id)` once on every thread, all at one time: it waits for workers to join. For
// measurements of the machine.
template <typename F>
void parallel_all(F&& f) {
  Region region;
  std::atomic<int> num_missing{region.num_threads()};
  parallel_each([&](int thread_id) {
    num_missing.fetch_sub(1);
    while (num_missing.load() > 0) std::this_thread::yield();
    f(thread_id);
  });
}

// Most threads that a region may have.
constexpr int kMaxThreads = 256;

// The threads of a region, the caller among them. Setting it takes effect at the next region; 0
// asks the system anew, which costs file reads and is not done again until the next 0.
int num_threads();
void set_num_threads(int count);

// Ends and joins the workers; the next region starts them again.
void shutdown_threads();

}  // namespace pyvt::cpu
