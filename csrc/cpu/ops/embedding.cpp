// Launchers of the embedding family: tokens over threads.
#include <algorithm>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGrainElements = 8192;
constexpr int kTileSlot = 0, kPanelSlot = 1, kRowSlot = 2;

// Columns of a tile that are decoded at a time, a multiple of all blocks: a panel of 32 KiB.
constexpr int64_t kPanelCols = 512;

int64_t grain_of(int64_t length) { return kGrainElements / (length + 1) + 1; }

// Row `lane` of a tile of blocks; the other rows are decoded with it.
void decode_row(const Tiles& tiles, int64_t tile, int64_t lane, float* row) {
  float* panel = scratch<float>(kPanelSlot, kPanelCols * kTileRows);
  const uint8_t* data = tiles.columns(tile, 0, tiles.num_cols, nullptr);
  for (int64_t k0 = 0; k0 < tiles.num_cols; k0 += kPanelCols) {
    const int64_t k1 = std::min(k0 + kPanelCols, tiles.num_cols);
    tiles.format.int8->decode_tile(data, k0, k1, panel);
    for (int64_t k = k0; k < k1; ++k) row[k] = panel[(k - k0) * kTileRows + lane];
  }
}

// Row `lane` of a tile of floats, whose words of four bytes hold one or two columns.
template <typename T>
void gather_row(const uint8_t* tile, int64_t lane, int64_t num_cols, void* row) {
  constexpr int64_t kWordCols = 4 / sizeof(T);
  const T* from = reinterpret_cast<const T*>(tile) + lane * kWordCols;
  T* to = static_cast<T*>(row);
  for (int64_t k = 0; k < num_cols; ++k) {
    to[k] = from[k / kWordCols * kWordCols * kTileRows + k % kWordCols];
  }
}

}  // namespace

void embedding(TensorView out, TensorView input_ids, TensorView weight) {
  const char* op = "embedding";
  const Rows to = rows_of(op, "out", out), table = rows_of(op, "weight", weight);
  const Indices ids = indices_of(op, "input_ids", input_ids);
  PYVT_CHECK(
      op, out.rank == 2 && weight.rank == 2 && to.num_rows == ids.size && to.length == table.length,
      "out: expected dims [T, H]");
  check_range(op, "input_ids", ids, 0, table.num_rows);
  const auto kernel = kernels().cast[float_index(op, weight.dtype)][float_index(op, out.dtype)];
  parallel_for(ids.size, grain_of(to.length), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernel(to.row(t), table.row(ids[t]), 0, to.length);
  });
}

// Tokens go in sixteens, the rows of one tile, through the packer and the decoder of tiles.
void quant_embedding(TensorView out, TensorView input_ids, BlockMatrix weight) {
  const char* op = "quant_embedding";
  const TensorView& blocks = weight.blocks;
  const Rows to = rows_of(op, "out", out), table = rows_of(op, "weight", blocks);
  const Indices ids = indices_of(op, "input_ids", input_ids);
  const TileFormat format(op, kernels(), weight.dtype);
  PYVT_CHECK(op, format.int8 != nullptr, "weight: expected a block format");
  const int64_t num_cols = weight.num_cols;
  format.check_columns(op, num_cols);
  PYVT_CHECK(
      op,
      blocks.dtype == DType::kU8 && blocks.rank == 2 && table.length == format.file_bytes(num_cols),
      "weight: expected rows of ", format.file_bytes(num_cols), " bytes");
  PYVT_CHECK(op, out.rank == 2 && to.num_rows == ids.size && to.length == num_cols,
             "out: expected dims [T, H]");
  check_range(op, "input_ids", ids, 0, table.num_rows);
  const auto cast = kernels().cast[0][float_index(op, out.dtype)];
  const int64_t num_tiles = (ids.size + kTileRows - 1) / kTileRows;
  parallel_for(
      num_tiles, kGrainElements / (kTileRows * num_cols + 1) + 1, [&](int64_t begin, int64_t end) {
        uint8_t* tile = scratch<uint8_t>(kTileSlot, format.tile_bytes(num_cols));
        float* panel = scratch<float>(kPanelSlot, num_cols * (kTileRows + 1));
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i * kTileRows, count = std::min(kTileRows, ids.size - first);
          const uint8_t* rows[kTileRows];
          for (int64_t r = 0; r < kTileRows; ++r) {
            rows[r] = static_cast<const uint8_t*>(table.row(ids[first + std::min(r, count - 1)]));
          }
          format.pack(rows, num_cols, tile);
          format.int8->decode_tile(tile, 0, num_cols, panel);
          float* row = panel + num_cols * kTileRows;
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t k = 0; k < num_cols; ++k) row[k] = panel[k * kTileRows + r];
            cast(to.row(first + r), row, 0, num_cols);
          }
        }
      });
}

void packed_embedding(TensorView out, TensorView input_ids, PackedMatrix weight) {
  const char* op = "packed_embedding";
  const Rows to = rows_of(op, "out", out);
  const Indices ids = indices_of(op, "input_ids", input_ids);
  const Tiles tiles(op, kernels(), weight);
  const int64_t num_cols = tiles.num_cols;
  PYVT_CHECK(op, out.rank == 2 && to.num_rows == ids.size && to.length == num_cols,
             "out: expected dims [T, H]");
  check_range(op, "input_ids", ids, 0, tiles.num_rows);
  const bool is_block = tiles.format.int8 != nullptr;
  const DType from = is_block ? DType::kF32 : weight.dtype;
  const auto cast = kernels().cast[float_index(op, from)][float_index(op, out.dtype)];
  const auto gather = from == DType::kF32 ? gather_row<uint32_t> : gather_row<uint16_t>;
  const int64_t num_elements = is_block ? num_cols * kTileRows : num_cols;
  parallel_for(ids.size, grain_of(num_elements), [&](int64_t begin, int64_t end) {
    float* row = scratch<float>(kRowSlot, num_cols);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t tile = ids[t] / kTileRows, lane = ids[t] % kTileRows;
      if (is_block) {
        decode_row(tiles, tile, lane, row);
      } else {
        gather(tiles.columns(tile, 0, num_cols, nullptr), lane, num_cols, row);
      }
      cast(to.row(t), row, 0, num_cols);
    }
  });
}

}  // namespace pyvt::cpu
