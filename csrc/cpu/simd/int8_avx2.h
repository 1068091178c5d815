// The vocabulary of int8 kernels on AVX2: vectors that hold something of each of the 16 rows of a
// tile, in two registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/simd/avx2.h"

#define PYVT_INLINE inline __attribute__((always_inline))
#define PYVT_UNROLL _Pragma("GCC unroll 8")

namespace simd {

// A word of 32 bits of each row: four codes, or one integer.
struct Words {
  __m256i v0, v1;
};

struct Floats {
  __m256 v0, v1;
};

PYVT_INLINE Words load_words(const void* p) {
  const __m256i* from = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
PYVT_INLINE void store_words(void* p, Words a) {
  __m256i* to = static_cast<__m256i*>(p);
  _mm256_storeu_si256(to, a.v0);
  _mm256_storeu_si256(to + 1, a.v1);
}

PYVT_INLINE Words zero_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PYVT_INLINE Words add(Words a, Words b) {
  return {_mm256_add_epi32(a.v0, b.v0), _mm256_add_epi32(a.v1, b.v1)};
}
PYVT_INLINE Words either(Words a, Words b) {
  return {_mm256_or_si256(a.v0, b.v0), _mm256_or_si256(a.v1, b.v1)};
}
// Bytes and `bits`.
PYVT_INLINE Words keep_bits(Words a, int bits) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(bits));
  return {_mm256_and_si256(a.v0, mask), _mm256_and_si256(a.v1, mask)};
}
PYVT_INLINE Words shift_right(Words a, int n) {
  return {_mm256_srli_epi32(a.v0, n), _mm256_srli_epi32(a.v1, n)};
}
PYVT_INLINE Words shift_left(Words a, int n) {
  return {_mm256_slli_epi32(a.v0, n), _mm256_slli_epi32(a.v1, n)};
}

// Bytes in [0, 15] as places in a table of 16 bytes.
PYVT_INLINE Words look_up(const int8_t* table, Words a) {
  const __m256i levels =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(levels, a.v0), _mm256_shuffle_epi8(levels, a.v1)};
}

PYVT_INLINE Floats load_floats(const void* p) {
  const float* from = static_cast<const float*>(p);
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
PYVT_INLINE void store_floats(void* p, Floats a) {
  float* to = static_cast<float*>(p);
  _mm256_storeu_ps(to, a.v0);
  _mm256_storeu_ps(to + 8, a.v1);
}
// 16 numbers of f16.
PYVT_INLINE Floats load_halves(const uint8_t* p) {
  const __m128i* from = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}
// 16 unsigned, 16 signed bytes.
PYVT_INLINE Floats load_u8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
PYVT_INLINE Floats load_s8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

// The bytes of each row as e4m3 numbers. The bits of one as those of an f32 are a 2^-120th of it,
// subnormal ones too; magnitudes of 0x7f are NaN.
PYVT_INLINE void e4m3(Words a, Floats (&columns)[4]) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
  const __m256i magnitude = _mm256_set1_epi32(0x07f00000);
  const auto number = [&](__m256i top) {
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi32(top, 4), mask);
    const __m256i nan = _mm256_cmpeq_epi32(_mm256_and_si256(bits, magnitude), magnitude);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(bits, nan)), _mm256_set1_ps(0x1p120f));
  };
  PYVT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Words top = shift_left(a, 24 - 8 * i);
    columns[i] = {number(top.v0), number(top.v1)};
  }
}

PYVT_INLINE Floats zero_floats() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PYVT_INLINE Floats to_floats(Words a) {
  return {_mm256_cvtepi32_ps(a.v0), _mm256_cvtepi32_ps(a.v1)};
}
PYVT_INLINE Floats mul(Floats a, Floats b) {
  return {_mm256_mul_ps(a.v0, b.v0), _mm256_mul_ps(a.v1, b.v1)};
}
PYVT_INLINE Floats mul(Floats a, float b) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_mul_ps(a.v0, all), _mm256_mul_ps(a.v1, all)};
}
PYVT_INLINE Floats negate(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.v0, sign), _mm256_xor_ps(a.v1, sign)};
}
// a · b + c, rounded once.
PYVT_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.v0, b.v0, c.v0), _mm256_fmadd_ps(a.v1, b.v1, c.v1)};
}
PYVT_INLINE Floats fma(Floats a, float b, Floats c) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_fmadd_ps(a.v0, all, c.v0), _mm256_fmadd_ps(a.v1, all, c.v1)};
}

