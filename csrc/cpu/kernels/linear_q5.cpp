// what        Q5_0: value = d · (q - 16); Q5_1: value = d · q + m; q in [0, 31]
// layout      tile block: [16] f16 d, Q5_1 [16] f16 m, [16] words of fifth bits, [4 words][16 rows]
//             of the low four bits as in Q4_0. Bit 8i + j of a fifth word belongs to column 4j + i
// numerics    Q5_1 sums 16 columns at a time: 31 · 127 · 8 = 31496; less 16, as in Q5_0, 32 fit
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Q5_0 : UnsignedCodes<Q5_0> {
  static constexpr int kFileCols = 32, kFileBlockBytes = 22, kTileBlockBytes = 352;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 1, kBits, 32}, {6, 4, kWord, 96}};
  static constexpr int kOffset = 16;

  struct Block {
    const uint8_t* p;
    simd::Words fifths;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile), fifths(simd::load_words(p + 32)) {}
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::either(half_bytes(p + 96, j), fifth_bits(fifths, j));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
  };
};

struct Q5_1 : UnsignedCodes<Q5_1> {
  static constexpr int kFileCols = 32, kFileBlockBytes = 24, kTileBlockBytes = 384;
  static constexpr Field kFields[] = {
      {0, 1, kHalf, 0}, {2, 1, kHalf, 32}, {4, 1, kBits, 64}, {8, 4, kWord, 128}};
  static constexpr int kParts = 2;
  static constexpr bool kHasMin = true;

  struct Block {
    const uint8_t* p;
    simd::Words fifths;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile), fifths(simd::load_words(p + 64)) {}
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::either(half_bytes(p + 128, j), fifth_bits(fifths, j));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Floats min(int) const { return simd::load_halves(p + 32); }
  };
};

}  // namespace

void fill_linear_q5(KernelTable& table) {
  table.int8[int8_index(DType::kQ5_0)] = int8_format<Q5_0>();
  table.int8[int8_index(DType::kQ5_1)] = int8_format<Q5_1>();
}

}  // namespace pyvt::cpu::PYVT_ISA
