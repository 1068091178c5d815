// what        Q4_K, Q5_K: value = (d · S) · q - dmin · M; S and M of 6 bits for each 32 columns
//             of 256; q of 4 or 5 bits
// layout      tile block: [16] f16 d, [16] f16 dmin, [12][16] bytes of S and M as in the file, then
//             [4 pairs][8 words][16 rows] of the low four bits. A pair of sub-blocks shares its
//             words: low halves are the even one. Q5_K: [8 words] of fifth bits, in turn with those
//             of the first pair; bit s of a fifth byte belongs to sub-block s
// numerics    scale = d · S and min = -(dmin · M), rounded to f32
// traffic     the 12 bytes stay packed in the tile: unpacking them takes about 16 vector steps for
//             4096 weights; in a prototype, bytes in their place (+2.8 %) gained nothing. 16 rows:
//             Q4_K 53 % of the int8 loop as packed, 68 through a panel, Q5_K 65 and 85; 8 rows: 55
//             and 52, 62 and 67
// tried       one row: four tiles that lie apart, a sub-block of each in turn, with and without
//             prefetches: 0.95-1.06 times the speed of one tile after the other, which reads at the
//             speed of a plain loop
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// The scales of a superblock, unpacked.
struct SixBits {
  static constexpr int kSubs = 8;
  const uint8_t* p;
  alignas(32) uint8_t scales[kSubs * 16];
  alignas(32) uint8_t mins[kSubs * 16];

  explicit PYVT_INLINE SixBits(const uint8_t* tile) : p(tile) {
    const uint8_t *first = p + 64, *second = first + 64, *low = second + 64;
    for (int i = 0; i < 64; ++i) {
      scales[i] = first[i] & 63;
      mins[i] = second[i] & 63;
      scales[64 + i] = static_cast<uint8_t>((low[i] & 15) | (first[i] >> 6 << 4));
      mins[64 + i] = static_cast<uint8_t>((low[i] >> 4) | (second[i] >> 6 << 4));
    }
  }

  PYVT_INLINE simd::Floats scale(int sub, int) const {
    return simd::mul(simd::load_halves(p), simd::load_u8(scales + sub * 16));
  }
  PYVT_INLINE simd::Floats min(int sub) const {
    return simd::negate(simd::mul(simd::load_halves(p + 32), simd::load_u8(mins + sub * 16)));
  }
};

// The quad of a sub-block in the word that it shares with its pair.
PYVT_INLINE simd::Words paired_half_bytes(const uint8_t* p, int sub) {
  const simd::Words words = simd::load_words(p);
  return simd::keep_bits(sub % 2 == 0 ? words : simd::shift_right(words, 4), 15);
}

struct Q4_K : UnsignedCodes<Q4_K> {
  static constexpr int kFileCols = 256, kFileBlockBytes = 144, kTileBlockBytes = 2304;
  static constexpr Field kFields[] = {
      {0, 1, kHalf, 0}, {2, 1, kHalf, 32}, {4, 12, kByte, 64}, {16, 32, kWord, 256}};
  static constexpr int kSharedSubs = 2, kMaxDirectRows = 8;
  static constexpr bool kHasMin = true;

  struct Block : SixBits {
    using SixBits::SixBits;
    PYVT_INLINE simd::Words quad(int sub, int j) const {
      return paired_half_bytes(p + 256 + (sub / 2 * kQuads + j) * kRowWordBytes, sub);
    }
  };
};

struct Q5_K : UnsignedCodes<Q5_K> {
  static constexpr int kFileCols = 256, kFileBlockBytes = 176, kTileBlockBytes = 2816;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0},       {2, 1, kHalf, 32},
                                      {4, 12, kByte, 64},     {16, 8, kWord, 256, 2},
                                      {48, 8, kWord, 320, 2}, {80, 24, kWord, 1280}};
  static constexpr int kSharedSubs = 2, kParts = 2, kMaxDirectRows = 8;
  static constexpr bool kHasMin = true;

  struct Block : SixBits {
    using SixBits::SixBits;
    PYVT_INLINE simd::Words quad(int sub, int j) const {
      const simd::Words fifths = simd::load_words(p + 256 + 2 * j * kRowWordBytes);
      const int word = sub < 2 ? 2 * j + 1 : (sub / 2 + 1) * kQuads + j;
      const simd::Words moved =
          sub < 4 ? simd::shift_left(fifths, 4 - sub) : simd::shift_right(fifths, sub - 4);
      return simd::either(paired_half_bytes(p + 256 + word * kRowWordBytes, sub),
                          simd::keep_bits(moved, 16));
    }
  };
};

}  // namespace

void fill_linear_k(KernelTable& table) {
  table.int8[int8_index(DType::kQ4_K)] = int8_format<Q4_K>();
  table.int8[int8_index(DType::kQ5_K)] = int8_format<Q5_K>();
}

}  // namespace pyvt::cpu::PYVT_ISA
