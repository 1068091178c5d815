// The vector vocabulary on AVX-512 (F, BW, VL, DQ): sixteen lanes of f32.
#pragma once

#include "cpu/simd/types.h"

namespace simd {

constexpr int kLanes = 16;

struct Vec {
  __m512 v;
};

inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec zero() { return {_mm512_setzero_ps()}; }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }

inline Vec load(const Bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

// Round to nearest even; a NaN keeps its sign and becomes quiet. vcvtneps2bf16 is not used: it
// takes subnormals for zero.
inline void store(Bf16* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_srli_epi32(_mm512_mask_mov_epi32(up, is_nan, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(kept));
}

inline Vec load(const F16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store(F16* p, Vec a) {
  const __m256i half = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}

// The bits of an e4m3 number as those of an f16 are a 256th of it; magnitudes of 0x7f are NaN.
inline Vec load(const E4m3* p) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i tops = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 1);
  const __m256i bits = _mm256_and_si256(tops, _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, magnitude), magnitude);
  return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(bits, nan)), _mm512_set1_ps(256.0f))};
}

// Member kIndex of each of kLanes pairs that lie side by side.
template <int kIndex>
inline Vec load_of_pairs(const Bf16* p) {
  const __m512i pairs = _mm512_loadu_si512(p);
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(kIndex == 0 ? _mm512_slli_epi32(pairs, 16)
                                          : _mm512_and_si512(pairs, high))};
}
template <int kIndex>
inline Vec load_of_pairs(const F16* p) {
  const __m512i pairs = _mm512_loadu_si512(p);
  return {
      _mm512_cvtph_ps(_mm512_cvtepi32_epi16(kIndex == 0 ? pairs : _mm512_srli_epi32(pairs, 16)))};
}

// Words of 32 bits: to[j * stride] of lane i is word j of rows[i], for kLanes words and rows.
inline void transpose_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                            int64_t stride) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    const __m512i even = _mm512_loadu_si512(rows[i] + offset);
    const __m512i odd = _mm512_loadu_si512(rows[i + 1] + offset);
    pairs[i] = _mm512_unpacklo_epi32(even, odd);
    pairs[i + 1] = _mm512_unpackhi_epi32(even, odd);
  }
  // Quarter q of fours[4i + c] is word 4q + c of rows 4i to 4i + 3.
  for (int i = 0; i < 16; i += 4) {
    for (int c = 0; c < 2; ++c) {
      fours[i + 2 * c] = _mm512_unpacklo_epi64(pairs[i + c], pairs[i + c + 2]);
      fours[i + 2 * c + 1] = _mm512_unpackhi_epi64(pairs[i + c], pairs[i + c + 2]);
    }
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xee);
    const __m512i e = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xee);
    _mm512_storeu_si512(to + c * stride, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(to + (4 + c) * stride, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(to + (8 + c) * stride, _mm512_shuffle_i32x4(d, e, 0x88));
    _mm512_storeu_si512(to + (12 + c) * stride, _mm512_shuffle_i32x4(d, e, 0xdd));
  }
}

inline void prefetch(const void* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Whole numbers in [-128, 127].
inline void store_i8(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

inline Vec abs(Vec a) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), magnitude))};
}
// To the nearest whole number, halves to even.
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }

inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The magnitude of a with the sign of b.
inline Vec copy_sign(Vec a, Vec b) {
  const __m512 sign = _mm512_and_ps(_mm512_set1_ps(-0.0f), b.v);
  return {_mm512_or_ps(abs(a).v, sign)};
}

// One truth value for each lane; a comparison with NaN is false.
struct Mask {
  __mmask16 v;
};

inline Mask greater(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask equal(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask is_nan(Vec a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline Mask either(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
// a where the mask holds, else b.
inline Vec blend(Mask mask, Vec a, Vec b) { return {_mm512_mask_mov_ps(b.v, mask.v, a.v)}; }
inline bool any(Mask mask) { return mask.v != 0; }
inline int count(Mask mask) { return __builtin_popcount(mask.v); }
// The lowest lane that holds; one must.
inline int first(Mask mask) { return __builtin_ctz(mask.v); }

// Four lanes, each the sum of lanes i, i + 8, i + 4, i + 12 as (i + i8) + (i4 + i12).
inline __m128 sum_quarters(Vec a) {
  const __m256 low = _mm512_castps512_ps256(a.v);
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 half = _mm256_add_ps(low, high);
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Halves are added to halves until one lane is left.
inline float sum(Vec a) {
  __m128 quarter = sum_quarters(a);
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

inline float max_lane(Vec a) {
  const __m256 low = _mm512_castps512_ps256(a.v);
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 half = _mm256_max_ps(low, high);
  __m128 top = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  top = _mm_max_ps(top, _mm_movehl_ps(top, top));
  return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
}

// The sums of the lanes of four vectors, each in the order of sum().
inline void sum4(float* out, Vec a, Vec b, Vec c, Vec d) {
  const __m128 qa = sum_quarters(a), qb = sum_quarters(b);
  const __m128 qc = sum_quarters(c), qd = sum_quarters(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

// p · 2^n for whole n from -127 to 128, in two factors, so that n = 128 does not overflow the
// exponent on the way.
inline Vec mul_power(Vec p, Vec n) {
  const __m512i whole = _mm512_cvtps_epi32(n.v);
  const __m512i low = _mm512_srai_epi32(whole, 1);
  const __m512i high = _mm512_sub_epi32(whole, low);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512 scale_low = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(low, bias), 23));
  const __m512 scale_high =
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(high, bias), 23));
  return {_mm512_mul_ps(_mm512_mul_ps(p.v, scale_low), scale_high)};
}

#include "cpu/simd/lanes.h"

}  // namespace simd
