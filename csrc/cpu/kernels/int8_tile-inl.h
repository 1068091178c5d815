// what        the bodies that the block formats share: unpacking of a tile into a panel or into
//             f32, and the products of 1, 2, 4 or 8 rows of int8 activations with a tile or panel:
//             out[m][n] = sum over 32 columns of scale · s · dot + min · (s · sum of q)
// layout      a tile: for each block of a format its fields (int8_pack-inl.h). A panel: for each 32
//             columns [8 words][16 rows] of u8 codes, or of magnitudes and masks in turn, or of s8
//             codes for activations + 128 (AVX-512: int8_shifted-inl.h), then what the format has
//             of f32 scales, f32 mins, integer factors of groups of 16 columns and what integer
//             sums start at (PanelView). Nothing may alias
// numerics    in a block of 32 columns the dot is an exact integer; then
//             acc = fma(dot, scale · s, acc), then with mins acc = fma(min, s · sum, acc), blocks
//             in order; with f32 scales for 16 columns each half is such a block. The same bits for
//             any number of rows, from tile or panel, on every ISA. Integer sums run in s16, which
//             may wrap on the way: what has to fit is a whole sum, |code| · 127 · columns / 2: 4
//             bits 30480; 5 bits in two halves 31496, or less 16 whole 32512; 6 bits less 32 in
//             groups of 16 32512. Scales that are NaN or infinite give what the formula gives
// work        one tile of 16 outputs and 1, 2, 4 or 8 rows a call, or one row and four tiles; a
//             lane owns an output
// traffic     direct: the tile once, read as packed; one row runs at 87-128 % of a plain read loop
//             in every format. Panel: 640 B or so for each 32 columns from L2, shared by 4 rows;
//             bound by the multiply-add pipes. AVX2, share of the loop vpmaddubsw + vpmaddwd +
//             vpaddd with 256 rows, unpacking included: Q8_0 49-71 %, Q4_0 70-85, Q4_1 82-105, Q5_0
//             71-85, Q5_1 76-105, Q4_K 88-110, Q5_K 67-81, Q6_K 66-81. (csrc/bench/int8_bench.cpp:
//             medians of 7 over K = 576, 1024, 3072, in two runs on a machine that was never
//             quiet.) Four tiles that lie apart, a block of each in turn and no prefetch, against
//             one tile after the other: Q8_0 1.03-1.33, Q4_1 1.17-1.34 times as fast by the hour (a
//             plain read: four streams 1.0-1.65 times one), but Q4_K and Q6_K 0.65 and 0.7.
//             AVX-512 on a Zen 4, 8 rows a pass and activations + 128 against 4 rows and magnitudes
//             with signs or offsets, time of 256 rows: Q3_K 0.73, Q6_K 0.74, INT4 0.84, Q4_0 and
//             Q5_0 0.86, Q8_0 0.94 (32 and 64 rows 0.74), unsigned formats 0.98-1.02; 590 GOP/s of
//             Q8_0 and Q5_0, Q6_K 495
// tried       prefetch, two runs: 1 KiB ahead 83-107 % of the read loop, 2 KiB 94-131, 3 KiB
//             81-130. Prefetch intrinsics: the compiler moves them to the top of a superblock, Q4_K
//             66-82 %. Sums of 4 rows in a buffer without a barrier: it keeps copies in registers,
//             14 moves to the stack in a panel kernel instead of 2
// source      ggml ggml_vec_dot_*_q8_*; the order is that of pyvt/ops/quant_gguf.py
#pragma once

#include "cpu/kernels/int8_pack-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

#if defined(__clang__)
#define PYVT_KERNEL __attribute__((noinline))
#else
// A clone with a constant argument may spill where the kernel itself does not.
#define PYVT_KERNEL __attribute__((noinline, noclone))
#endif

constexpr int64_t kBlockCols = 32;
constexpr int kQuads = 8;
constexpr int kPrefetchAhead = 2048;

