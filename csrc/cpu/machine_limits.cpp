#include "cpu/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

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

// Ten chains hide the latency of every loop. ymm15 holds weights, ymm14 activations, ymm13 ones.
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

// Operations of one step of a loop: products of 8, 32 or 16 lanes, and their sums.
constexpr double kFloatOps = 16, kByteOps = 64, kShortOps = 32;

#endif

}  // namespace

MachineLimits machine_limits(int repetitions) {
  PYVT_CHECK("machine_limits", repetitions > 0, "repetitions: expected 1 or more");
  MachineLimits limits{};
  limits.read = read_limit(repetitions);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    const double steps = 10.0 * kTurns;
    limits.fma_f32 = rate(repetitions, steps * kFloatOps, fma_loop);
    limits.int8_signed = rate(repetitions, steps * kByteOps, signed_loop);
    limits.int8 = rate(repetitions, steps * kByteOps, int8_loop);
    limits.int16 = rate(repetitions, steps * kShortOps, int16_loop);
    limits.int4 = rate(repetitions, steps * kByteOps, int4_loop);
  }
#endif
  return limits;
}

}  // namespace pyvt::cpu
