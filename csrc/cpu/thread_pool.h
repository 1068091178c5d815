// ThreadPool: the only owner of threads. Workers spin for a moment between regions, then sleep, so
// that a pool at rest takes no core and a busy neighbour costs no more than its share.
//
// One region runs at a time; a second caller waits for it. A region's work is split by item, never
// by reduction, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pyvt::cpu {

// Runs `body(context, begin, end)` over [0, num_items) in ranges of whole grains, on the caller and
// the workers: most ranges are dealt out beforehand, the rest is claimed. `body` must not throw.
using RangeBody = void (*)(void* context, int64_t begin, int64_t end);
void parallel_ranges(int64_t num_items, int64_t grain, RangeBody body, void* context);

// Runs `body(context, thread_id)` once on each of num_threads() threads.
using ThreadBody = void (*)(void* context, int thread_id);
void parallel_threads(ThreadBody body, void* context);

// Splits [0, num_items) into ranges of at least `grain` items: `f(begin, end)`.
template <typename F>
void parallel_for(int64_t num_items, int64_t grain, F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_ranges(
      num_items, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Runs `f(thread_id)` on every thread.
template <typename F>
void parallel_each(F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_threads([](void* context, int thread_id) { (*static_cast<Body*>(context))(thread_id); },
                   const_cast<void*>(static_cast<const void*>(&f)));
}

// The threads of a region, the caller among them. Setting it takes effect at the next region; 0
// asks the system anew, which costs file reads and is not done again until the next 0.
int num_threads();
void set_num_threads(int count);

// Cores that this process may use: affinity and control-group quota.
int num_usable_cores();

// Ends and joins the workers; the next region starts them again.
void shutdown_threads();

}  // namespace pyvt::cpu
