// The vocabulary of int8 kernels on AVX-512 with VNNI: a register holds something of each of the 16
// rows of a tile, and one instruction adds four products of u8 and s8 to an s32 of each row.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/simd/avx512.h"

#if defined(PYVT_SIMDE)
#define PYVT_INLINE inline
#define PYVT_UNROLL _Pragma("GCC unroll 1")
#else
#define PYVT_INLINE inline __attribute__((always_inline))
#define PYVT_UNROLL _Pragma("GCC unroll 8")
#endif

namespace simd {

// A word of 32 bits of each row: four codes, or one integer.
struct Words {
  __m512i v;
};

struct Floats {
  __m512 v;
};

PYVT_INLINE Words load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
PYVT_INLINE void store_words(void* p, Words a) { _mm512_storeu_si512(p, a.v); }

PYVT_INLINE Words zero_words() { return {_mm512_setzero_si512()}; }
PYVT_INLINE Words add(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
PYVT_INLINE Words either(Words a, Words b) { return {_mm512_or_si512(a.v, b.v)}; }
// Bytes and `bits`.
PYVT_INLINE Words keep_bits(Words a, int bits) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(bits)))};
}
PYVT_INLINE Words shift_right(Words a, int n) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(n))};
}
PYVT_INLINE Words shift_left(Words a, int n) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(n))};
}

// Bytes in [0, 15] as places in a table of 16 bytes.
PYVT_INLINE Words look_up(const int8_t* table, Words a) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), a.v)};
}

PYVT_INLINE Floats load_floats(const void* p) { return {_mm512_loadu_ps(p)}; }
PYVT_INLINE void store_floats(void* p, Floats a) { _mm512_storeu_ps(p, a.v); }
// 16 numbers of f16.
PYVT_INLINE Floats load_halves(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// 16 unsigned, 16 signed bytes.
PYVT_INLINE Floats load_u8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
PYVT_INLINE Floats load_s8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

// The bytes of each row as e4m3 numbers. The bits of one as those of an f32 are a 2^-120th of it,
// subnormal ones too; magnitudes of 0x7f are NaN.
PYVT_INLINE void e4m3(Words a, Floats (&columns)[4]) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x87f00000u));
  const __m512i magnitude = _mm512_set1_epi32(0x07f00000);
  PYVT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i top = shift_left(a, 24 - 8 * i).v;
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(top, 4), mask);
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, magnitude), magnitude);
    const __m512 number = _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, is_nan, -1));
    columns[i] = {_mm512_mul_ps(number, _mm512_set1_ps(0x1p120f))};
  }
}

PYVT_INLINE Floats zero_floats() { return {_mm512_setzero_ps()}; }
PYVT_INLINE Floats to_floats(Words a) { return {_mm512_cvtepi32_ps(a.v)}; }
PYVT_INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
PYVT_INLINE Floats mul(Floats a, float b) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))}; }
PYVT_INLINE Floats negate(Floats a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
// a · b + c, rounded once.
PYVT_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PYVT_INLINE Floats fma(Floats a, float b, Floats c) {
  return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(b), c.v)};
}

#include "cpu/simd/words_x86.h"
//
// The sums of all rows fit in 32 registers.
constexpr int kKeptRows = 8;
#include "cpu/simd/kept.h"

PYVT_INLINE __m512i broadcast_quad(const int8_t* quad) {
  int32_t bytes;
  std::memcpy(&bytes, quad, 4);
  return _mm512_set1_epi32(bytes);
}

// Sums of products of unsigned codes with activations.
using Dot = Words;

PYVT_INLINE void add_products(Dot& dot, Words codes, const int8_t* quad) {
  dot.v = _mm512_dpbusd_epi32(dot.v, codes.v, broadcast_quad(quad));
}
PYVT_INLINE Dot products(Words codes, const int8_t* quad) {
  Dot dot = zero_words();
  add_products(dot, codes, quad);
  return dot;
}
PYVT_INLINE Dot start_at(int32_t term) { return {_mm512_set1_epi32(term)}; }

PYVT_INLINE Words total(Dot dot) { return dot; }
PYVT_INLINE Words total(Dot dot, Words factors) { return {_mm512_mullo_epi32(dot.v, factors.v)}; }

// 16 signed bytes as factors of `total`.
PYVT_INLINE Words factors_of(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

// kBytes activations of kRows rows, 128 added: as u8 they are multiplied by signed codes.
template <int kRows, int kBytes>
class Shifted {
 public:
  static_assert(kBytes == 32 || kBytes == 16, "a block or half of one");

  PYVT_INLINE Shifted(const int8_t* q, int64_t ldq) {
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const void* from = q + m * ldq;
      void* to = q_ + m * kBytes;
      if constexpr (kBytes == 32) {
        const __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(from));
        _mm256_store_si256(static_cast<__m256i*>(to), _mm256_xor_si256(x, _mm256_set1_epi8(-128)));
      } else {
        const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(from));
        _mm_store_si128(static_cast<__m128i*>(to), _mm_xor_si128(x, _mm_set1_epi8(-128)));
      }
    }
    // Quads are broadcast from memory; the compiler would shuffle them out of registers.
    asm("" : "+m"(q_));
  }
  PYVT_INLINE const uint8_t* quad(int m, int j) const { return q_ + m * kBytes + j * 4; }

 private:
  alignas(64) uint8_t q_[kRows * kBytes];
};