// Quad j of 32 columns in [4 words][16 rows] of half bytes.
PYVT_INLINE simd::Words half_bytes(const uint8_t* p, int j) {
  const simd::Words words = simd::load_words(p + (j & 3) * kRowWordBytes);
  return simd::keep_bits(j < 4 ? words : simd::shift_right(words, 4), 15);
}

// Bit j of each byte as bit 4.
PYVT_INLINE simd::Words fifth_bits(simd::Words words, int j) {
  return simd::keep_bits(j < 4 ? simd::shift_left(words, 4 - j) : simd::shift_right(words, j - 4),
                         16);
}

// Calls f(block, sub) for every 32 columns of a tile in [k0, k1), where `block` is a
// Format::Block, the packed block with its scales at hand.
template <class Format, typename F>
inline void for_blocks(const uint8_t* tile, int64_t k0, int64_t k1, F&& f) {
  constexpr int kSubs = Format::kFileCols / kBlockCols;
  for (int64_t k = k0 / Format::kFileCols * Format::kFileCols; k < k1; k += Format::kFileCols) {
    const typename Format::Block block(tile + k / Format::kFileCols * Format::kTileBlockBytes);
    for (int sub = 0; sub < kSubs; ++sub) {
      const int64_t column = k + sub * kBlockCols;
      if (column >= k0 && column < k1) f(block, sub);
    }
  }
}

// The scale and the min of the values of a quad. With factors they are formed for values alone:
// products multiply integers by the factors.
template <class Format>
inline simd::Floats value_scale(const typename Format::Block& block, int sub, int j) {
  if constexpr (Format::kHasFactors) {
    return block.value_scale(sub, j);
  } else {
    return block.scale(sub, j * Format::kGroups / kQuads);
  }
}
template <class Format>
inline simd::Floats value_min(const typename Format::Block& block, int sub, int j) {
  if constexpr (Format::kHasMinFactors) {
    return block.value_min(sub, j);
  } else {
    return block.min(sub);
  }
}

// The value of a code as `dequantize` forms it: code · scale, then + min, each rounded.
template <class Format>
void decode_tile(const uint8_t* tile, int64_t k0, int64_t k1, float* panel) {
  for_blocks<Format>(tile, k0, k1, [&](const typename Format::Block& block, int sub) {
    for (int j = 0; j < kQuads; ++j) {
      float scale[kTileRows], min[kTileRows];
      simd::store_floats(scale, value_scale<Format>(block, sub, j));
      if constexpr (Format::kHasMin) simd::store_floats(min, value_min<Format>(block, sub, j));
      uint32_t words[kTileRows];
      simd::store_words(words, block.quad(sub, j));
      for (int i = 0; i < 4; ++i) {
        for (int64_t r = 0; r < kTileRows; ++r) {
          const int32_t code = static_cast<int32_t>(words[r] << (24 - 8 * i)) >> 24;
          panel[r] = static_cast<float>(code - Format::kOffset) * scale[r];
          if constexpr (Format::kHasMin) panel[r] += min[r];
        }
        panel += kTileRows;
      }
    }
  });
}

// Rows of activations at a block of 32 columns; or one row at the next blocks, which then count as
// rows: their codes, scales and sums lie 32, 1 and 1 further.
struct Activations {
  const int8_t* q;
  const float* scale;
  const float* sum;
  int64_t ldq, lds;

  PYVT_INLINE Activations(const Q8Rows& a, int64_t m0)
      : q(a.q + m0 * a.ldq),
        scale(a.scales + m0 * a.lds),
        sum(a.sums + m0 * a.lds),
        ldq(a.ldq),
        lds(a.lds) {}

  PYVT_INLINE void skip(int num_blocks) {
    q += num_blocks * kBlockCols;
    scale += num_blocks;
    sum += num_blocks;
  }
  PYVT_INLINE Activations across_blocks() const {
    Activations spread = *this;
    spread.ldq = kBlockCols;
    spread.lds = 1;
    return spread;
  }
};

