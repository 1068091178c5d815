// The vocabulary of int8 kernels in portable C++: the names of int8_avx2.h, and to the bit the same
// results, since integer sums are exact and f32 steps are the same.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/simd/scalar.h"
#include "pyvt/half.h"

#define PYVT_INLINE inline
// Loops stay loops: unrolled over rows, quads and sub-blocks they would be megabytes of code.
#define PYVT_UNROLL _Pragma("GCC unroll 1")

namespace simd {

constexpr int kRowsOfTile = 16;

// A word of 32 bits of each row: four codes, or one integer.
struct Words {
  uint32_t row[kRowsOfTile];
};

struct Floats {
  float row[kRowsOfTile];
};

// f(row) for every row of a tile.
template <typename T, typename F>
inline T each(F&& f) {
  T result;
  PYVT_UNROLL
  for (int r = 0; r < kRowsOfTile; ++r) result.row[r] = f(r);
  return result;
}

inline Words load_words(const void* p) {
  Words a;
  std::memcpy(a.row, p, sizeof a.row);
  return a;
}
inline void store_words(void* p, const Words& a) { std::memcpy(p, a.row, sizeof a.row); }

inline Words zero_words() { return Words{}; }
inline Words add(const Words& a, const Words& b) {
  return each<Words>([&](int r) { return a.row[r] + b.row[r]; });
}
inline Words either(const Words& a, const Words& b) {
  return each<Words>([&](int r) { return a.row[r] | b.row[r]; });
}
// Bytes and `bits`.
inline Words keep_bits(const Words& a, int bits) {
  const uint32_t mask = static_cast<uint32_t>(bits) * 0x01010101u;
  return each<Words>([&](int r) { return a.row[r] & mask; });
}
inline Words shift_right(const Words& a, int n) {
  return each<Words>([&](int r) { return a.row[r] >> n; });
}
inline Words shift_left(const Words& a, int n) {
  return each<Words>([&](int r) { return a.row[r] << n; });
}

// Bytes in [0, 15] as places in a table of 16 bytes.
inline Words look_up(const int8_t* table, const Words& a) {
  return each<Words>([&](int r) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      word |= uint32_t{static_cast<uint8_t>(table[a.row[r] >> (8 * i) & 15])} << (8 * i);
    }
    return word;
  });
}

inline Floats load_floats(const void* p) {
  Floats a;
  std::memcpy(a.row, p, sizeof a.row);
  return a;
}
inline void store_floats(void* p, const Floats& a) { std::memcpy(p, a.row, sizeof a.row); }
// 16 numbers of f16.
inline Floats load_halves(const uint8_t* p) {
  return each<Floats>([&](int r) {
    uint16_t half;
    std::memcpy(&half, p + 2 * r, 2);
    return pyvt::f16_to_f32(half);
  });
}
// 16 unsigned, 16 signed bytes.
inline Floats load_u8(const uint8_t* p) {
  return each<Floats>([&](int r) { return static_cast<float>(p[r]); });
}
inline Floats load_s8(const uint8_t* p) {
  return each<Floats>([&](int r) { return static_cast<float>(static_cast<int8_t>(p[r])); });
}

// The bytes of each row as e4m3 numbers.
inline void e4m3(const Words& a, Floats (&columns)[4]) {
  for (int i = 0; i < 4; ++i) {
    columns[i] = each<Floats>([&](int r) { return pyvt::e4m3_to_f32(a.row[r] >> (8 * i) & 255); });
  }
}

inline Floats zero_floats() { return Floats{}; }
inline Floats to_floats(const Words& a) {
  return each<Floats>([&](int r) { return static_cast<float>(static_cast<int32_t>(a.row[r])); });
}
inline Floats mul(const Floats& a, const Floats& b) {
  return each<Floats>([&](int r) { return a.row[r] * b.row[r]; });
}
inline Floats mul(const Floats& a, float b) {
  return each<Floats>([&](int r) { return a.row[r] * b; });
}
inline Floats negate(const Floats& a) {
  return each<Floats>([&](int r) { return -a.row[r]; });
}
// a · b + c, rounded once.
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return each<Floats>([&](int r) { return std::fma(a.row[r], b.row[r], c.row[r]); });
}
inline Floats fma(const Floats& a, float b, const Floats& c) {
  return each<Floats>([&](int r) { return std::fma(a.row[r], b, c.row[r]); });
}

// Words 0 to 3 at `offset` of 8 rows: word j of all of them to `to` + j · `stride` bytes.
inline void transpose_four_words(const uint8_t* const* rows, int64_t offset, uint8_t* to,
                                 int64_t stride) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 4; ++j) std::memcpy(to + j * stride + i * 4, rows[i] + offset + j * 4, 4);
  }
}

inline void prefetch_line(const uint8_t*) {}

constexpr int kKeptRows = 4;
#include "cpu/simd/kept.h"

