#include "cpu/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/kernel_table.h"
#include "cpu/thread_pool.h"
#include "pyvt/check.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pyvt::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kReadBytes = int64_t{256} << 20;
constexpr int64_t kAlignment = int64_t{2} << 20;
constexpr int kStreams = 4;

// The rate of `work` operations on each thread, in units of 10^9 a second.
template <typename F>
double rate(int repetitions, double work, F&& f) {
  double best = 0;
  for (int i = 0; i < repetitions; ++i) {
    const Clock::time_point start = Clock::now();
    parallel_all([&](int thread) { f(thread); });
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, work * num_threads() / seconds.count() * 1e-9);
  }
  return best;
}

// Sums of four runs of words that lie apart, which fetches more at once than one run would.
uint64_t read_part(const uint64_t* data, int64_t num_words) {
  const int64_t run = num_words / kStreams;
  uint64_t sums[kStreams] = {};
  for (int64_t i = 0; i + 8 <= run; i += 8) {
    for (int s = 0; s < kStreams; ++s) {
      for (int j = 0; j < 8; ++j) sums[s] += data[s * run + i + j];
    }
  }
  uint64_t sum = 0;
  for (uint64_t each : sums) sum += each;
  return sum;
}

double read_limit(int repetitions) {
  std::unique_ptr<uint64_t, void (*)(void*)> data(
      static_cast<uint64_t*>(std::aligned_alloc(kAlignment, kReadBytes)), std::free);
  PYVT_CHECK("machine_limits", data != nullptr, "memory: expected 256 MiB, got none");
#if defined(__linux__)
  madvise(data.get(), kReadBytes, MADV_HUGEPAGE);
#endif
  const int64_t part = kReadBytes / 8 / num_threads() / 64 * 64;
  parallel_all([&](int thread) {
    std::fill_n(data.get() + thread * part, part, static_cast<uint64_t>(thread + 1));
  });
  std::atomic<uint64_t> sink{0};
  return rate(repetitions, static_cast<double>(part * 8),
              [&](int thread) { sink += read_part(data.get() + thread * part, part); });
}

#if defined(__x86_64__)

constexpr int64_t kTurns = 1 << 20;

// Ten chains hide the latency of every loop. Register 15 holds weights, 14 activations, 13 ones.
#define PYVT_REGISTERS                                                                     \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", \
      "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"
#define PYVT_TEN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define PYVT_FMA(k) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #k "\n"
#define PYVT_SIGNED(k)                   \
  "vpsignb %%ymm15,%%ymm14,%%ymm11\n"    \
  "vpmaddubsw %%ymm11,%%ymm15,%%ymm12\n" \
  "vpmaddwd %%ymm13,%%ymm12,%%ymm12\n"   \
  "vpaddd %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_INT8(k)                     \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n" \
  "vpmaddwd %%ymm13,%%ymm12,%%ymm12\n"   \
  "vpaddd %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_INT16(k)                  \
  "vpmaddwd %%ymm14,%%ymm15,%%ymm12\n" \
  "vpaddd %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_INT4(k)                     \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n" \
  "vpaddw %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_FMA_WIDE(k) "vfmadd231ps %%zmm14,%%zmm15,%%zmm" #k "\n"
#define PYVT_BF16_WIDE(k) "vdpbf16ps %%zmm14,%%zmm15,%%zmm" #k "\n"
#define PYVT_SIGNED_WIDE(k)          \
  "vpxord %%zmm13,%%zmm14,%%zmm12\n" \
  "vpdpbusd %%zmm12,%%zmm15,%%zmm" #k "\n"
#define PYVT_INT8_WIDE(k) "vpdpbusd %%zmm14,%%zmm15,%%zmm" #k "\n"
#define PYVT_INT16_WIDE(k) "vpdpwssd %%zmm14,%%zmm15,%%zmm" #k "\n"
#define PYVT_LOOP(name, step)                            \
  void name(int) {                                       \
    asm volatile("vzeroall" : : : PYVT_REGISTERS);       \
    for (int64_t i = 0; i < kTurns; ++i) {               \
      asm volatile(PYVT_TEN(step) : : : PYVT_REGISTERS); \
    }                                                    \
    asm volatile("vzeroupper" : : : PYVT_REGISTERS);     \
  }

PYVT_LOOP(fma_loop, PYVT_FMA)
PYVT_LOOP(signed_loop, PYVT_SIGNED)
PYVT_LOOP(int8_loop, PYVT_INT8)
PYVT_LOOP(int16_loop, PYVT_INT16)
PYVT_LOOP(int4_loop, PYVT_INT4)
PYVT_LOOP(wide_fma_loop, PYVT_FMA_WIDE)
PYVT_LOOP(wide_bf16_loop, PYVT_BF16_WIDE)
PYVT_LOOP(wide_signed_loop, PYVT_SIGNED_WIDE)
PYVT_LOOP(wide_int8_loop, PYVT_INT8_WIDE)
PYVT_LOOP(wide_int16_loop, PYVT_INT16_WIDE)

// The loops of a level, and its lanes of 32 bits.
struct Loops {
  int lanes;
  void (*fma_f32)(int), (*int8_signed)(int), (*int8)(int), (*int16)(int), (*int4)(int);
};
constexpr Loops kAvx2 = {8, fma_loop, signed_loop, int8_loop, int16_loop, int4_loop};
constexpr Loops kAvx512 = {
    16, wide_fma_loop, wide_signed_loop, wide_int8_loop, wide_int16_loop, wide_int8_loop};

bool runs_avx512() {
#if defined(PYVT_SIMDE)
  return false;
#else
  return std::strcmp(kernels().isa, "avx512") == 0;
#endif
}

bool multiplies_bf16() { return runs_avx512() && kernels().floats[1].pairs[0] != nullptr; }

void measure_loops(const Loops& loops, int repetitions, MachineLimits& limits) {
  // A lane takes a product of f32, four of bytes or two of s16 or bf16, and their sum.
  const double lane_steps = 10.0 * kTurns * loops.lanes;
  limits.fma_f32 = rate(repetitions, lane_steps * 2, loops.fma_f32);
  limits.bf16 =
      multiplies_bf16() ? rate(repetitions, lane_steps * 4, wide_bf16_loop) : limits.fma_f32;
  limits.int8_signed = rate(repetitions, lane_steps * 8, loops.int8_signed);
  limits.int8 = rate(repetitions, lane_steps * 8, loops.int8);
  limits.int16 = rate(repetitions, lane_steps * 4, loops.int16);
  limits.int4 = rate(repetitions, lane_steps * 8, loops.int4);
}

#endif

}  // namespace

MachineLimits machine_limits(int repetitions) {
  PYVT_CHECK("machine_limits", repetitions > 0, "repetitions: expected 1 or more");
  MachineLimits limits{};
  limits.read = read_limit(repetitions);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    measure_loops(runs_avx512() ? kAvx512 : kAvx2, repetitions, limits);
  }
#endif
  return limits;
}

}  // namespace pyvt::cpu