// Whether dots are products of matrices, two rows of a tile with two of activations: dots of the
// quads from `first` on, which begin at `starts`.
#if defined(PYVT_ISA_I8MM)
#include "cpu/kernels/int8_matrix-inl.h"
#else
constexpr bool kHasMatrices = false;
template <typename Block>
void unpack_matrices(const Block& block, int sub, uint8_t* panel);
template <int kRows, int kNumQuads, typename View>
void matrix_dots(const View& view, const Activations& a, int first, const int32_t (&starts)[kRows],
                 simd::Words (&dots)[kRows]);
#endif

// Whether panels hold signed codes, whose products are those of activations + 128 as u8.
#if defined(PYVT_ISA_AVX512)
#include "cpu/kernels/int8_shifted-inl.h"
#else
constexpr bool kHasShifts = false;
constexpr int kMaxShiftedRows = 0;
template <class Format, int kRows, typename View>
void shifted_dots(const View& view, const Activations& a, int group, simd::Words (&dots)[kRows]);
template <class Format>
void unpack_shifted(const typename Format::Block& block, int sub, uint8_t* panel, uint8_t* starts);
#endif
template <class Format>
constexpr bool kIsShifted = kHasShifts && (Format::kHasSigns || Format::kOffset != 0);

// One row of a packed tile is bound by memory, and stays with products of vectors.
template <int kRows, typename View>
constexpr bool kTakesMatrices =
    kHasMatrices && !View::kIsAcrossBlocks && (View::kIsPanel || kRows > 1);

// The dots of kRows rows with the codes, less the offset, of 32 columns. A format with kParts = 2
// sums halves of the columns apart, since the whole does not fit in s16 or has a factor for each.
template <class Format, int kRows, typename View>
PYVT_INLINE void unsigned_dots(const View& view, const Activations& a, simd::Words (&dots)[kRows]) {
  constexpr int kParts = Format::kParts, kPartQuads = kQuads / kParts;
  using Parked = simd::Kept<simd::Words, kRows>;
  simd::Words memory[Parked::kMemory];
  Parked first_part(memory);
  const simd::OffsetTerms<kRows, kParts, Format::kOffset> terms(a.q, a.ldq);
  PYVT_UNROLL
  for (int part = 0; part < kParts; ++part) {
    simd::Dot sums[kRows];
    if constexpr (kTakesMatrices<kRows, View>) {
      int32_t starts[kRows];
      for (int m = 0; m < kRows; ++m) starts[m] = terms.at(part, m);
      matrix_dots<kRows, kPartQuads>(view, a, part * kPartQuads, starts, sums);
    }
    PYVT_UNROLL
    for (int i = 0; i < (kTakesMatrices<kRows, View> ? 0 : kPartQuads); ++i) {
      const int j = part * kPartQuads + i;
      view.prefetch(j);
      simd::Words codes;
      PYVT_UNROLL
      for (int m = 0; m < kRows; ++m) {
        if (m == 0 || View::kIsAcrossBlocks) codes = view.quad(j, m);
        const int8_t* q = a.q + m * a.ldq + j * 4;
        if (Format::kOffset == 0 && i == 0) {
          sums[m] = simd::products(codes, q);
          continue;
        }
        if (i == 0) sums[m] = simd::start_at(terms.at(part, m));
        simd::add_products(sums[m], codes, q);
      }
    }
    simd::Words factors;
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      simd::Words dot;
      if constexpr (Format::kHasFactors) {
        if (m == 0 || View::kIsAcrossBlocks) factors = view.factors(part, m);
        dot = simd::total(sums[m], factors);
      } else {
        dot = simd::total(sums[m]);
      }
      if (part + 1 < kParts) {
        first_part.set(m, dot);
      } else {
        dots[m] = kParts == 1 ? dot : simd::add(first_part.get(m), dot);
      }
    }
  }
}

