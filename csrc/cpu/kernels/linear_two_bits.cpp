// what        Q2_K: value = (d · S) · q - dmin · M, q in [0, 3], S and M of 4 bits for each 16
//             columns of 256; Q3_K: value = (d · S) · (q - 4), q in [0, 7], S of 6 bits less 32
// layout      tile block: [16] f16 d, Q2_K [16] f16 dmin, the bytes of scales [16 or 12][16], then
//             words of 16 rows: a word of low bits serves four sub-blocks, two bits of a byte each.
//             Q3_K: the third bits in turn with the words of the first half; bit s of a byte
//             belongs to sub-block s. Panel: codes, f32 d and dmin, S and M as factors
// numerics    S and M multiply integers, as in Q6_K: sums of 16 columns and of their activations;
//             then one fma with d · s and one with dmin · s for 32 columns
// traffic     one row: 86-98 % of a plain read loop (Q2_K); 256 rows: 49-63 % of the int8 loop; 16
//             rows: 33-41 % as packed, 45-49 % through a panel, so a panel from 5 rows on
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// Two bits of a word that four sub-blocks share.
PYVT_INLINE simd::Words two_bits(const uint8_t* p, int sub) {
  return simd::keep_bits(simd::shift_right(simd::load_words(p), sub % 4 * 2), 3);
}

struct Q2_K : UnsignedCodes<Q2_K> {
  static constexpr int kFileCols = 256, kFileBlockBytes = 84, kTileBlockBytes = 1344;
  static constexpr Field kFields[] = {
      {80, 1, kHalf, 0}, {82, 1, kHalf, 32}, {0, 16, kByte, 64}, {16, 16, kWord, 320}};
  static constexpr int kSharedSubs = 4, kParts = 2, kMaxDirectRows = 4;
  static constexpr bool kHasMin = true, kHasFactors = true, kHasMinFactors = true;

  struct Block {
    const uint8_t* p;
    alignas(32) uint8_t scales[256];
    alignas(32) uint8_t mins[256];

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      for (int i = 0; i < 256; ++i) {
        scales[i] = p[64 + i] & 15;
        mins[i] = p[64 + i] >> 4;
      }
    }

    PYVT_INLINE simd::Words quad(int sub, int j) const {
      return two_bits(p + 320 + (sub / 4 * kQuads + j) * kRowWordBytes, sub);
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Floats min(int) const { return simd::load_halves(p + 32); }
    PYVT_INLINE simd::Words factors(int sub, int part) const {
      return simd::factors_of(scales + (sub * 2 + part) * 16);
    }
    PYVT_INLINE simd::Words min_factors(int sub, int part) const {
      return simd::factors_of(mins + (sub * 2 + part) * 16);
    }
    PYVT_INLINE simd::Floats value_scale(int sub, int j) const {
      return simd::mul(simd::load_halves(p), simd::load_u8(scales + (sub * 2 + j / 4) * 16));
    }
    PYVT_INLINE simd::Floats value_min(int sub, int j) const {
      return simd::negate(
          simd::mul(simd::load_halves(p + 32), simd::load_u8(mins + (sub * 2 + j / 4) * 16)));
    }
  };
};

struct Q3_K : UnsignedCodes<Q3_K> {
  static constexpr int kFileCols = 256, kFileBlockBytes = 110, kTileBlockBytes = 1760;
  static constexpr Field kFields[] = {{108, 1, kHalf, 0},
                                      {96, 12, kByte, 32},
                                      {0, 8, kWord, 224, 2},
                                      {32, 8, kWord, 288, 2},
                                      {64, 8, kWord, 1248}};
  static constexpr int kOffset = 4, kSharedSubs = 4, kParts = 2, kMaxDirectRows = 4;
  static constexpr bool kHasFactors = true;

  struct Block {
    const uint8_t* p;
    alignas(32) uint8_t scales[256];  // S - 32 as int8

    // The low four bits of scales 0 to 7 and 8 to 15 share bytes, the high two bits of every
    // fourth one.
    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      const uint8_t* high = p + 160;
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint8_t* low = p + 32 + quarter % 2 * 64;
        for (int i = 0; i < 64; ++i) {
          const int of_low = low[i] >> (quarter / 2 * 4) & 15;
          const int of_high = high[i] >> (quarter * 2) & 3;
          scales[quarter * 64 + i] = static_cast<uint8_t>((of_low | of_high << 4) - 32);
        }
      }
    }

    PYVT_INLINE simd::Words quad(int sub, int j) const {
      const uint8_t* words = p + 224;
      const simd::Words thirds = simd::load_words(words + 2 * j * kRowWordBytes);
      const int word = sub < 4 ? 2 * j + 1 : 2 * kQuads + j;
      const simd::Words moved =
          sub < 2 ? simd::shift_left(thirds, 2 - sub) : simd::shift_right(thirds, sub - 2);
      return simd::either(two_bits(words + word * kRowWordBytes, sub), simd::keep_bits(moved, 4));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Words factors(int sub, int part) const {
      return simd::factors_of(scales + (sub * 2 + part) * 16);
    }
    PYVT_INLINE simd::Floats value_scale(int sub, int j) const {
      return simd::mul(simd::load_halves(p), simd::load_s8(scales + (sub * 2 + j / 4) * 16));
    }
  };
};

}  // namespace

void fill_linear_two_bits(KernelTable& table) {
  table.int8[int8_index(DType::kQ2_K)] = int8_format<Q2_K>();
  table.int8[int8_index(DType::kQ3_K)] = int8_format<Q3_K>();
}

}  // namespace pyvt::cpu::PYVT_ISA
