// Tiles: the tiles of a weight, wherever it lies. A packed weight gives its own memory; rows as
// they lie in a file are packed into scratch, so both reach the same kernels with the same bytes.
#pragma once

#include <cstring>

#include "cpu/kernel_table.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/rows.h"

namespace pyvt::cpu {

// Rows or columns that a weight may have.
constexpr int64_t kMaxSize = int64_t{1} << 40;

// The kernels of a weight's dtype: either of the two.
struct TileFormat {
  const FloatFormat* floats = nullptr;
  const Int8Format* int8 = nullptr;
  int64_t item_bytes = 1;  // of a plain dtype

  TileFormat(const char* op, const KernelTable& table, DType dtype) {
    const int index = int8_index(dtype);
    if (index < 0) {
      floats = &table.floats[float_index(op, dtype)];
      item_bytes = pyvt::cpu::item_bytes(dtype);
      return;
    }
    int8 = &table.int8[index];
    PYVT_CHECK(op, int8->pack_tile != nullptr, "weight: no kernel for ", dtype_name(dtype));
  }

  // Whether there are kernels for activations in int8: the format's elements are small integers.
  bool takes_codes() const { return int8 != nullptr && int8->direct[0] != nullptr; }

  // Whether there are kernels for activations in the dtype of the weight, two columns at once.
  bool takes_pairs(DType of_x) const {
    return of_x == DType::kBF16 && floats != nullptr && floats->pairs[0] != nullptr;
  }

  // Bytes of the first `cols` columns of a tile, and of a row in a file.
  int64_t tile_bytes(int64_t cols) const {
    if (int8 != nullptr) return cols / int8->block_cols * int8->tile_block_bytes;
    return (cols + floats->word_cols - 1) / floats->word_cols * 4 * kTileRows;
  }
  int64_t file_bytes(int64_t cols) const {
    return int8 != nullptr ? cols / int8->block_cols * int8->file_block_bytes : cols * item_bytes;
  }

  void pack(const uint8_t* const rows[kTileRows], int64_t cols, uint8_t* tile) const {
    (int8 != nullptr ? int8->pack_tile : floats->pack_tile)(rows, cols, tile);
  }

  // Bytes of the tiles of a matrix. Throws where it has no such shape.
  int64_t matrix_bytes(const char* op, int64_t rows, int64_t cols) const {
    check_columns(op, cols);
    int64_t bytes = 0;
    PYVT_CHECK(
        op,
        rows >= 0 && rows <= kMaxSize &&
            !__builtin_mul_overflow((rows + kTileRows - 1) / kTileRows, tile_bytes(cols), &bytes),
        "weight: expected a matrix that fits in memory, got N=", rows, ", K=", cols);
    return bytes;
  }

  void check_columns(const char* op, int64_t cols) const {
    PYVT_CHECK(op,
               cols >= 0 && cols <= kMaxSize && (int8 == nullptr || cols % int8->block_cols == 0),
               "weight: expected whole blocks, got K=", cols);
  }
};

class Tiles {
 public:
  Tiles(const char* op, const KernelTable& table, const PackedMatrix& weight)
      : num_rows(weight.num_rows), num_cols(weight.num_cols), format(op, table, weight.dtype) {
    packed_ = weight.data;
    PYVT_CHECK(op, weight.num_bytes == format.matrix_bytes(op, num_rows, num_cols),
               "weight: expected ", num_tiles(), " tiles of ", format.tile_bytes(num_cols),
               " bytes, got ", weight.num_bytes, " bytes");
  }

  Tiles(const char* op, const KernelTable& table, const TensorView& weight)
      : num_rows(weight.rank == 2 ? weight.shape[0] : -1),
        num_cols(weight.rank == 2 ? weight.shape[1] : -1),
        format(op, table, weight.dtype) {
    PYVT_CHECK(op, weight.rank == 2, "weight: expected two dims");
    PYVT_CHECK(op, format.floats != nullptr, "weight: expected floats, got ",
               dtype_name(weight.dtype));
    rows_ = weight.as<uint8_t>();
    row_stride_ = weight.stride[0] * format.item_bytes;
    col_stride_ = num_cols > 1 ? weight.stride[1] * format.item_bytes : format.item_bytes;
  }

