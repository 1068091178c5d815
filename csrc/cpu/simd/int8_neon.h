// The vocabulary of int8 kernels on NEON with the dot product of s8: four registers hold something
// of each of the 16 rows of a tile.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/simd/neon.h"

#if defined(PYVT_SIMDE)
#define PYVT_INLINE inline
#define PYVT_UNROLL _Pragma("GCC unroll 1")
#else
#define PYVT_INLINE inline __attribute__((always_inline))
#define PYVT_UNROLL _Pragma("GCC unroll 8")
#endif

namespace simd {

constexpr int kRegs = 4;

// A word of 32 bits of each row: four codes, or one integer.
struct Words {
  int32x4_t v[kRegs];
};

struct Floats {
  float32x4_t v[kRegs];
};

// f(register) for the registers of 16 rows.
template <typename T, typename F>
PYVT_INLINE T each(F&& f) {
  T result;
  PYVT_UNROLL
  for (int i = 0; i < kRegs; ++i) result.v[i] = f(i);
  return result;
}

PYVT_INLINE Words load_words(const void* p) {
  const uint8_t* from = static_cast<const uint8_t*>(p);
  return each<Words>([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(from + 16 * i)); });
}
PYVT_INLINE void store_words(void* p, Words a) {
  uint8_t* to = static_cast<uint8_t*>(p);
  PYVT_UNROLL
  for (int i = 0; i < kRegs; ++i) vst1q_u8(to + 16 * i, vreinterpretq_u8_s32(a.v[i]));
}

PYVT_INLINE Words zero_words() {
  return each<Words>([](int) { return vdupq_n_s32(0); });
}
PYVT_INLINE Words add(Words a, Words b) {
  return each<Words>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
PYVT_INLINE Words either(Words a, Words b) {
  return each<Words>([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
}
// Bytes and `bits`.
PYVT_INLINE Words keep_bits(Words a, int bits) {
  const int32x4_t mask = vreinterpretq_s32_u8(vdupq_n_u8(static_cast<uint8_t>(bits)));
  return each<Words>([&](int i) { return vandq_s32(a.v[i], mask); });
}
PYVT_INLINE int32x4_t shift(int32x4_t word, int n) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(word), vdupq_n_s32(n)));
}
PYVT_INLINE Words shift_right(Words a, int n) {
  return each<Words>([&](int i) { return shift(a.v[i], -n); });
}
PYVT_INLINE Words shift_left(Words a, int n) {
  return each<Words>([&](int i) { return shift(a.v[i], n); });
}

// Bytes in [0, 15] as places in a table of 16 bytes.
PYVT_INLINE Words look_up(const int8_t* table, Words a) {
  const int8x16_t levels = vld1q_s8(table);
  return each<Words>([&](int i) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(levels, vreinterpretq_u8_s32(a.v[i])));
  });
}

PYVT_INLINE Floats load_floats(const void* p) {
  const float* from = static_cast<const float*>(p);
  return each<Floats>([&](int i) { return vld1q_f32(from + 4 * i); });
}
PYVT_INLINE void store_floats(void* p, Floats a) {
  float* to = static_cast<float*>(p);
  PYVT_UNROLL
  for (int i = 0; i < kRegs; ++i) vst1q_f32(to + 4 * i, a.v[i]);
}
// 16 numbers of f16.
PYVT_INLINE Floats load_halves(const uint8_t* p) {
  return each<Floats>([&](int i) { return widen(vreinterpret_u16_u8(vld1_u8(p + 8 * i))); });
}
// Bytes 4i to 4i + 3 of 16 as s32.
PYVT_INLINE int32x4_t four_of(int8x16_t bytes, int i) {
  const int16x8_t halves = vmovl_s8(i < 2 ? vget_low_s8(bytes) : vget_high_s8(bytes));
  return vmovl_s16(i % 2 == 0 ? vget_low_s16(halves) : vget_high_s16(halves));
}
// 16 unsigned, 16 signed bytes.
PYVT_INLINE Floats load_u8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  return each<Floats>([&](int i) {
    const uint16x8_t halves = vmovl_u8(i < 2 ? vget_low_u8(bytes) : vget_high_u8(bytes));
    return vcvtq_f32_u32(vmovl_u16(i % 2 == 0 ? vget_low_u16(halves) : vget_high_u16(halves)));
  });
}
PYVT_INLINE Floats load_s8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  return each<Floats>([&](int i) { return vcvtq_f32_s32(four_of(bytes, i)); });
}

// The bytes of each row as e4m3 numbers. The bits of one as those of an f32 are a 2^-120th of it,
// subnormal ones too; magnitudes of 0x7f are NaN.
PYVT_INLINE void e4m3(Words a, Floats (&columns)[4]) {
  const int32x4_t mask = vdupq_n_s32(static_cast<int32_t>(0x87f00000u));
  const int32x4_t magnitude = vdupq_n_s32(0x07f00000);
  PYVT_UNROLL
  for (int i = 0; i < 4; ++i) {
    columns[i] = each<Floats>([&](int r) {
      const int32x4_t bits = vandq_s32(vshrq_n_s32(shift(a.v[r], 24 - 8 * i), 4), mask);
      const uint32x4_t nan = vceqq_s32(vandq_s32(bits, magnitude), magnitude);
      const uint32x4_t whole = vorrq_u32(vreinterpretq_u32_s32(bits), nan);
      return vmulq_n_f32(vreinterpretq_f32_u32(whole), 0x1p120f);
    });
  }
}