// The dots of kRows rows with signed codes, of the columns of a group. The activations take the
// signs: of the codes as they lie, or by an xor with the masks of a panel, whose sums start at the
// magnitudes that this leaves out.
template <class Format, int kRows, typename View>
PYVT_INLINE void signed_dots(const View& view, const Activations& a, int group,
                             simd::Words (&dots)[kRows]) {
  constexpr int kGroupQuads = kQuads / Format::kGroups;
  if constexpr (kTakesMatrices<kRows, View>) {
    matrix_dots<kRows, kGroupQuads>(view, a, group * kGroupQuads, {}, dots);
    return;
  }
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) {
    if constexpr (View::kIsPanel) {
      dots[m] = view.start(group);
    } else {
      dots[m] = simd::zero_words();
    }
  }
  PYVT_UNROLL
  for (int i = 0; i < kGroupQuads; ++i) {
    const int j = group * kGroupQuads + i;
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

// The integer that a min of kRows rows is multiplied by: -(sum of factor · sum of q) over both
// halves of the columns.
template <int kRows, typename View>
PYVT_INLINE void min_dots(const View& view, const Activations& a, simd::Words (&dots)[kRows]) {
  const simd::OffsetTerms<kRows, 2, 1> terms(a.q, a.ldq);
  simd::Words first, second;
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) {
    if (m == 0 || View::kIsAcrossBlocks) {
      first = view.min_factors(0, m);
      second = view.min_factors(1, m);
    }
    dots[m] = simd::add(simd::total(simd::start_at(terms.at(0, m)), first),
                        simd::total(simd::start_at(terms.at(1, m)), second));
  }
}

// Adds 32 columns to the sums of kRows rows; or kRows blocks, in order, to those of one.
template <class Format, int kRows, typename View, typename Sums>
PYVT_INLINE void add_block(const View& view, const Activations& a, Sums& sums) {
  PYVT_UNROLL
  for (int group = 0; group < Format::kGroups; ++group) {
    simd::Words dots[kRows], of_min[kRows];
    Format::template dots<kRows>(view, a, group, dots);
    if constexpr (Format::kHasMinFactors) min_dots<kRows>(view, a, of_min);
    simd::Floats scale, min;
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) {
      if (m == 0 || View::kIsAcrossBlocks) {
        scale = view.scale(group, m);
        if constexpr (Format::kHasMin) min = view.min(m);
      }
      const int to = View::kIsAcrossBlocks ? 0 : m;
      simd::Floats sum =
          simd::fma(simd::to_floats(dots[m]), simd::mul(scale, a.scale[m * a.lds]), sums.get(to));
      if constexpr (Format::kHasMinFactors) {
        sum = simd::fma(simd::to_floats(of_min[m]), simd::mul(min, a.scale[m * a.lds]), sum);
      } else if constexpr (Format::kHasMin) {
        sum = simd::fma(min, a.sum[m * a.lds], sum);
      }
      sums.set(to, sum);
    }
  }
}

// 32 columns of a packed block; across blocks, row m meets the m-th 32 columns after them.
template <class Format, bool kAcrossBlocks, bool kIsPrefetched = true>
struct PackedView {
  static constexpr bool kIsPanel = false, kIsAcrossBlocks = kAcrossBlocks;
  static constexpr bool kIsShifted = false;
  static constexpr int kSubBytes = Format::kTileBlockBytes * kBlockCols / Format::kFileCols;
  static constexpr int kLines = (kSubBytes * (kAcrossBlocks ? Format::kSharedSubs : 1) + 63) / 64;
  const typename Format::Block& block;
  int first;

  // The j-th share of what lies ahead, so that loads are spread over the arithmetic.
  PYVT_INLINE void prefetch(int j) const {
    if constexpr (!kIsPrefetched) return;
    const uint8_t* ahead = block.p + first * kSubBytes + kPrefetchAhead;
    for (int line = kLines * j / kQuads; line < kLines * (j + 1) / kQuads; ++line) {
      simd::prefetch_line(ahead + line * 64);
    }
  }

