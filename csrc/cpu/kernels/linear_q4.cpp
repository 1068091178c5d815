// what        Q4_0: value = d · (q - 8); Q4_1: value = d · q + m; q in [0, 15]
// layout      tile block: [16] f16 d, Q4_1 [16] f16 m, [4 words][16 rows] of q: the low halves of
//             word j are columns 4j to 4j + 3, the high ones 16 columns further
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Q4_0 : UnsignedCodes<Q4_0> {
  static constexpr int kFileCols = 32, kFileBlockBytes = 18, kTileBlockBytes = 288;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 4, kWord, 32}};
  static constexpr int kOffset = 8;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int, int j) const { return half_bytes(p + 32, j); }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
  };
};

struct Q4_1 : UnsignedCodes<Q4_1> {
  static constexpr int kFileCols = 32, kFileBlockBytes = 20, kTileBlockBytes = 320;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 1, kHalf, 32}, {4, 4, kWord, 64}};
  static constexpr bool kHasMin = true;
  // 16 rows: 82-92 % of the int8 loop as packed, 64-66 % through a panel; 256 rows: 83-88 %.
  static constexpr int kMaxDirectRows = 64;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int, int j) const { return half_bytes(p + 64, j); }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Floats min(int) const { return simd::load_halves(p + 32); }
  };
};

}  // namespace

void fill_linear_q4(KernelTable& table) {
  table.int8[int8_index(DType::kQ4_0)] = int8_format<Q4_0>();
  table.int8[int8_index(DType::kQ4_1)] = int8_format<Q4_1>();
}

}  // namespace pyvt::cpu::PYVT_ISA
