// what        products of rows of f32 activations with one tile of 16 weight rows of f32, bf16 or
//             f16: out[m][n] = sum over k of x[m][k] · w[n][k]; the packing of a tile; the
//             rounding of sums into the output
// layout      tile: packed_format.h, FloatFormat; x [rows][ldx], out [rows][ldo], 16 outputs a row;
//             nothing may alias
// numerics    one f32 sum an output, k ascending, fma: the same bits for any number of rows, for
//             direct and panel kernels and for every ISA. Sums between chunks of k pass through
//             memory unchanged. NaN and infinities stay in the row and the output they belong to
// work        a lane owns an output; kRows rows of x share the loaded weights
// traffic     direct: the tile once, prefetched 1 KiB ahead; memory bound up to 2 rows. Panel: f32
//             weights from L1/L2, bound by fma at 6 rows (12 sums of 8 lanes in 16 registers)
// tried       4 groups of 8 rows in a tile, 3 rows of x: spills, half of the speed; prefetch of
//             4 KiB: slower; 2 to 4 tiles side by side in place of the prefetch: equal
#include <iterator>
#include <utility>

#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int kTileVecs = static_cast<int>(kTileRows) / simd::kLanes;
constexpr int64_t kPrefetchBytes = 1024;

// Column kIndex of a word of the weights, kLanes outputs: a word has one of f32 or two of halves.
template <typename W>
struct Word {
  static constexpr int kCols = 2;
  template <int kIndex>
  static inline simd::Vec load(const uint8_t* p) {
    return simd::load_of_pairs<kIndex>(reinterpret_cast<const W*>(p));
  }
};

template <>
struct Word<float> {
  static constexpr int kCols = 1;
  template <int kIndex>
  static inline simd::Vec load(const uint8_t* p) {
    return simd::load(reinterpret_cast<const float*>(p));
  }
};

constexpr int64_t kWordBytes = 4;
constexpr int64_t kTileWordBytes = kWordBytes * kTileRows;

// Adds column kIndex of the word at `tile`; x points at that column. Weights first, then row by row
// one broadcast: the order in which all sums stay in registers.
template <typename W, int kRows, int kIndex>
inline void add_column(const uint8_t* tile, const float* x, int64_t ldx,
                       simd::Vec (&sums)[kRows][kTileVecs]) {
  simd::Vec w[kTileVecs];
#pragma GCC unroll 16
  for (int v = 0; v < kTileVecs; ++v) {
    w[v] = Word<W>::template load<kIndex>(tile + v * simd::kLanes * kWordBytes);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const simd::Vec value = simd::set1(x[m * ldx]);
#pragma GCC unroll 16
    for (int v = 0; v < kTileVecs; ++v) sums[m][v] = simd::fma(w[v], value, sums[m][v]);
  }
}

template <typename W, int kRows, bool kPrefetch>
void float_product(const uint8_t* __restrict tile, int64_t num_cols, const float* __restrict x,
                   int64_t ldx, float* __restrict out, int64_t ldo, bool is_first) {
  constexpr int kCols = Word<W>::kCols;
  simd::Vec sums[kRows][kTileVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVecs; ++v) {
      sums[m][v] = is_first ? simd::zero() : simd::load(out + m * ldo + v * simd::kLanes);
    }
  }
  int64_t k = 0;
#pragma GCC unroll 4
  for (; k + kCols <= num_cols; k += kCols, tile += kTileWordBytes, x += kCols) {
    if (kPrefetch) simd::prefetch(tile + kPrefetchBytes);
    add_column<W, kRows, 0>(tile, x, ldx, sums);
    if (kCols == 2) add_column<W, kRows, 1>(tile, x + 1, ldx, sums);
  }
  if (kCols == 2 && k < num_cols) add_column<W, kRows, 0>(tile, x, ldx, sums);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVecs; ++v) simd::store(out + m * ldo + v * simd::kLanes, sums[m][v]);
  }
}