  PYVT_INLINE int sub(int m) const { return kAcrossBlocks ? first + m : first; }
  PYVT_INLINE simd::Words quad(int j, int m) const { return block.quad(sub(m), j); }
  PYVT_INLINE simd::Floats scale(int group, int m) const { return block.scale(sub(m), group); }
  PYVT_INLINE simd::Floats min(int m) const { return block.min(sub(m)); }
  PYVT_INLINE simd::Words factors(int part, int m) const { return block.factors(sub(m), part); }
  PYVT_INLINE simd::Words min_factors(int part, int m) const {
    return block.min_factors(sub(m), part);
  }
};

// 32 columns of a panel: the codes, then what the format has of scales, mins and integers.
template <class Format>
struct PanelView {
  static constexpr bool kIsPanel = true, kIsAcrossBlocks = false;
  static constexpr bool kIsShifted = PYVT_ISA::kIsShifted<Format>;
  static constexpr int kScales = kQuads * kRowWordBytes * Format::kPanelWords;
  static constexpr int kMins = kScales + kRowWordBytes * Format::kGroups;
  static constexpr int kFactors = kMins + kRowWordBytes * Format::kHasMin;
  static constexpr int kMinFactors = kFactors + kRowWordBytes * 2 * Format::kHasFactors;
  static constexpr int kStarts = kMinFactors + kRowWordBytes * 2 * Format::kHasMinFactors;
  static constexpr int kNumStarts =
      kIsShifted ? Format::kGroups * Format::kParts : Format::kGroups * (Format::kPanelWords - 1);
  static constexpr int kBytes = kStarts + kRowWordBytes * kNumStarts;
  const uint8_t* p;

  PYVT_INLINE void prefetch(int) const {}
  PYVT_INLINE simd::Words quad(int j, int) const { return simd::load_words(p + j * kRowWordBytes); }
  PYVT_INLINE simd::Floats scale(int group, int) const {
    return simd::load_floats(p + kScales + group * kRowWordBytes);
  }
  PYVT_INLINE simd::Floats min(int) const { return simd::load_floats(p + kMins); }
  PYVT_INLINE simd::Words factors(int part, int) const {
    return simd::load_words(p + kFactors + part * kRowWordBytes);
  }
  PYVT_INLINE simd::Words min_factors(int part, int) const {
    return simd::load_words(p + kMinFactors + part * kRowWordBytes);
  }
  PYVT_INLINE simd::Words start(int i) const {
    return simd::load_words(p + kStarts + i * kRowWordBytes);
  }
};

template <class Format>
int64_t panel_bytes(int64_t num_cols) {
  return num_cols / kBlockCols * PanelView<Format>::kBytes;
}

template <class Format>
void unpack_panel(const uint8_t* tile, int64_t num_cols, uint8_t* panel) {
  using View = PanelView<Format>;
  for_blocks<Format>(tile, 0, num_cols, [&](const typename Format::Block& block, int sub) {
    if constexpr (kIsShifted<Format>) {
      unpack_shifted<Format>(block, sub, panel, panel + View::kStarts);
    } else {
      Format::unpack_codes(block, sub, panel);
    }
    for (int group = 0; group < Format::kGroups; ++group) {
      simd::store_floats(panel + View::kScales + group * kRowWordBytes, block.scale(sub, group));
    }
    if constexpr (Format::kHasMin) simd::store_floats(panel + View::kMins, block.min(sub));
    for (int part = 0; part < 2; ++part) {
      if constexpr (Format::kHasFactors) {
        simd::store_words(panel + View::kFactors + part * kRowWordBytes, block.factors(sub, part));
      }
      if constexpr (Format::kHasMinFactors) {
        simd::store_words(panel + View::kMinFactors + part * kRowWordBytes,
                          block.min_factors(sub, part));
      }
    }
    panel += View::kBytes;
  });
}

template <int kRows, typename Sums>
PYVT_INLINE void store_sums(const Sums& sums, float* out, int64_t ldo) {
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) simd::store_floats(out + m * ldo, sums.get(m));
}