  Tiles(const char* op, const KernelTable& table, const BlockMatrix& weight)
      : num_rows(weight.blocks.rank == 2 ? weight.blocks.shape[0] : -1),
        num_cols(weight.num_cols),
        format(op, table, weight.dtype) {
    const TensorView& blocks = weight.blocks;
    PYVT_CHECK(op, format.int8 != nullptr && blocks.rank == 2 && blocks.is_dense(1),
               "weight: expected rows of dense blocks");
    format.check_columns(op, num_cols);
    PYVT_CHECK(op, blocks.dtype == DType::kU8 && blocks.shape[1] == format.file_bytes(num_cols),
               "weight: expected rows of ", format.file_bytes(num_cols), " bytes, got ",
               blocks.shape[1]);
    rows_ = blocks.as<uint8_t>();
    row_stride_ = blocks.stride[0];
  }

  // The matrix of one expert.
  static Tiles of_expert(const char* op, const KernelTable& table, const ExpertStack& stack,
                         int64_t expert) {
    if (stack.plain.has_value()) return Tiles(op, table, slice(stack.plain, expert));
    if (stack.blocks.blocks.has_value()) {
      BlockMatrix blocks = stack.blocks;
      blocks.blocks = slice(blocks.blocks, expert);
      return Tiles(op, table, blocks);
    }
    PackedMatrix tiles = stack.tiles;
    tiles.num_bytes /= stack.num_experts;
    tiles.data += expert * tiles.num_bytes;
    return Tiles(op, table, tiles);
  }

  int64_t num_tiles() const { return (num_rows + kTileRows - 1) / kTileRows; }
  bool is_packed() const { return packed_ != nullptr; }

  // Scratch that `columns` needs for `cols` columns.
  int64_t scratch_bytes(int64_t cols) const {
    if (is_packed()) return 0;
    const int64_t gathered = is_strided() ? kTileRows * cols * format.item_bytes : 0;
    return format.tile_bytes(cols) + gathered;
  }

  // Columns [k0, k1) of a tile; k0 is a multiple of a word or a block.
  const uint8_t* columns(int64_t tile, int64_t k0, int64_t k1, uint8_t* scratch) const {
    if (is_packed()) return packed_ + tile * format.tile_bytes(num_cols) + format.tile_bytes(k0);
    const uint8_t* rows[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) {
      // Rows beyond the last give outputs that nobody stores: any row will do.
      const int64_t row = tile * kTileRows + i < num_rows ? tile * kTileRows + i : num_rows - 1;
      rows[i] = rows_ + row * row_stride_;
      if (is_strided()) {
        uint8_t* gathered =
            scratch + format.tile_bytes(k1 - k0) + i * (k1 - k0) * format.item_bytes;
        gather(rows[i] + k0 * col_stride_, k1 - k0, gathered);
        rows[i] = gathered;
      } else {
        rows[i] += format.file_bytes(k0);
      }
    }
    format.pack(rows, k1 - k0, scratch);
    return scratch;
  }

  const int64_t num_rows, num_cols;
  const TileFormat format;

 private:
  bool is_strided() const { return format.int8 == nullptr && col_stride_ != format.item_bytes; }

  void gather(const uint8_t* from, int64_t count, uint8_t* to) const {
    for (int64_t k = 0; k < count; ++k) {
      std::memcpy(to + k * format.item_bytes, from + k * col_stride_,
                  static_cast<size_t>(format.item_bytes));
    }
  }

  const uint8_t* packed_ = nullptr;
  const uint8_t* rows_ = nullptr;
  int64_t row_stride_ = 0, col_stride_ = 1;
};

}  // namespace pyvt::cpu