PYVT_INLINE Floats zero_floats() {
  return each<Floats>([](int) { return vdupq_n_f32(0.0f); });
}
PYVT_INLINE Floats to_floats(Words a) {
  return each<Floats>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
PYVT_INLINE Floats mul(Floats a, Floats b) {
  return each<Floats>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
PYVT_INLINE Floats mul(Floats a, float b) {
  return each<Floats>([&](int i) { return vmulq_n_f32(a.v[i], b); });
}
PYVT_INLINE Floats negate(Floats a) {
  return each<Floats>([&](int i) { return vnegq_f32(a.v[i]); });
}
// a · b + c, rounded once.
PYVT_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return each<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
PYVT_INLINE Floats fma(Floats a, float b, Floats c) {
  const float32x4_t all = vdupq_n_f32(b);
  return each<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], all); });
}

// Words 0 to 3 at `offset` of 8 rows: word j of all of them to `to` + j · `stride` bytes.
inline void transpose_four_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                                 int64_t stride) {
  transpose_words(rows, offset, to, stride);
  transpose_words(rows + 4, offset, to + 16, stride);
}

PYVT_INLINE void prefetch_line(const uint8_t* p) { __builtin_prefetch(p); }

// Sums of more rows do not fit beside the integer sums.
constexpr int kKeptRows = 2;
#include "cpu/simd/kept.h"

PYVT_INLINE int8x16_t broadcast_quad(const int8_t* quad) {
  int32_t bytes;
  std::memcpy(&bytes, quad, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

// Sums of products of codes, which are below 128 and so the same signed and unsigned, with
// activations.
using Dot = Words;

PYVT_INLINE void add_products(Dot& dot, Words codes, const int8_t* quad) {
  const int8x16_t x = broadcast_quad(quad);
  PYVT_UNROLL
  for (int i = 0; i < kRegs; ++i) {
    dot.v[i] = vdotq_s32(dot.v[i], vreinterpretq_s8_s32(codes.v[i]), x);
  }
}
PYVT_INLINE Dot products(Words codes, const int8_t* quad) {
  Dot dot = zero_words();
  add_products(dot, codes, quad);
  return dot;
}
PYVT_INLINE Dot start_at(int32_t term) {
  return each<Dot>([&](int) { return vdupq_n_s32(term); });
}

PYVT_INLINE Words total(Dot dot) { return dot; }
PYVT_INLINE Words total(Dot dot, Words factors) {
  return each<Words>([&](int i) { return vmulq_s32(dot.v[i], factors.v[i]); });
}

// 16 signed bytes as factors of `total`.
PYVT_INLINE Words factors_of(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  return each<Words>([&](int i) { return four_of(bytes, i); });
}

// -kOffset · sum of q, the value at which the Dot of codes less kOffset starts, for up to four rows
// of 32 activations, in kParts parts of columns.
template <int kRows, int kParts, int kOffset>
class OffsetTerms {
 public:
  PYVT_INLINE OffsetTerms(const int8_t* q, int64_t ldq) {
    const int8x16_t factor = vdupq_n_s8(-kOffset);
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const auto dot = [&](int32x4_t sum, int half) {
        return vdotq_s32(sum, factor, vld1q_s8(q + m * ldq + 16 * half));
      };
      const int32x4_t first = dot(vdupq_n_s32(0), 0);
      terms_[m] = vaddvq_s32(kParts == 2 ? first : dot(first, 1));
      if (kParts == 2) terms_[(kParts - 1) * kRows + m] = vaddvq_s32(dot(vdupq_n_s32(0), 1));
    }
  }

  PYVT_INLINE int32_t at(int part, int m) const { return terms_[part * kRows + m]; }

 private:
  int32_t terms_[kRows * kParts];
};

template <int kRows, int kParts>
class OffsetTerms<kRows, kParts, 0> {
 public:
  PYVT_INLINE OffsetTerms(const int8_t*, int64_t) {}
  PYVT_INLINE int32_t at(int, int) const { return 0; }
};

// Signed codes. The dot product takes them as they are: both words hold them, in panels too.
struct SignedCodes {
  Words magnitude, sign;
};

PYVT_INLINE SignedCodes with_signs(Words codes) { return {codes, codes}; }
PYVT_INLINE void add_signed(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  add_products(sum, codes.sign, quad);
}
PYVT_INLINE SignedCodes with_mask(Words codes) { return {codes, codes}; }
PYVT_INLINE void add_flipped(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  add_products(sum, codes.sign, quad);
}
PYVT_INLINE void add_negative(Words&, const SignedCodes&) {}

// 32 activations: their largest magnitude as bits of f32, where a NaN is the largest of all; then
// the codes rint(x · inverse), whose sum is returned.
constexpr int kGroupVecs = 32 / kLanes;

inline uint32_t largest_bits(const Vec (&x)[kGroupVecs]) {
  uint32x4_t most = vdupq_n_u32(0);
  for (const Vec& a : x) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(a.v)));
  return vmaxvq_u32(most);
}

inline int32_t store_codes(int8_t* codes, const Vec (&x)[kGroupVecs], float inverse) {
  int32x4_t sum = vdupq_n_s32(0);
  for (int i = 0; i < kGroupVecs; ++i) {
    const Vec code = round({vmulq_n_f32(x[i].v, inverse)});
    sum = vaddq_s32(sum, vcvtq_s32_f32(code.v));
    store_i8(codes + i * kLanes, code);
  }
  return vaddvq_s32(sum);
}

#if defined(PYVT_ISA_I8MM)
#include "cpu/simd/int8_i8mm.h"
#endif

}  // namespace simd