// Sums start at zero, or where those of earlier columns ended.
template <int kRows>
PYVT_INLINE void start_sums(simd::Kept<simd::Floats, kRows>& sums, bool is_first, const float* out,
                            int64_t ldo) {
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) {
    sums.set(m, is_first ? simd::zero_floats() : simd::load_floats(out + m * ldo));
  }
}

template <class Format, int kRows>
PYVT_KERNEL void direct_product(const uint8_t* tile, int64_t num_cols, const Q8Rows& rows,
                                int64_t m0, float* out, int64_t ldo) {
  using Sums = simd::Kept<simd::Floats, kRows>;
  constexpr int kSubs = Format::kFileCols / kBlockCols;
  // One row meets all the 32 columns that share words at once, so that the tile is read in order.
  constexpr int kStep = kRows == 1 ? Format::kSharedSubs : 1;
  simd::Floats memory[Sums::kMemory];
  Sums sums(memory);
  start_sums<kRows>(sums, true, out, ldo);
  Activations a(rows, m0);
  const uint8_t* end = tile + num_cols / Format::kFileCols * Format::kTileBlockBytes;
  for (; tile != end; tile += Format::kTileBlockBytes) {
    const typename Format::Block block(tile);
    PYVT_UNROLL
    for (int sub = 0; sub < kSubs; sub += kStep) {
      if constexpr (kStep > 1) {
        add_block<Format, kStep>(PackedView<Format, true>{block, sub}, a.across_blocks(), sums);
      } else {
        add_block<Format, kRows>(PackedView<Format, false>{block, sub}, a, sums);
      }
      a.skip(kStep);
    }
  }
  store_sums<kRows>(sums, out, ldo);
}

// One row with kStreams tiles that lie apart, a block of each in turn.
template <class Format>
PYVT_KERNEL void stream_product(const uint8_t* tile, int64_t apart, int64_t num_cols,
                                const Q8Rows& rows, int64_t m0, float* out) {
  using Sums = simd::Kept<simd::Floats, 1>;
  static_assert(Format::kFileCols == kBlockCols, "blocks of a size that streams are read in");
  for (int i = 0; i < kStreams; ++i) simd::store_floats(out + i * kTileRows, simd::zero_floats());
  Activations a(rows, m0);
  const uint8_t* end = tile + num_cols / kBlockCols * Format::kTileBlockBytes;
  for (; tile != end; tile += Format::kTileBlockBytes) {
    for (int i = 0; i < kStreams; ++i) {
      const typename Format::Block block(tile + i * apart);
      simd::Floats memory[Sums::kMemory];
      Sums sums(memory);
      sums.set(0, simd::load_floats(out + i * kTileRows));
      add_block<Format, 1>(PackedView<Format, false, false>{block, 0}, a, sums);
      simd::store_floats(out + i * kTileRows, sums.get(0));
    }
    a.skip(1);
  }
}

template <class Format, int kRows>
PYVT_KERNEL void panel_product(const uint8_t* panel, int64_t num_cols, const Q8Rows& rows,
                               int64_t m0, float* out, int64_t ldo, bool is_first) {
  using Sums = simd::Kept<simd::Floats, kRows>;
  simd::Floats memory[Sums::kMemory];
  Sums sums(memory);
  start_sums<kRows>(sums, is_first, out, ldo);
  Activations a(rows, m0);
  const uint8_t* end = panel + panel_bytes<Format>(num_cols);
  for (; panel != end; panel += PanelView<Format>::kBytes) {
    add_block<Format, kRows>(PanelView<Format>{panel}, a, sums);
    a.skip(1);
  }
  store_sums<kRows>(sums, out, ldo);
}

// What a format is unless it says otherwise.
struct FormatDefaults {
  // Subtracted from codes; runs of 32 columns that share words; parts that unsigned dots are summed
  // in, each with its factor where there are any; groups with f32 scales of their own.
  static constexpr int kOffset = 0, kSharedSubs = 1, kParts = 1, kGroups = 1;
  static constexpr bool kHasMin = false, kHasFactors = false, kHasMinFactors = false;
  static constexpr int kMaxDirectRows = 16;
};

