// The vector vocabulary with one lane: the portable level, and the oracle of the others.
// Every ISA header has the same names; kernels see nothing else of the ISA.
#pragma once

#include <cmath>

#include "cpu/simd/types.h"

namespace simd {

constexpr int kLanes = 1;

struct Vec {
  float v;
};

inline Vec set1(float x) { return {x}; }
inline Vec zero() { return {0.0f}; }
inline Vec load(const float* p) { return {*p}; }
inline void store(float* p, Vec a) { *p = a.v; }
inline Vec load(const Bf16* p) { return {pyvt::bf16_to_f32(p->bits)}; }
inline void store(Bf16* p, Vec a) { p->bits = pyvt::f32_to_bf16(a.v); }
inline Vec load(const F16* p) { return {pyvt::f16_to_f32(p->bits)}; }
inline void store(F16* p, Vec a) { p->bits = pyvt::f32_to_f16(a.v); }
inline Vec load(const E4m3* p) { return {pyvt::e4m3_to_f32(p->bits)}; }

// The first n < kLanes elements; the other lanes are zero.
template <typename T>
inline Vec load_first(const T*, int) {
  return zero();
}
template <typename T>
inline void store_first(T*, Vec, int) {}

// Member kIndex of each of kLanes pairs that lie side by side.
template <int kIndex, typename T>
inline Vec load_of_pairs(const T* p) {
  return load(p + kIndex);
}

// Words of 32 bits: to[j * stride] of lane i is word j of rows[i], for kLanes words and rows.
inline void transpose_words(const uint8_t* const* rows, int64_t offset, uint8_t* to, int64_t) {
  std::memcpy(to, rows[0] + offset, 4);
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }

// Whole numbers in [-128, 127].
inline void store_i8(int8_t* p, Vec a) { *p = static_cast<int8_t>(a.v); }

inline Vec abs(Vec a) { return {std::fabs(a.v)}; }
// To the nearest whole number, halves to even.
inline Vec round(Vec a) { return {std::nearbyint(a.v)}; }
inline Vec load_first(const float*, int, float fill) { return {fill}; }

inline Vec add(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec sub(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec mul(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec div(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) { return {std::fma(a.v, b.v, c.v)}; }
inline Vec copy_sign(Vec a, Vec b) { return {std::copysign(a.v, b.v)}; }

struct Mask {
  bool v;
};

inline Mask greater(Vec a, Vec b) { return {a.v > b.v}; }
inline Mask equal(Vec a, Vec b) { return {a.v == b.v}; }
inline Mask is_nan(Vec a) { return {a.v != a.v}; }
inline Mask either(Mask a, Mask b) { return {a.v || b.v}; }
inline Vec blend(Mask mask, Vec a, Vec b) { return mask.v ? a : b; }
inline bool any(Mask mask) { return mask.v; }
inline int count(Mask mask) { return mask.v ? 1 : 0; }
inline int first(Mask) { return 0; }

inline float sum(Vec a) { return a.v; }
inline void sum4(float* out, Vec a, Vec b, Vec c, Vec d) {
  out[0] = a.v;
  out[1] = b.v;
  out[2] = c.v;
  out[3] = d.v;
}
inline float max_lane(Vec a) { return a.v; }
inline Vec exp(Vec a) { return {std::exp(a.v)}; }

}  // namespace simd