template <typename W>
void unpack_float_panel(const uint8_t* tile, int64_t num_cols, float* panel) {
  for (int64_t k = 0; k < num_cols; k += 2, tile += kTileWordBytes, panel += 2 * kTileRows) {
    const bool is_half_word = k + 1 == num_cols;
    for (int v = 0; v < kTileVecs; ++v) {
      const uint8_t* word = tile + v * simd::kLanes * kWordBytes;
      simd::store(panel + v * simd::kLanes, Word<W>::template load<0>(word));
      if (is_half_word) continue;
      simd::store(panel + kTileRows + v * simd::kLanes, Word<W>::template load<1>(word));
    }
  }
}

// Words of 16 rows side by side; the bytes of a row that fill no word are padded with zeros.
template <int kItemBytes>
void pack_words(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile) {
  const int64_t row_bytes = num_cols * kItemBytes;
  const int64_t num_words = row_bytes / kWordBytes;
  int64_t word = 0;
  for (; word + simd::kLanes <= num_words; word += simd::kLanes) {
    for (int v = 0; v < kTileVecs; ++v) {
      simd::transpose_words(rows + v * simd::kLanes, word * kWordBytes,
                            tile + word * kTileWordBytes + v * simd::kLanes * kWordBytes,
                            kTileWordBytes);
    }
  }
  for (; word * kWordBytes < row_bytes; ++word) {
    const int64_t rest = row_bytes - word * kWordBytes;
    for (int64_t r = 0; r < kTileRows; ++r) {
      uint32_t value = 0;
      std::memcpy(&value, rows[r] + word * kWordBytes,
                  static_cast<size_t>(rest < kWordBytes ? rest : kWordBytes));
      std::memcpy(tile + word * kTileWordBytes + r * kWordBytes, &value, kWordBytes);
    }
  }
}

template <typename X>
void widen_row(const void* from, float* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(to + i, simd::load(x + i));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    simd::store_first(to + i, simd::load_first(x + i, rest), rest);
  }
}

// out = sums + bias, rounded once: n of the 16 outputs of a tile for each row; bias may be null.
template <typename O>
void finish_rows(void* to, int64_t stride_bytes, const float* sums, const float* bias,
                 int64_t num_rows, int64_t n) {
  auto* bytes = static_cast<uint8_t*>(to);
  for (int64_t m = 0; m < num_rows; ++m, bytes += stride_bytes, sums += kTileRows) {
    O* out = reinterpret_cast<O*>(bytes);
    int64_t i = 0;
    for (; i + simd::kLanes <= n; i += simd::kLanes) {
      simd::Vec sum = simd::load(sums + i);
      if (bias != nullptr) sum = simd::add(sum, simd::load(bias + i));
      simd::store(out + i, sum);
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      simd::Vec sum = simd::load_first(sums + i, rest);
      if (bias != nullptr) sum = simd::add(sum, simd::load_first(bias + i, rest));
      simd::store_first(out + i, sum, rest);
    }
  }
}

template <typename W, bool kPrefetch, size_t... kSteps>
inline void fill_products(decltype(FloatFormat::direct)& products, std::index_sequence<kSteps...>) {
  ((products[kSteps] = &float_product<W, static_cast<int>(kFloatSteps[kSteps]), kPrefetch>), ...);
}
template <typename W, bool kPrefetch>
inline void fill_products(decltype(FloatFormat::direct)& products) {
  fill_products<W, kPrefetch>(products, std::make_index_sequence<std::size(kFloatSteps)>{});
}

template <typename W>
inline FloatFormat float_format() {
  FloatFormat format = {};
  format.word_cols = Word<W>::kCols;
  format.pack_tile = &pack_words<static_cast<int>(sizeof(W))>;
  fill_products<W, true>(format.direct);
  return format;
}

}  // namespace

void fill_linear(KernelTable& table) {
  for_floats([&](auto type) {
    using T = typename decltype(type)::type;
    FloatFormat& format = table.floats[type.index];
    format = float_format<T>();
    if constexpr (Word<T>::kCols == 2) format.unpack_panel = &unpack_float_panel<T>;
    table.widen_row[type.index] = &widen_row<T>;
    table.finish_rows[type.index] = &finish_rows<T>;
  });
  fill_products<float, false>(table.float_panel);
}

}  // namespace pyvt::cpu::PYVT_ISA