// What a format of unsigned codes does the common way.
template <class Format>
struct UnsignedCodes : FormatDefaults {
  static constexpr int kPanelWords = 1;
  static constexpr bool kHasSigns = false;

  template <int kRows, typename View>
  static PYVT_INLINE void dots(const View& view, const Activations& a, int,
                               simd::Words (&dots)[kRows]) {
    if constexpr (View::kIsShifted) {
      shifted_dots<Format, kRows>(view, a, 0, dots);
    } else {
      unsigned_dots<Format, kRows>(view, a, dots);
    }
  }

  template <typename Block>
  static inline void unpack_codes(const Block& block, int sub, uint8_t* panel) {
    if constexpr (kHasMatrices) return unpack_matrices(block, sub, panel);
    for (int j = 0; j < kQuads; ++j) {
      simd::store_words(panel + j * kRowWordBytes, block.quad(sub, j));
    }
  }
};

// What a format of signed codes does: a panel has two words for each quad, magnitudes and masks,
// or the codes alone for products of matrices.
template <class Format>
struct SignedCodes : FormatDefaults {
  static constexpr int kPanelWords = kHasMatrices || kHasShifts ? 1 : 2;
  static constexpr bool kHasSigns = true;

  template <int kRows, typename View>
  static PYVT_INLINE void dots(const View& view, const Activations& a, int group,
                               simd::Words (&dots)[kRows]) {
    if constexpr (View::kIsShifted) {
      shifted_dots<Format, kRows>(view, a, group, dots);
    } else {
      signed_dots<Format, kRows>(view, a, group, dots);
    }
  }

  template <typename Block>
  static inline void unpack_codes(const Block& block, int sub, uint8_t* panel) {
    if constexpr (kHasMatrices) return unpack_matrices(block, sub, panel);
    constexpr int kGroupQuads = kQuads / Format::kGroups;
    for (int group = 0; group < Format::kGroups; ++group) {
      simd::Words negative = simd::zero_words();
      for (int j = group * kGroupQuads; j < (group + 1) * kGroupQuads; ++j) {
        const simd::SignedCodes codes = simd::with_mask(block.quad(sub, j));
        simd::store_words(panel + 2 * j * kRowWordBytes, codes.magnitude);
        simd::store_words(panel + (2 * j + 1) * kRowWordBytes, codes.sign);
        simd::add_negative(negative, codes);
      }
      simd::store_words(panel + PanelView<Format>::kStarts + group * kRowWordBytes, negative);
    }
  }
};

template <class Format>
inline Int8Format int8_format() {
  Int8Format format = {};
  format.block_cols = Format::kFileCols;
  format.tile_block_bytes = Format::kTileBlockBytes;
  format.file_block_bytes = Format::kFileBlockBytes;
  format.max_direct_rows = kIsShifted<Format> ? std::min(Format::kMaxDirectRows, kMaxShiftedRows)
                                              : Format::kMaxDirectRows;
  format.pack_tile = &pack_tile<Format>;
  format.direct[0] = &direct_product<Format, 1>;
  format.direct[1] = &direct_product<Format, 2>;
  format.direct[2] = &direct_product<Format, 4>;
  if constexpr (Format::kFileCols == kBlockCols) format.streams = &stream_product<Format>;
  format.panel_bytes = &panel_bytes<Format>;
  format.unpack_panel = &unpack_panel<Format>;
  format.panel[0] = &panel_product<Format, 1>;
  format.panel[1] = &panel_product<Format, 4>;
  if constexpr (simd::kKeptRows >= 8) format.panel[2] = &panel_product<Format, 8>;
  format.decode_tile = &decode_tile<Format>;
  return format;
}

}  // namespace
}  // namespace pyvt::cpu::PYVT_ISA
