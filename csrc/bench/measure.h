// What the benches share: rates as sums over threads of work per CPU time, medians, and the read
// limit.
#pragma once

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/thread_pool.h"

namespace pyvt::bench {

constexpr int64_t kBytes = 96 << 20;

inline double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Sum over threads of work(thread) per second, in units of 10^9.
inline double rate(const std::function<double(int)>& work) {
  std::vector<double> rates(static_cast<size_t>(cpu::num_threads()));
  cpu::parallel_all([&](int thread) {
    const double start = cpu_seconds();
    const double done = work(thread);
    rates[static_cast<size_t>(thread)] = done / (cpu_seconds() - start) * 1e-9;
  });
  double sum = 0;
  for (double each : rates) sum += each;
  return sum;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Bytes = std::unique_ptr<uint8_t, void (*)(void*)>;

inline Bytes aligned_bytes(int64_t size) {
  const auto rounded = static_cast<size_t>(size + 63) / 64 * 64;
  return Bytes(static_cast<uint8_t*>(std::aligned_alloc(64, rounded)), std::free);
}

// A plain read of this thread's part of kBytes.
inline double read_limit(const uint8_t* data, int thread) {
  const int64_t part = kBytes / cpu::num_threads();
  const __m256i* p = reinterpret_cast<const __m256i*>(data + thread * part);
  __m256i a[4] = {};
  for (int64_t i = 0; i < part / 32; i += 4) {
    for (int j = 0; j < 4; ++j) a[j] = _mm256_or_si256(a[j], _mm256_load_si256(p + i + j));
  }
  volatile int sink = _mm256_extract_epi32(
      _mm256_or_si256(_mm256_or_si256(a[0], a[1]), _mm256_or_si256(a[2], a[3])), 0);
  (void)sink;
  return static_cast<double>(part);
}

}  // namespace pyvt::bench
