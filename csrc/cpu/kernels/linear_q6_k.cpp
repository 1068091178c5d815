// what        Q6_K: value = (d · S) · (q - 32), q in [0, 63], S int8 for each 16 columns of 256
// layout      tile block: [16] f16 d, [16 groups][16] S, then for each half of 128 columns
//             [8][low, low, high] words of 16 rows. The low halves of the two low words hold the
//             low four bits of sub-blocks 0 and 1, their high halves those of 2 and 3; bits 2s and
//             2s + 1 of a high byte belong to sub-block s. Panel: codes, f32 d, S as factors
// numerics    S multiplies the integer dots of 16 columns; their sum over 32 is at most
//             2 · 128 · 16 · 32 · 127 < 2^24 and exact in f32; then one fma with d · s
// tried       one row, share of the read loop: words of a half apart and 32 columns at a time
//             55-64 %, apart and all that share words at once 73-90 %, in turn 105-113 %
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Q6_K : UnsignedCodes<Q6_K> {
  static constexpr int kFileCols = 256, kFileBlockBytes = 210, kTileBlockBytes = 3360;
  static constexpr Field kFields[] = {{208, 1, kHalf, 0},      {192, 16, kByte, 32},
                                      {0, 8, kWord, 288, 3},   {32, 8, kWord, 352, 3},
                                      {128, 8, kWord, 416, 3}, {64, 8, kWord, 1824, 3},
                                      {96, 8, kWord, 1888, 3}, {160, 8, kWord, 1952, 3}};
  static constexpr int kOffset = 32, kSharedSubs = 4, kParts = 2, kMaxDirectRows = 8;
  static constexpr bool kHasFactors = true;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}

    PYVT_INLINE simd::Words quad(int sub, int j) const {
      const uint8_t* words = p + 288 + (sub / 4 * kQuads + j) * 3 * kRowWordBytes;
      const simd::Words low = simd::load_words(words + sub % 2 * kRowWordBytes);
      const simd::Words high = simd::load_words(words + 2 * kRowWordBytes);
      const int shift = 4 - 2 * (sub % 4);
      const simd::Words moved =
          shift >= 0 ? simd::shift_left(high, shift) : simd::shift_right(high, -shift);
      return simd::either(simd::keep_bits(sub % 4 < 2 ? low : simd::shift_right(low, 4), 15),
                          simd::keep_bits(moved, 48));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Words factors(int sub, int part) const {
      return simd::factors_of(p + 32 + (sub * 2 + part) * 16);
    }
    PYVT_INLINE simd::Floats value_scale(int sub, int j) const {
      return simd::mul(simd::load_halves(p), simd::load_s8(p + 32 + (sub * 2 + j / 4) * 16));
    }
  };
};

}  // namespace

void fill_linear_q6_k(KernelTable& table) {
  table.int8[int8_index(DType::kQ6_K)] = int8_format<Q6_K>();
}

}  // namespace pyvt::cpu::PYVT_ISA