#include "cpu/simd/words_x86.h"
//
// Sums of more rows do not fit beside the integer sums.
constexpr int kKeptRows = 2;
#include "cpu/simd/kept.h"

// The compiler regroups integer adds of an unrolled block and then spills every product; an
// accumulation that passes through here stays where it is written.
PYVT_INLINE void pin(__m256i& a) { asm("" : "+x"(a)); }

PYVT_INLINE __m256i broadcast_quad(const int8_t* quad) {
  int32_t bytes;
  std::memcpy(&bytes, quad, 4);
  return _mm256_set1_epi32(bytes);
}

// Sums of products of unsigned codes with activations, as two s16 of each row: columns 0 and 1 of
// the quads, and 2 and 3. They wrap, so that only the whole sum has to fit.
struct Dot {
  __m256i v0, v1;
};

PYVT_INLINE Dot products(Words codes, const int8_t* quad) {
  const __m256i x = broadcast_quad(quad);
  return {_mm256_maddubs_epi16(codes.v0, x), _mm256_maddubs_epi16(codes.v1, x)};
}
PYVT_INLINE void add_products(Dot& dot, Words codes, const int8_t* quad) {
  const Dot next = products(codes, quad);
  dot.v0 = _mm256_add_epi16(dot.v0, next.v0);
  dot.v1 = _mm256_add_epi16(dot.v1, next.v1);
  pin(dot.v0);
  pin(dot.v1);
}
PYVT_INLINE Dot start_at(int32_t term) {
  const __m256i all = _mm256_set1_epi32(term);
  return {all, all};
}

PYVT_INLINE Words total(Dot dot) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(dot.v0, ones), _mm256_madd_epi16(dot.v1, ones)};
}
PYVT_INLINE Words total(Dot dot, Words factors) {
  return {_mm256_madd_epi16(dot.v0, factors.v0), _mm256_madd_epi16(dot.v1, factors.v1)};
}

// 16 signed bytes as factors of `total`: each twice, as s16.
PYVT_INLINE Words factors_of(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i low = _mm_unpacklo_epi8(bytes, bytes), high = _mm_unpackhi_epi8(bytes, bytes);
  const auto widen = [](__m128i pairs) { return _mm256_cvtepi8_epi16(pairs); };
  return {widen(low), widen(high)};
}

// -kOffset · sum of q, the value at which the Dot of codes less kOffset starts, for up to four rows
// of 32 activations, in kParts parts of columns.
template <int kRows, int kParts, int kOffset>
class OffsetTerms {
 public:
  static_assert(32 / kParts * kOffset * 127 <= 2 * 32767, "a term has to fit in two s16");

  PYVT_INLINE OffsetTerms(const int8_t* q, int64_t ldq) {
    const __m256i offset = _mm256_set1_epi8(kOffset);
    __m256i rows[4];
    PYVT_UNROLL
    for (int m = 0; m < 4; ++m) {
      const int64_t row = m < kRows ? m : 0;
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + row * ldq));
      rows[m] = _mm256_maddubs_epi16(offset, x);
    }
    // Quads of two rows side by side are added, then those of four: a word of each row is left.
    const __m256i first = _mm256_add_epi16(_mm256_unpacklo_epi32(rows[0], rows[1]),
                                           _mm256_unpackhi_epi32(rows[0], rows[1]));
    const __m256i second = _mm256_add_epi16(_mm256_unpacklo_epi32(rows[2], rows[3]),
                                            _mm256_unpackhi_epi32(rows[2], rows[3]));
    const __m256i parts = _mm256_add_epi16(_mm256_unpacklo_epi64(first, second),
                                           _mm256_unpackhi_epi64(first, second));
    if (kParts == 2) {
      const __m256i terms = _mm256_sub_epi16(_mm256_setzero_si256(), parts);
      _mm256_store_si256(reinterpret_cast<__m256i*>(terms_), terms);
    } else {
      const __m128i sum =
          _mm_add_epi16(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
      _mm_store_si128(reinterpret_cast<__m128i*>(terms_), _mm_sub_epi16(_mm_setzero_si128(), sum));
    }
  }

  PYVT_INLINE int32_t at(int part, int m) const { return terms_[part * 4 + m]; }

 private:
  alignas(32) int32_t terms_[4 * kParts];
};

