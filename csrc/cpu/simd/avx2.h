// The vector vocabulary on AVX2, FMA and F16C: eight lanes of f32.
#pragma once

#include <immintrin.h>

#include "cpu/simd/types.h"

namespace simd {

constexpr int kLanes = 8;

struct Vec {
  __m256 v;
};

inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline Vec zero() { return {_mm256_setzero_ps()}; }

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }

inline Vec load(const Bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}

// Round to nearest even; a NaN keeps its sign and becomes quiet.
inline void store(Bf16* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

inline Vec load(const F16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store(F16* p, Vec a) {
  const __m128i half = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
}

// The bits of an e4m3 number as those of an f16 are a 256th of it; magnitudes of 0x7f are NaN.
inline Vec load(const E4m3* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i tops = _mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), codes), 1);
  const __m128i bits = _mm_and_si128(tops, _mm_set1_epi16(static_cast<short>(0xbf80)));
  const __m128i magnitude = _mm_set1_epi16(0x3f80);
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(bits, magnitude), magnitude);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(bits, nan)), _mm256_set1_ps(256.0f))};
}

// Member kIndex of each of kLanes pairs that lie side by side.
template <int kIndex>
inline Vec load_of_pairs(const Bf16* p) {
  // Loaded anew for each member: a pair kept from one to the other makes sums of 6 rows spill.
  if (kIndex == 1) asm("" : "+r"(p));
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(kIndex == 0 ? _mm256_slli_epi32(pairs, 16)
                                          : _mm256_and_si256(pairs, high))};
}
template <int kIndex>
inline Vec load_of_pairs(const F16* p) {
  if (kIndex == 1) asm("" : "+r"(p));
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i words = kIndex == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff))
                                    : _mm256_srli_epi32(pairs, 16);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return {_mm256_cvtph_ps(halves)};
}

// Words of 32 bits: to[j * stride] of lane i is word j of rows[i], for kLanes words and rows.
inline void transpose_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                            int64_t stride) {
  const auto row = [&](int i) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + offset));
  };
  __m256 halves[8];
  for (int i = 0; i < 8; i += 2) {
    const __m256 even = row(i), odd = row(i + 1);
    halves[i] = _mm256_unpacklo_ps(even, odd);
    halves[i + 1] = _mm256_unpackhi_ps(even, odd);
  }
  const auto store_word = [&](int j, __m256 word) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to + j * stride), word);
  };
  for (int i = 0; i < 2; ++i) {
    const __m256 low = _mm256_shuffle_ps(halves[i], halves[i + 2], 0x44);
    const __m256 low_next = _mm256_shuffle_ps(halves[i], halves[i + 2], 0xee);
    const __m256 high = _mm256_shuffle_ps(halves[i + 4], halves[i + 6], 0x44);
    const __m256 high_next = _mm256_shuffle_ps(halves[i + 4], halves[i + 6], 0xee);
    store_word(2 * i, _mm256_permute2f128_ps(low, high, 0x20));
    store_word(2 * i + 1, _mm256_permute2f128_ps(low_next, high_next, 0x20));
    store_word(2 * i + 4, _mm256_permute2f128_ps(low, high, 0x31));
    store_word(2 * i + 5, _mm256_permute2f128_ps(low_next, high_next, 0x31));
  }
}

inline void prefetch(const void* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Whole numbers in [-128, 127].
inline void store_i8(int8_t* p, Vec a) {
  const __m256i words = _mm256_cvtps_epi32(a.v);
  const __m128i halves =
      _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}

inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// To the nearest whole number, halves to even.
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The magnitude of a with the sign of b.
inline Vec copy_sign(Vec a, Vec b) {
  return {_mm256_or_ps(abs(a).v, _mm256_and_ps(_mm256_set1_ps(-0.0f), b.v))};
}

// One truth value for each lane; a comparison with NaN is false.
struct Mask {
  __m256 v;
};

inline Mask greater(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask equal(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask is_nan(Vec a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
inline Mask either(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
// a where the mask holds, else b.
inline Vec blend(Mask mask, Vec a, Vec b) { return {_mm256_blendv_ps(b.v, a.v, mask.v)}; }
inline bool any(Mask mask) { return _mm256_movemask_ps(mask.v) != 0; }
inline int count(Mask mask) { return __builtin_popcount(_mm256_movemask_ps(mask.v)); }
// The lowest lane that holds; one must.
inline int first(Mask mask) { return __builtin_ctz(_mm256_movemask_ps(mask.v)); }

// Lanes in the fixed order ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float sum(Vec a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float max_lane(Vec a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// The sums of the lanes of four vectors, each in the fixed order
// ((0+4)+(2+6)) + ((1+5)+(3+7)), as sum() has it.
inline void sum4(float* out, Vec a, Vec b, Vec c, Vec d) {
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a.v, b.v, 0x20), _mm256_permute2f128_ps(a.v, b.v, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c.v, d.v, 0x20), _mm256_permute2f128_ps(c.v, d.v, 0x31));
  const __m256 pairs =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 odd = _mm256_movehdup_ps(pairs);
  const __m256 sums = _mm256_add_ps(pairs, odd);  // a _ c _ | b _ d _
  const __m128 ac = _mm256_castps256_ps128(sums), bd = _mm256_extractf128_ps(sums, 1);
  const __m128 low = _mm_unpacklo_ps(ac, bd), high = _mm_unpackhi_ps(ac, bd);
  _mm_storeu_ps(out, _mm_movelh_ps(low, high));
}

// p · 2^n for whole n from -127 to 128, in two factors, so that n = 128 does not overflow the
// exponent on the way.
inline Vec mul_power(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i low = _mm256_srai_epi32(whole, 1);
  const __m256i high = _mm256_sub_epi32(whole, low);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 scale_low = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(low, bias), 23));
  const __m256 scale_high =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(high, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(p.v, scale_low), scale_high)};
}

#include "cpu/simd/lanes.h"

}  // namespace simd