PYVT_INLINE void add_shifted(Words& sum, Words codes, const uint8_t* quad) {
  const __m512i x = broadcast_quad(reinterpret_cast<const int8_t*>(quad));
  sum.v = _mm512_dpbusd_epi32(sum.v, x, codes.v);
}
PYVT_INLINE Words less(Words codes, int offset) {
  return {_mm512_sub_epi8(codes.v, _mm512_set1_epi8(static_cast<char>(offset)))};
}
// Takes 128 · the codes off a sum.
PYVT_INLINE void subtract_shift(Words& sum, Words codes) {
  const __m512i shift = _mm512_set1_epi8(-128);
  const __m512i more = _mm512_dpbusd_epi32(_mm512_setzero_si512(), shift, codes.v);
  sum.v = _mm512_sub_epi32(sum.v, more);
}

// -kOffset · sum of q, the value at which the Dot of codes less kOffset starts, for kRows rows of
// 32 activations, in kParts parts of columns.
template <int kRows, int kParts, int kOffset>
class OffsetTerms {
 public:
  PYVT_INLINE OffsetTerms(const int8_t* q, int64_t ldq) {
    PYVT_UNROLL
    for (int m0 = 0; m0 < kRows; m0 += 4) {
      __m256i rows[4];
      PYVT_UNROLL
      for (int m = 0; m < 4; ++m) {
        const int64_t row = m0 + m < kRows ? m0 + m : m0;
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + row * ldq));
        rows[m] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(kOffset), x);
      }
      const __m256i parts = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[0], rows[1]),
                                              _mm256_hadd_epi32(rows[2], rows[3]));
      const __m128i first = _mm256_castsi256_si128(parts);
      const __m128i second = _mm256_extracti128_si256(parts, 1);
      put(0, m0, kParts == 2 ? first : _mm_add_epi32(first, second));
      if (kParts == 2) put(kParts - 1, m0, second);
    }
  }

  PYVT_INLINE int32_t at(int part, int m) const { return terms_[part * kStep + m]; }

 private:
  static constexpr int kStep = (kRows + 3) / 4 * 4;

  PYVT_INLINE void put(int part, int m0, __m128i sums) {
    __m128i* to = reinterpret_cast<__m128i*>(terms_ + part * kStep + m0);
    _mm_store_si128(to, _mm_sub_epi32(_mm_setzero_si128(), sums));
  }

  alignas(32) int32_t terms_[kStep * kParts];
};

template <int kRows, int kParts>
class OffsetTerms<kRows, kParts, 0> {
 public:
  PYVT_INLINE OffsetTerms(const int8_t*, int64_t) {}
  PYVT_INLINE int32_t at(int, int) const { return 0; }
};

// Signed codes as magnitudes and the codes themselves, or a mask of their signs.
struct SignedCodes {
  Words magnitude, sign;
};

PYVT_INLINE SignedCodes with_signs(Words codes) { return {{_mm512_abs_epi8(codes.v)}, codes}; }
PYVT_INLINE void add_signed(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  const __m512i x = broadcast_quad(quad);
  const __mmask64 is_negative = _mm512_movepi8_mask(codes.sign.v);
  const __m512i flipped = _mm512_mask_sub_epi8(x, is_negative, _mm512_setzero_si512(), x);
  sum.v = _mm512_dpbusd_epi32(sum.v, codes.magnitude.v, flipped);
}

PYVT_INLINE SignedCodes with_mask(Words codes) {
  return {{_mm512_abs_epi8(codes.v)}, {_mm512_movm_epi8(_mm512_movepi8_mask(codes.v))}};
}
// -x = (x ^ -1) + 1: the products with flipped activations, less the magnitudes of negative codes.
PYVT_INLINE void add_flipped(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  const __m512i flipped = _mm512_xor_si512(broadcast_quad(quad), codes.sign.v);
  sum.v = _mm512_dpbusd_epi32(sum.v, codes.magnitude.v, flipped);
}
// Adds the magnitudes of negative codes.
PYVT_INLINE void add_negative(Words& sum, const SignedCodes& codes) {
  const __m512i negative = _mm512_and_si512(codes.magnitude.v, codes.sign.v);
  sum.v = _mm512_dpbusd_epi32(sum.v, negative, _mm512_set1_epi8(1));
}

// 32 activations: their largest magnitude as bits of f32, where a NaN is the largest of all; then
// the codes rint(x · inverse), whose sum is returned.
constexpr int kGroupVecs = 32 / kLanes;

inline uint32_t largest_bits(const Vec (&x)[kGroupVecs]) {
  const auto magnitude = [](Vec a) { return _mm512_castps_si512(abs(a).v); };
  const __m512i most = _mm512_max_epu32(magnitude(x[0]), magnitude(x[1]));
  const __m256i half =
      _mm256_max_epu32(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  return max_lane(_mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

inline int32_t store_codes(int8_t* codes, const Vec (&x)[kGroupVecs], float inverse) {
  const Vec factor = set1(inverse);
  const __m512i first = _mm512_cvtps_epi32(mul(x[0], factor).v);
  const __m512i second = _mm512_cvtps_epi32(mul(x[1], factor).v);
  __m128i* to = reinterpret_cast<__m128i*>(codes);
  _mm_storeu_si128(to, _mm512_cvtepi32_epi8(first));
  _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(second));
  const __m512i sums = _mm512_add_epi32(first, second);
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
  return add_lanes(_mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

}  // namespace simd