template <int kRows, int kParts>
class OffsetTerms<kRows, kParts, 0> {
 public:
  PYVT_INLINE OffsetTerms(const int8_t*, int64_t) {}
  PYVT_INLINE int32_t at(int, int) const { return 0; }
};

// Signed codes as magnitudes and what the signs of activations are taken from: the codes themselves
// or a mask. maddubs cannot saturate: 2 · 128 · 127 = 32512.
struct SignedCodes {
  Words magnitude, sign;
};

PYVT_INLINE SignedCodes with_signs(Words codes) {
  return {{_mm256_abs_epi8(codes.v0), _mm256_abs_epi8(codes.v1)}, codes};
}
PYVT_INLINE void add_signed(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  const __m256i x = broadcast_quad(quad), ones = _mm256_set1_epi16(1);
  __m256i t0 = _mm256_sign_epi8(x, codes.sign.v0), t1 = _mm256_sign_epi8(x, codes.sign.v1);
  t0 = _mm256_maddubs_epi16(codes.magnitude.v0, t0);
  t1 = _mm256_maddubs_epi16(codes.magnitude.v1, t1);
  t0 = _mm256_madd_epi16(t0, ones);
  t1 = _mm256_madd_epi16(t1, ones);
  sum.v0 = _mm256_add_epi32(sum.v0, t0);
  sum.v1 = _mm256_add_epi32(sum.v1, t1);
  pin(sum.v0);
  pin(sum.v1);
}

PYVT_INLINE SignedCodes with_mask(Words codes) {
  const __m256i zero = _mm256_setzero_si256();
  return {{_mm256_abs_epi8(codes.v0), _mm256_abs_epi8(codes.v1)},
          {_mm256_cmpgt_epi8(zero, codes.v0), _mm256_cmpgt_epi8(zero, codes.v1)}};
}
// -x = (x ^ -1) + 1: the products with flipped activations, less the magnitudes of negative codes.
PYVT_INLINE void add_flipped(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  const __m256i x = broadcast_quad(quad), ones = _mm256_set1_epi16(1);
  __m256i t0 = _mm256_xor_si256(x, codes.sign.v0), t1 = _mm256_xor_si256(x, codes.sign.v1);
  t0 = _mm256_maddubs_epi16(codes.magnitude.v0, t0);
  t1 = _mm256_maddubs_epi16(codes.magnitude.v1, t1);
  t0 = _mm256_madd_epi16(t0, ones);
  t1 = _mm256_madd_epi16(t1, ones);
  sum.v0 = _mm256_add_epi32(sum.v0, t0);
  sum.v1 = _mm256_add_epi32(sum.v1, t1);
  pin(sum.v0);
  pin(sum.v1);
}
// Adds the magnitudes of negative codes.
PYVT_INLINE void add_negative(Words& sum, const SignedCodes& codes) {
  const auto magnitudes = [](__m256i magnitude, __m256i mask) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_and_si256(magnitude, mask), _mm256_set1_epi8(1));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  };
  sum.v0 = _mm256_add_epi32(sum.v0, magnitudes(codes.magnitude.v0, codes.sign.v0));
  sum.v1 = _mm256_add_epi32(sum.v1, magnitudes(codes.magnitude.v1, codes.sign.v1));
}

// Four registers of activations as 32 codes: their largest magnitude as bits of f32, where a NaN is
// the largest of all; then the codes rint(x · inverse), whose sum is returned.
constexpr int kGroupVecs = 32 / kLanes;

inline uint32_t largest_bits(const Vec (&x)[kGroupVecs]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (const Vec& a : x) {
    most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(a.v), magnitude));
  }
  const __m128i half =
      _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  return max_lane(half);
}

inline int32_t store_codes(int8_t* codes, const Vec (&x)[kGroupVecs], float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const auto code = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(x[i].v, factor)); };
  const __m256i halves = _mm256_packs_epi16(_mm256_packs_epi32(code(0), code(1)),
                                            _mm256_packs_epi32(code(2), code(3)));
  // Packing works on each half of a register.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i all = _mm256_permutevar8x32_epi32(halves, order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), all);
  const __m256i sums =
      _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), all), _mm256_set1_epi16(1));
  return add_lanes(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}

}  // namespace simd
