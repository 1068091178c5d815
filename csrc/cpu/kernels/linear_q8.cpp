// what        Q8_0: value = d · q, q int8
// layout      tile block: [16] f16 d, [8 words][16 rows] q. Panel: [8][magnitudes, sign masks], f32
//             scales, and the sum of the magnitudes of negative codes
// numerics    codes down to -128 are magnitudes of 128 as u8. Direct: magnitude · (x with the sign
//             of the code). Panel: x ^ mask is -x - 1 for a negative code, and the missing
//             magnitudes, which do not depend on x, are where the sum starts; both are exact
// traffic     panel: 48-55 % of the int8 loop, 62-67 % of the same loop with vpxor; 16 rows:
//             46-54 % of it as packed, 36-46 % through a panel
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Q8_0 : SignedCodes<Q8_0> {
  static constexpr int kFileCols = 32, kFileBlockBytes = 34, kTileBlockBytes = 544;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 8, kWord, 32}};
  // Packed tiles are as fast as a panel is with all its rows.
  static constexpr int kMaxDirectRows = 64;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::load_words(p + 32 + j * kRowWordBytes);
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
  };
};

}  // namespace

void fill_linear_q8(KernelTable& table) {
  table.int8[int8_index(DType::kQ8_0)] = int8_format<Q8_0>();
}

}  // namespace pyvt::cpu::PYVT_ISA