inline int32_t code_at(uint32_t word, int i) { return static_cast<int32_t>(word >> (8 * i) & 255); }

// Sums of products of unsigned codes with activations.
using Dot = Words;

inline void add_products(Dot& dot, const Words& codes, const int8_t* quad) {
  PYVT_UNROLL
  for (int r = 0; r < kRowsOfTile; ++r) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += code_at(codes.row[r], i) * quad[i];
    dot.row[r] += static_cast<uint32_t>(sum);
  }
}
inline Dot products(const Words& codes, const int8_t* quad) {
  Dot dot = zero_words();
  add_products(dot, codes, quad);
  return dot;
}
inline Dot start_at(int32_t term) {
  return each<Dot>([&](int) { return static_cast<uint32_t>(term); });
}

inline Words total(const Dot& dot) { return dot; }
inline Words total(const Dot& dot, const Words& factors) {
  return each<Words>([&](int r) { return dot.row[r] * factors.row[r]; });
}
// 16 signed bytes as factors of `total`.
inline Words factors_of(const uint8_t* p) {
  return each<Words>([&](int r) {
    return static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(p[r])));
  });
}

// -kOffset · sum of q, the value at which the Dot of codes less kOffset starts, for kRows rows of
// 32 activations, in kParts parts of columns.
template <int kRows, int kParts, int kOffset>
class OffsetTerms {
 public:
  OffsetTerms(const int8_t* q, int64_t ldq) : q_(q), ldq_(ldq) {}

  int32_t at(int part, int m) const {
    const int8_t* q = q_ + m * ldq_ + part * (32 / kParts);
    int32_t sum = 0;
    for (int i = 0; i < 32 / kParts; ++i) sum += q[i];
    return -kOffset * sum;
  }

 private:
  const int8_t* q_;
  int64_t ldq_;
};

// Signed codes as magnitudes and what the signs of activations are taken from: the codes themselves
// or a mask.
struct SignedCodes {
  Words magnitude, sign;
};

inline uint32_t magnitudes(uint32_t word) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const int32_t code = static_cast<int8_t>(word >> (8 * i));
    result |= static_cast<uint32_t>(code < 0 ? -code : code) << (8 * i);
  }
  return result;
}

inline SignedCodes with_signs(const Words& codes) {
  return {each<Words>([&](int r) { return magnitudes(codes.row[r]); }), codes};
}
inline void add_signed(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  PYVT_UNROLL
  for (int r = 0; r < kRowsOfTile; ++r) {
    int32_t dot = 0;
    for (int i = 0; i < 4; ++i) dot += static_cast<int8_t>(codes.sign.row[r] >> (8 * i)) * quad[i];
    sum.row[r] += static_cast<uint32_t>(dot);
  }
}

inline SignedCodes with_mask(const Words& codes) {
  const auto mask = [](uint32_t word) { return (word >> 7 & 0x01010101u) * 255u; };
  return {each<Words>([&](int r) { return magnitudes(codes.row[r]); }),
          each<Words>([&](int r) { return mask(codes.row[r]); })};
}
// -x = (x ^ -1) + 1: the products with flipped activations, less the magnitudes of negative codes.
inline void add_flipped(Words& sum, const SignedCodes& codes, const int8_t* quad) {
  PYVT_UNROLL
  for (int r = 0; r < kRowsOfTile; ++r) {
    int32_t dot = 0;
    for (int i = 0; i < 4; ++i) {
      const int32_t flipped = quad[i] ^ static_cast<int8_t>(codes.sign.row[r] >> (8 * i));
      dot += code_at(codes.magnitude.row[r], i) * flipped;
    }
    sum.row[r] += static_cast<uint32_t>(dot);
  }
}
// Adds the magnitudes of negative codes.
inline void add_negative(Words& sum, const SignedCodes& codes) {
  PYVT_UNROLL
  for (int r = 0; r < kRowsOfTile; ++r) {
    const uint32_t negative = codes.magnitude.row[r] & codes.sign.row[r];
    for (int i = 0; i < 4; ++i) sum.row[r] += static_cast<uint32_t>(code_at(negative, i));
  }
}

// 32 activations: their largest magnitude as bits of f32, where a NaN is the largest of all; then
// the codes rint(x · inverse), whose sum is returned.
constexpr int kGroupVecs = 32 / kLanes;

inline uint32_t largest_bits(const Vec (&x)[kGroupVecs]) {
  uint32_t most = 0;
  for (const Vec& a : x) {
    const uint32_t bits = pyvt::f32_to_bits(a.v) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}

inline int32_t store_codes(int8_t* codes, const Vec (&x)[kGroupVecs], float inverse) {
  int32_t sum = 0;
  for (int i = 0; i < kGroupVecs; ++i) {
    const int32_t code = static_cast<int32_t>(std::nearbyint(x[i].v * inverse));
    codes[i] = static_cast<int8_t>(code);
    sum += code;
  }
  return sum;
}

}  // namespace simd
