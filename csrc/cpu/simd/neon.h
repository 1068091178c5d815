// The vector vocabulary on NEON of AArch64: four lanes of f32.
#pragma once

#include "cpu/simd/types.h"

namespace simd {

constexpr int kLanes = 4;

struct Vec {
  float32x4_t v;
};

inline Vec set1(float x) { return {vdupq_n_f32(x)}; }
inline Vec zero() { return {vdupq_n_f32(0.0f)}; }

inline Vec load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, Vec a) { vst1q_f32(p, a.v); }

inline Vec load(const Bf16* p) {
  const uint16x4_t bits = vld1_u16(reinterpret_cast<const uint16_t*>(p));
  return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(bits), 16))};
}

// Round to nearest even; a NaN keeps its sign and becomes quiet.
inline void store(Bf16* p, Vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  const uint32x4_t kept = vbslq_u32(vceqq_f32(a.v, a.v), up, quiet);
  vst1_u16(reinterpret_cast<uint16_t*>(p), vshrn_n_u32(kept, 16));
}

inline float32x4_t widen(uint16x4_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(halves)); }

inline Vec load(const F16* p) { return {widen(vld1_u16(reinterpret_cast<const uint16_t*>(p)))}; }
inline void store(F16* p, Vec a) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}

// The bits of an e4m3 number as those of an f16 are a 256th of it; magnitudes of 0x7f are NaN.
inline Vec load(const E4m3* p) {
  uint32_t codes;
  std::memcpy(&codes, p, 4);
  const uint16x4_t wide = vget_low_u16(vmovl_u8(vcreate_u8(codes)));
  const int16x4_t tops = vshr_n_s16(vreinterpret_s16_u16(vshl_n_u16(wide, 8)), 1);
  const uint16x4_t bits = vand_u16(vreinterpret_u16_s16(tops), vdup_n_u16(0xbf80));
  const uint16x4_t magnitude = vdup_n_u16(0x3f80);
  const uint16x4_t nan = vceq_u16(vand_u16(bits, magnitude), magnitude);
  return {vmulq_n_f32(widen(vorr_u16(bits, nan)), 256.0f)};
}

// Member kIndex of each of kLanes pairs that lie side by side.
template <int kIndex>
inline Vec load_of_pairs(const Bf16* p) {
  const uint32x4_t pairs = vld1q_u32(reinterpret_cast<const uint32_t*>(p));
  return {vreinterpretq_f32_u32(kIndex == 0 ? vshlq_n_u32(pairs, 16)
                                            : vandq_u32(pairs, vdupq_n_u32(0xffff0000u)))};
}
template <int kIndex>
inline Vec load_of_pairs(const F16* p) {
  const uint32x4_t pairs = vld1q_u32(reinterpret_cast<const uint32_t*>(p));
  return {widen(kIndex == 0 ? vmovn_u32(pairs) : vshrn_n_u32(pairs, 16))};
}

inline uint32x4_t load_word_of_rows(const uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }

// Words of 32 bits: to[j * stride] of lane i is word j of rows[i], for kLanes words and rows.
inline void transpose_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                            int64_t stride) {
  const uint32x4_t a = load_word_of_rows(rows[0] + offset), b = load_word_of_rows(rows[1] + offset);
  const uint32x4_t c = load_word_of_rows(rows[2] + offset), d = load_word_of_rows(rows[3] + offset);
  const uint64x2_t ab_even = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
  const uint64x2_t ab_odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
  const uint64x2_t cd_even = vreinterpretq_u64_u32(vtrn1q_u32(c, d));
  const uint64x2_t cd_odd = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
  const auto put = [&](int j, uint64x2_t word) {
    vst1q_u8(to + j * stride, vreinterpretq_u8_u64(word));
  };
  put(0, vtrn1q_u64(ab_even, cd_even));
  put(1, vtrn1q_u64(ab_odd, cd_odd));
  put(2, vtrn2q_u64(ab_even, cd_even));
  put(3, vtrn2q_u64(ab_odd, cd_odd));
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }

// Whole numbers in [-128, 127].
inline void store_i8(int8_t* p, Vec a) {
  const int16x4_t halves = vmovn_s32(vcvtq_s32_f32(a.v));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
  const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  std::memcpy(p, &four, 4);
}

inline Vec abs(Vec a) { return {vabsq_f32(a.v)}; }
// To the nearest whole number, halves to even.
inline Vec round(Vec a) { return {vrndnq_f32(a.v)}; }

// One truth value for each lane; a comparison with NaN is false.
struct Mask {
  uint32x4_t v;
};

inline Mask greater(Vec a, Vec b) { return {vcgtq_f32(a.v, b.v)}; }
inline Mask equal(Vec a, Vec b) { return {vceqq_f32(a.v, b.v)}; }
inline Mask is_nan(Vec a) { return {vmvnq_u32(vceqq_f32(a.v, a.v))}; }
inline Mask either(Mask a, Mask b) { return {vorrq_u32(a.v, b.v)}; }
// a where the mask holds, else b.
inline Vec blend(Mask mask, Vec a, Vec b) { return {vbslq_f32(mask.v, a.v, b.v)}; }
inline bool any(Mask mask) { return vmaxvq_u32(mask.v) != 0; }
inline int count(Mask mask) { return static_cast<int>(vaddvq_u32(vshrq_n_u32(mask.v, 31))); }
// The lowest lane that holds; one must.
inline int first(Mask mask) {
  const uint32_t places[kLanes] = {0, 1, 2, 3};
  return static_cast<int>(vminvq_u32(vorrq_u32(vld1q_u32(places), vmvnq_u32(mask.v))));
}

inline Vec add(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
// b where one of both is NaN, as on the other levels; vmaxq gives the NaN.
inline Vec max(Vec a, Vec b) { return blend(greater(a, b), a, b); }
inline Vec min(Vec a, Vec b) { return blend(greater(b, a), a, b); }
// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// The magnitude of a with the sign of b.
inline Vec copy_sign(Vec a, Vec b) { return {vbslq_f32(vdupq_n_u32(0x80000000u), b.v, a.v)}; }

// Lanes in the fixed order (0+2) + (1+3).
inline float sum(Vec a) {
  const float32x2_t half = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}

inline float max_lane(Vec a) {
  a = max(a, {vextq_f32(a.v, a.v, 2)});
  a = max(a, {vextq_f32(a.v, a.v, 1)});
  return vgetq_lane_f32(a.v, 0);
}

// The sums of the lanes of four vectors, each in the order of sum().
inline void sum4(float* out, Vec a, Vec b, Vec c, Vec d) {
  const auto halves = [](Vec x) { return vadd_f32(vget_low_f32(x.v), vget_high_f32(x.v)); };
  const float32x4_t ab = vcombine_f32(halves(a), halves(b));
  const float32x4_t cd = vcombine_f32(halves(c), halves(d));
  vst1q_f32(out, vpaddq_f32(ab, cd));
}

// p · 2^n for whole n from -127 to 128, in two factors, so that n = 128 does not overflow the
// exponent on the way.
inline Vec mul_power(Vec p, Vec n) {
  const int32x4_t whole = vcvtq_s32_f32(n.v);
  const int32x4_t low = vshrq_n_s32(whole, 1);
  const int32x4_t high = vsubq_s32(whole, low);
  const auto power = [](int32x4_t exponent) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23));
  };
  return {vmulq_f32(vmulq_f32(p.v, power(low)), power(high))};
}

#include "cpu/simd/lanes.h"

}  // namespace simd
