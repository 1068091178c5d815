// The emulator's machine: a block of threads, each a fiber, run one after the other on one core.
//
//  1. A thread runs until it meets a barrier of the block, a collective of its warp, or its end.
//  2. Between two such points threads and warps run in an order that is shuffled anew each time
//     (PYVT_EMU_SEED), so that a missing barrier shows as a wrong result.
//  3. Shared memory of a block holds 0xff bytes at first: NaN in every float type.
//  4. Threads that wait at different barriers, for lanes that have ended, or in different
//     collectives are an error, with the kernel, the block and the lines.
//
// Blocks run one after the other, in a shuffled order too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// What a kernel reads; set before a thread runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace pyvt::emu {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr int kWarpSize = 32;
// Dynamic and static shared memory of a block together, as on sm_90.
constexpr size_t kMaxShared = 227 * 1024;

// A kernel with its arguments: `run(arguments)` is what one thread does.
struct Body {
  const char* name;
  void (*run)(const void* arguments);
  const void* arguments;
};

// Runs all blocks of a grid. Throws Error.
void run_grid(const Body& body, dim3 grid, dim3 block, size_t dynamic_shared);

// The rest is called by the thread that runs.

// Waits for all threads of the block.
void sync_block(const char* file, int line);

// Waits for the lanes of `mask`, which pass the same `resolve`; then it is called once with the
// pointers of all 32 lanes, null for those that take no part.
using Resolve = void (*)(void* const lanes[kWarpSize]);
void warp_collective(uint32_t mask, Resolve resolve, void* own, const char* file, int line);

// The static shared memory of this block that belongs to `key`, the same for all threads.
void* static_shared(const void* key, size_t size);
void* dynamic_shared();

int lane_id();

// Starts the shuffles anew from a seed.
void seed(uint64_t value);

// Makes threads pass the barrier in that line of that file ("moe.cu") as if it were not there;
// none with an empty name. What tests then see tells whether they need it.
void pass_barrier(const std::string& file, int line);
bool is_passed(const char* file, int line);

// How often warps used tensor cores, by op, since the process began.
const std::map<std::string, uint64_t>& tensor_core_uses();

}  // namespace pyvt::emu
