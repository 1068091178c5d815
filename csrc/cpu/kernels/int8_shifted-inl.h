// Dots of signed codes on levels whose products of u8 and s8 cannot saturate (AVX-512): activations
// take 128 and are the u8, and a panel holds codes, less the offset, with the sums that take it off
// again: -128 · the sum of codes of each part of a group. Exact integers give the bits of other
// levels. Included by int8_tile-inl.h.

constexpr bool kHasShifts = true;
// With 32 rows such a panel is 1.00 (Q4_0) to 1.37 (MXFP4) times as fast as packed tiles, with 16
// it is no faster in Q4_0, Q6_K, Q8_0 and Q3_K: one noisy run of three repetitions at K = 3072.
constexpr int kMaxShiftedRows = 16;

template <class Format>
inline void unpack_shifted(const typename Format::Block& block, int sub, uint8_t* panel,
                           uint8_t* starts) {
  constexpr int kNumStarts = Format::kGroups * Format::kParts;
  for (int i = 0; i < kNumStarts; ++i) {
    simd::Words start = simd::zero_words();
    for (int j = i * kQuads / kNumStarts; j < (i + 1) * kQuads / kNumStarts; ++j) {
      const simd::Words codes = simd::less(block.quad(sub, j), Format::kOffset);
      simd::store_words(panel + j * kRowWordBytes, codes);
      simd::subtract_shift(start, codes);
    }
    simd::store_words(starts + i * kRowWordBytes, start);
  }
}

template <class Format, int kRows, typename View>
PYVT_INLINE void shifted_dots(const View& view, const Activations& a, int group,
                              simd::Words (&dots)[kRows]) {
  constexpr int kParts = Format::kParts, kPartQuads = kQuads / kParts / Format::kGroups;
  constexpr int kCols = kBlockCols / Format::kGroups;
  const simd::Shifted<kRows, kCols> x(a.q + group * kCols, a.ldq);
  PYVT_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int first = (group * kParts + part) * kPartQuads;
    simd::Words sums[kRows];
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) sums[m] = view.start(group * kParts + part);
    PYVT_UNROLL
    for (int i = 0; i < kPartQuads; ++i) {
      const simd::Words codes = view.quad(first + i, 0);
      PYVT_UNROLL
      for (int m = 0; m < kRows; ++m) {
        simd::add_shifted(sums[m], codes, x.quad(m, part * kPartQuads + i));
      }
    }
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      if constexpr (Format::kHasFactors) sums[m] = simd::total(sums[m], view.factors(part, 0));
      dots[m] = part == 0 ? sums[m] : simd::add(dots[m], sums[m]);
    }
  }
}
