// Dots by products of matrices, on levels that have them (simd/int8_i8mm.h). A panel holds the
// codes of two quads side by side, signed codes as they are; exact integers give the bits of other
// levels. Included by int8_tile-inl.h.

constexpr bool kHasMatrices = true;

template <typename Block>
inline void unpack_matrices(const Block& block, int sub, uint8_t* panel) {
  for (int j = 0; j < kQuads; j += 2) {
    simd::store_paired(panel + j * kRowWordBytes,
                       simd::side_by_side(block.quad(sub, j), block.quad(sub, j + 1)));
  }
}

template <int kRows, int kNumQuads, typename View>
PYVT_INLINE void matrix_dots(const View& view, const Activations& a, int first,
                             const int32_t (&starts)[kRows], simd::Words (&dots)[kRows]) {
  constexpr int kPairs = (kRows + 1) / 2;
  simd::PairedSums sums[kPairs];
  PYVT_UNROLL
  for (int pair = 0; pair < kPairs; ++pair) {
    sums[pair] = simd::start_paired(starts[2 * pair], starts[kRows == 1 ? 0 : 2 * pair + 1]);
  }
  PYVT_UNROLL
  for (int i = 0; i < kNumQuads; i += 2) {
    const int j = first + i;
    view.prefetch(j);
    view.prefetch(j + 1);
    simd::PairedCodes codes;
    if constexpr (View::kIsPanel) {
      codes = simd::load_paired(view.p + j * kRowWordBytes);
    } else {
      codes = simd::side_by_side(view.quad(j, 0), view.quad(j + 1, 0));
    }
    PYVT_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      const int8_t* q = a.q + 2 * pair * a.ldq + j * 4;
      simd::add_paired(sums[pair], codes, q, kRows == 1 ? q : q + a.ldq);
    }
  }
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) dots[m] = simd::sums_of(sums[m / 2], m % 2);
}
