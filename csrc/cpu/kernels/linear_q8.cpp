// what        Q8_0: value = d · q, q int8
// layout      tile block: [16] f16 d, [8 words][16 rows] q. Panel: [8][magnitudes, sign masks], f32
//             scales, and the sum of the magnitudes of negative codes
// numerics    codes down to -128 are magnitudes of 128 as u8. Direct: magnitude · (x with the sign
//             of the code). Panel: x ^ mask is -x - 1 for a negative code, and the missing
//             magnitudes, which do not depend on x, are where the sum starts; both are exact
// traffic     panel: 49-71 % of the int8 loop, 70-74 % of the same loop with vpxor
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Q8_0 {
  static constexpr int kFileCols = 32, kFileBlockBytes = 34, kTileBlockBytes = 544;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 8, kWord, 32}};
  static constexpr int kOffset = 0, kSharedSubs = 1, kPanelWords = 2, kExtraWords = 1;
  static constexpr bool kHasMin = false, kHasFactors = false;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::load_words(p + 32 + j * kRowWordBytes);
    }
    PYVT_INLINE simd::Floats scale(int) const { return simd::load_halves(p); }
    PYVT_INLINE simd::Floats value_scale(int sub, int) const { return scale(sub); }
  };

  template <int kRows, typename View>
  static PYVT_INLINE void dots(const View& view, const Activations& a, simd::Words (&dots)[kRows]) {
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      if constexpr (View::kIsPanel) {
        dots[m] = view.factors(0, 0);
      } else {
        dots[m] = simd::zero_words();
      }
    }
    PYVT_UNROLL
    for (int j = 0; j < kQuads; ++j) {
      view.prefetch(j);
      const int8_t* q = a.q + j * 4;
      simd::SignedCodes codes;
      if constexpr (View::kIsPanel) {
        codes = {view.quad(2 * j, 0), view.quad(2 * j + 1, 0)};
      } else {
        codes = simd::with_signs(view.quad(j, 0));
      }
      PYVT_UNROLL
      for (int m = 0; m < kRows; ++m) {
        if constexpr (View::kIsPanel) {
          simd::add_flipped(dots[m], codes, q + m * a.ldq);
        } else {
          simd::add_signed(dots[m], codes, q + m * a.ldq);
        }
      }
    }
  }

  static inline void unpack_codes(const Block& block, int sub, uint8_t* panel) {
    simd::Words negative = simd::zero_words();
    for (int j = 0; j < kQuads; ++j) {
      const simd::SignedCodes codes = simd::with_mask(block.quad(sub, j));
      simd::store_words(panel + 2 * j * kRowWordBytes, codes.magnitude);
      simd::store_words(panel + (2 * j + 1) * kRowWordBytes, codes.sign);
      simd::add_negative(negative, codes);
    }
    simd::store_words(panel + PanelView<Q8_0>::kExtra, negative);
  }
};

}  // namespace

void fill_linear_q8(KernelTable& table) {
  table.int8[int8_index(DType::kQ8_0)] = int8_format<Q8_0>();
}

}  // namespace pyvt::cpu::PYVT_ISA
