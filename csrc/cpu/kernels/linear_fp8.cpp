// what        FP8 of checkpoints of Hugging Face: s · v, v an e4m3 number, in blocks of 128 or 32
//             columns with an f32 scale s; products of rows of f32 with a tile as it is packed, and
//             its unpacking for more rows
// layout      tile block: [16] f32 s, then for each 4 columns a word of each row
// numerics    s · v rounded, then one fma in each column's turn, as products with the unpacked tile
// work        one tile a call; a lane owns an output
// traffic     the tile once, prefetched 1 KiB ahead; 9 vector operations for each 8 weights beside
//             the fma of each row
// tried       one row, cold, of the time when values were unpacked first, one by one: 0.32; two
//             tiles in turn, which hides the latency of sums, 0.30; nibbles as places in a table of
//             the high bytes of bf16, 4 operations for each 8 weights, with a branch for numbers
//             that have no exponent or are NaN: 0.36, two tiles 0.35
// source      OCP 8-bit Floating Point Specification 1.0
#include "cpu/kernels/int8_pack-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int kScaleBytes = 64;  // of a tile's block: 16 of f32
constexpr int64_t kPrefetchBytes = 1024;
constexpr int kWordCols = 4;

template <int kCols>
struct Fp8 {
  static constexpr int kFileCols = kCols, kFileBlockBytes = 4 + kCols;
  static constexpr int kTileBlockBytes = 16 * kFileBlockBytes;
  static constexpr Field kFields[] = {{0, 4, kRun, 0}, {4, kCols / 4, kWord, kScaleBytes}};
};

// Calls f(column, values) for the columns [k0, k1) of a tile, multiples of 4.
template <class Format, typename F>
PYVT_INLINE void for_columns(const uint8_t* tile, int64_t k0, int64_t k1, F&& f) {
  for (int64_t k = k0; k < k1;) {
    const int64_t first = k % Format::kFileCols;
    const uint8_t* block = tile + k / Format::kFileCols * Format::kTileBlockBytes;
    const simd::Floats scale = simd::load_floats(block);
    const uint8_t* word = block + kScaleBytes + first / kWordCols * kRowWordBytes;
    const int64_t left = k1 - k, of_block = Format::kFileCols - first;
    const int64_t end = k + (left < of_block ? left : of_block);
    for (; k < end; k += kWordCols, word += kRowWordBytes) {
      simd::prefetch_line(word + kPrefetchBytes);
      simd::Floats columns[kWordCols];
      simd::e4m3(simd::load_words(word), columns);
      PYVT_UNROLL
      for (int i = 0; i < kWordCols; ++i) f(k + i, simd::mul(columns[i], scale));
    }
  }
}

template <class Format>
void decode(const uint8_t* tile, int64_t k0, int64_t k1, float* panel) {
  for_columns<Format>(tile, k0, k1, [&](int64_t k, simd::Floats values) {
    simd::store_floats(panel + (k - k0) * kTileRows, values);
  });
}

template <class Format, int kRows>
void product(const uint8_t* tile, int64_t num_cols, const float* x, int64_t ldx, float* out,
             int64_t ldo) {
  simd::Floats sums[kRows];
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) sums[m] = simd::zero_floats();
  for_columns<Format>(tile, 0, num_cols, [&](int64_t k, simd::Floats values) {
    PYVT_UNROLL
    for (int m = 0; m < kRows; ++m) sums[m] = simd::fma(values, x[m * ldx + k], sums[m]);
  });
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) simd::store_floats(out + m * ldo, sums[m]);
}

template <class Format, size_t... kSteps>
void fill_products(Int8Format& format, std::index_sequence<kSteps...>) {
  ((format.of_floats[kSteps] = &product<Format, static_cast<int>(kFloatSteps[kSteps])>), ...);
}

template <class Format>
Int8Format fp8_format() {
  Int8Format format = {};
  format.block_cols = Format::kFileCols;
  format.tile_block_bytes = Format::kTileBlockBytes;
  format.file_block_bytes = Format::kFileBlockBytes;
  format.pack_tile = &pack_tile<Format>;
  format.decode_tile = &decode<Format>;
  fill_products<Format>(format, std::make_index_sequence<std::size(kFloatSteps)>{});
  return format;
}

}  // namespace

void fill_linear_fp8(KernelTable& table) {
  table.int8[int8_index(DType::kFP8_G128)] = fp8_format<Fp8<128>>();
  table.int8[int8_index(DType::kFP8_G32)] = fp8_format<Fp8<32>>();
}

}  // namespace pyvt::cpu::PYVT_ISA
