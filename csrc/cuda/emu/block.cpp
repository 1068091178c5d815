// Fibers and their scheduler; see block.h.
#include "cuda/emu/block.h"

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace pyvt::emu {
namespace {

namespace ctx = boost::context;

constexpr size_t kStackBytes = 256 * 1024;
constexpr unsigned kMaxThreads = 1024;
constexpr int kPoison = 0xff;

enum class State : uint8_t { kReady, kAtBlock, kAtWarp, kDone };

struct Thread {
  ctx::fiber self;   // where the thread goes on
  ctx::fiber outer;  // where the scheduler goes on
  State state = State::kDone;
  bool has_failed = false;
  dim3 place;
  // What it waits in.
  const char* file = "";
  int line = 0;
  uint32_t mask = 0;
  Resolve resolve = nullptr;
  void* own = nullptr;
};

struct StaticShared {
  const void* key;
  size_t offset, size;
};

struct Machine {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<StaticShared> statics;
  std::unique_ptr<uint8_t[]> shared{new uint8_t[kMaxShared + 64]};
  size_t num_dynamic = 0, num_static = 0;
  unsigned num_threads = 0, current = 0;
  Body body{};
  std::string failure;
  uint64_t random = 0;
  std::string passed_file;  // of a barrier that threads pass
  int passed_line = 0;
  std::map<std::string, uint64_t> tensor_core_uses;

  Machine() {
    const char* text = std::getenv("PYVT_EMU_SEED");
    random = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  }

  uint8_t* shared_start() {
    const auto address = reinterpret_cast<uintptr_t>(shared.get());
    return shared.get() + ((64 - address % 64) % 64);
  }

  uint64_t next() {
    random += 0x9e3779b97f4a7c15u;
    uint64_t z = random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

Machine& machine() {
  static Machine one;
  return one;
}

// Visits 0 … n−1 in a shuffled order: an odd stride through the next power of two.
template <typename Visit>
void shuffled(uint64_t n, Visit visit) {
  uint64_t size = 1;
  while (size < n) size *= 2;
  const uint64_t start = machine().next(), stride = machine().next() | 1;
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t at = (start + i * stride) & (size - 1);
    if (at < n) visit(at);
  }
}

std::string text_of(const dim3& d) {
  std::ostringstream text;
  text << "(" << d.x << ", " << d.y << ", " << d.z << ")";
  return text.str();
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(std::string("kernel ") + machine().body.name + ", block " + text_of(blockIdx) + ": " +
              what);
}

std::string place_of(const Thread& thread) {
  std::ostringstream text;
  text << "thread " << text_of(thread.place) << " at " << thread.file << ":" << thread.line;
  return text.str();
}

void pause(Thread& thread) { thread.outer = std::move(thread.outer).resume(); }

// Runs the body of one block after another, for as long as the fiber lives.
ctx::fiber make_fiber(Thread* thread) {
  return ctx::fiber(std::allocator_arg, ctx::fixedsize_stack(kStackBytes),
                    [thread](ctx::fiber&& outer) {
                      thread->outer = std::move(outer);
                      for (;;) {
                        try {
                          machine().body.run(machine().body.arguments);
                        } catch (const std::exception& error) {
                          thread->has_failed = true;
                          if (machine().failure.empty()) machine().failure = error.what();
                        }
                        thread->state = State::kDone;
                        pause(*thread);
                      }
                      return ctx::fiber();
                    });
}

void resume(unsigned index) {
  Machine& m = machine();
  Thread& thread = *m.threads[index];
  m.current = index;
  threadIdx = thread.place;
  thread.self = std::move(thread.self).resume();
  if (thread.has_failed) throw Error(m.failure);
}

// Runs the lanes of a warp until none of them can go on.
void run_warp(unsigned first, unsigned num_lanes) {
  Machine& m = machine();
  for (bool is_any = true; is_any;) {
    is_any = false;
    shuffled(num_lanes, [&](uint64_t lane) {
      if (m.threads[first + lane]->state != State::kReady) return;
      is_any = true;
      resume(first + static_cast<unsigned>(lane));
    });
  }
}

// All threads wait or have ended: lets those at the barrier go on. False when all have ended.
bool release_barrier() {
  Machine& m = machine();
  unsigned num_done = 0;
  const Thread* first = nullptr;
  const Thread* ended = nullptr;
  for (unsigned i = 0; i < m.num_threads; ++i) {
    const Thread& thread = *m.threads[i];
    if (thread.state == State::kAtWarp) {
      fail(place_of(thread) + " waits for lanes of its warp that do not come");
    }
    if (thread.state == State::kDone) {
      ++num_done;
      ended = &thread;
      continue;
    }
    if (first == nullptr) first = &thread;
    if (thread.line != first->line || std::strcmp(thread.file, first->file) != 0) {
      fail("threads wait at different barriers: " + place_of(*first) + ", " + place_of(thread));
    }
  }
  if (num_done == m.num_threads) return false;
  if (num_done > 0) {
    fail(place_of(*first) + " waits at a barrier that thread " + text_of(ended->place) +
         " never meets");
  }
  for (unsigned i = 0; i < m.num_threads; ++i) m.threads[i]->state = State::kReady;
  return true;
}

void run_block() {
  Machine& m = machine();
  const unsigned num_warps = (m.num_threads + kWarpSize - 1) / kWarpSize;
  std::memset(m.shared_start(), kPoison, m.num_dynamic + m.num_static);
  m.statics.clear();
  m.num_static = 0;
  for (unsigned i = 0; i < m.num_threads; ++i) m.threads[i]->state = State::kReady;
  do {
    shuffled(num_warps, [&](uint64_t warp) {
      const unsigned first = static_cast<unsigned>(warp) * kWarpSize;
      const unsigned rest = m.num_threads - first;
      run_warp(first, rest < kWarpSize ? rest : kWarpSize);
    });
  } while (release_barrier());
}

Thread& current_thread() { return *machine().threads[machine().current]; }

// Makes the threads of a block; those of the blocks before are used again.
void prepare(dim3 block, size_t dynamic_shared) {
  Machine& m = machine();
  const uint64_t count = static_cast<uint64_t>(block.x) * block.y * block.z;
  if (count == 0 || count > kMaxThreads) fail("a block of " + text_of(block) + " threads");
  if (dynamic_shared > kMaxShared) fail("more shared memory than a block can have");
  m.num_threads = static_cast<unsigned>(count);
  m.num_dynamic = (dynamic_shared + 15) / 16 * 16;
  while (m.threads.size() < count) {
    m.threads.push_back(std::make_unique<Thread>());
    m.threads.back()->self = make_fiber(m.threads.back().get());
  }
  for (unsigned i = 0; i < m.num_threads; ++i) {
    m.threads[i]->place = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
  }
}

}  // namespace

void run_grid(const Body& body, dim3 grid, dim3 block, size_t dynamic_shared) {
  Machine& m = machine();
  m.body = body;
  m.failure.clear();
  gridDim = grid;
  blockDim = block;
  try {
    const uint64_t count = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    if (count == 0 || grid.y > 65535 || grid.z > 65535) fail("a grid of " + text_of(grid));
    prepare(block, dynamic_shared);
    shuffled(count, [&](uint64_t i) {
      blockIdx = dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                      static_cast<unsigned>(i / grid.x / grid.y));
      run_block();
    });
  } catch (...) {
    // Threads that stopped midway cannot run another block.
    m.threads.clear();
    throw;
  }
}

void sync_block(const char* file, int line) {
  if (is_passed(file, line)) return;
  Thread& thread = current_thread();
  thread.state = State::kAtBlock;
  thread.file = file;
  thread.line = line;
  pause(thread);
}

void warp_collective(uint32_t mask, Resolve resolve, void* own, const char* file, int line) {
  Machine& m = machine();
  Thread& thread = current_thread();
  thread.file = file;
  thread.line = line;
  thread.mask = mask;
  thread.resolve = resolve;
  thread.own = own;
  thread.state = State::kAtWarp;
  const unsigned first = m.current / kWarpSize * kWarpSize;
  if ((mask >> (m.current - first) & 1) == 0) fail(place_of(thread) + " is not of its own mask");
  void* lanes[kWarpSize] = {};
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) == 0 || first + lane >= m.num_threads) continue;
    const Thread& other = *m.threads[first + lane];
    if (other.state != State::kAtWarp) {
      pause(thread);
      return;
    }
    if (other.resolve != resolve || other.mask != mask) {
      fail("lanes of a warp meet in different collectives: " + place_of(thread) + ", " +
           place_of(other));
    }
    lanes[lane] = other.own;
  }
  resolve(lanes);
  // Only mma.cuh, mma_int8.cuh and mma_tf32.cuh have such collectives.
  if (std::strstr(file, "/mma") != nullptr) ++m.tensor_core_uses[m.body.name];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (lanes[lane] != nullptr) m.threads[first + lane]->state = State::kReady;
  }
}

void* static_shared(const void* key, size_t size) {
  Machine& m = machine();
  for (const StaticShared& known : m.statics) {
    if (known.key == key) return m.shared_start() + known.offset;
  }
  const size_t offset = m.num_dynamic + m.num_static;
  const size_t padded = (size + 15) / 16 * 16;
  if (offset + padded > kMaxShared) fail("more shared memory than a block can have");
  std::memset(m.shared_start() + offset, kPoison, padded);
  m.statics.push_back({key, offset, padded});
  m.num_static += padded;
  return m.shared_start() + offset;
}

void* dynamic_shared() { return machine().shared_start(); }

int lane_id() { return static_cast<int>(machine().current % kWarpSize); }

void seed(uint64_t value) { machine().random = value; }

void pass_barrier(const std::string& file, int line) {
  machine().passed_file = file;
  machine().passed_line = file.empty() ? 0 : line;
}

bool is_passed(const char* file, int line) {
  const Machine& m = machine();
  if (line != m.passed_line) return false;
  const char* folder = std::strrchr(file, '/');
  return m.passed_file == (folder == nullptr ? file : folder + 1);
}

const std::map<std::string, uint64_t>& tensor_core_uses() { return machine().tensor_core_uses; }

}  // namespace pyvt::emu
