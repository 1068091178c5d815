// What a kernel may use, in C++ for the emulator: built-in variables, barriers, shuffles, votes,
// atomics. Names and meanings are CUDA's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/emu/block.h"

#define __global__
#define __device__ inline
#define __host__
#define __forceinline__
#define __launch_bounds__(...)

#define __syncthreads() ::pyvt::emu::sync_block(__FILE__, __LINE__)
#define __syncwarp(...) ::pyvt::emu::sync_warp(__FILE__, __LINE__, ##__VA_ARGS__)
#define __shfl_sync(...) ::pyvt::emu::shfl(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) ::pyvt::emu::shfl_xor(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) ::pyvt::emu::shfl_down(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) ::pyvt::emu::shfl_up(__FILE__, __LINE__, __VA_ARGS__)
#define __ballot_sync(...) ::pyvt::emu::ballot(__FILE__, __LINE__, __VA_ARGS__)
#define __any_sync(...) (::pyvt::emu::ballot(__FILE__, __LINE__, __VA_ARGS__) != 0)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace pyvt::emu {

struct Exchange {
  uint64_t given = 0, got = 0;
  int from = 0;
};

inline void nothing(void* const*) {}

inline void exchange(void* const* lanes) {
  for (int i = 0; i < kWarpSize; ++i) {
    auto* lane = static_cast<Exchange*>(lanes[i]);
    if (lane == nullptr) continue;
    const auto* other = static_cast<const Exchange*>(lanes[lane->from]);
    if (other == nullptr) throw Error("a shuffle reads a lane that takes no part in it");
    lane->got = other->given;
  }
}

inline void vote(void* const* lanes) {
  uint64_t bits = 0;
  for (int i = 0; i < kWarpSize; ++i) {
    const auto* lane = static_cast<const Exchange*>(lanes[i]);
    if (lane != nullptr && lane->given != 0) bits |= uint64_t{1} << i;
  }
  for (int i = 0; i < kWarpSize; ++i) {
    if (lanes[i] != nullptr) static_cast<Exchange*>(lanes[i])->got = bits;
  }
}

inline void sync_warp(const char* file, int line, uint32_t mask = 0xffffffffu) {
  if (is_passed(file, line)) return;
  Exchange own;
  warp_collective(mask, &nothing, &own, file, line);
}

template <typename T>
T shuffle(const char* file, int line, uint32_t mask, T value, int from) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  Exchange own;
  std::memcpy(&own.given, &value, sizeof(T));
  own.from = from;
  warp_collective(mask, &exchange, &own, file, line);
  std::memcpy(&value, &own.got, sizeof(T));
  return value;
}

template <typename T>
T shfl(const char* file, int line, uint32_t mask, T value, int from, int width = 32) {
  const int base = lane_id() & ~(width - 1);
  return shuffle(file, line, mask, value, base + (from & (width - 1)));
}

template <typename T>
T shfl_xor(const char* file, int line, uint32_t mask, T value, int bits, int width = 32) {
  const int own = lane_id(), from = own ^ bits;
  return shuffle(file, line, mask, value, from / width == own / width ? from : own);
}

template <typename T>
T shfl_down(const char* file, int line, uint32_t mask, T value, int delta, int width = 32) {
  const int own = lane_id(), from = own + delta;
  return shuffle(file, line, mask, value, from / width == own / width ? from : own);
}

template <typename T>
T shfl_up(const char* file, int line, uint32_t mask, T value, int delta, int width = 32) {
  const int own = lane_id();
  return shuffle(file, line, mask, value, own % width >= delta ? own - delta : own);
}

inline uint32_t ballot(const char* file, int line, uint32_t mask, bool is_set) {
  Exchange own;
  own.given = is_set;
  warp_collective(mask, &vote, &own, file, line);
  return static_cast<uint32_t>(own.got);
}

}  // namespace pyvt::emu

template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}

template <typename T>
T atomicMax(T* at, T value) {
  const T before = *at;
  if (value > before) *at = value;
  return before;
}

template <typename T>
T atomicOr(T* at, T value) {
  const T before = *at;
  *at = before | value;
  return before;
}

template <typename T>
T atomicMin(T* at, T value) {
  const T before = *at;
  if (value < before) *at = value;
  return before;
}

template <typename T>
T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}

using std::isfinite;
using std::isinf;
using std::isnan;

inline void __threadfence() {}

template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  }
  return c;
}
