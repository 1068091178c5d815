// Prepacking: weights from rows of a file to tiles, once, at load; tiles over threads.
#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/tiles.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Tiles that a thread takes at a time: a few pages of the file.
constexpr int64_t kGrainBytes = 256 << 10;

bool has_packer(DType dtype) {
  const int index = int8_index(dtype);
  if (index >= 0) return kernels().int8[index].pack_tile != nullptr;
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// The rows of all parts by number; beyond the last one a row of zeros.
class PartRows {
 public:
  PartRows(const char* op, const std::vector<TensorView>& parts, int64_t row_bytes)
      : parts_(parts), zeros_(static_cast<size_t>(row_bytes)) {
    for (const TensorView& part : parts) {
      PYVT_CHECK(op, part.dtype == DType::kU8 && part.rank == 2 && part.is_dense(1),
                 "weight: expected bytes of dense rows");
      PYVT_CHECK(op, part.shape[1] == row_bytes, "weight: expected rows of ", row_bytes,
                 " bytes, got ", part.shape[1]);
      num_rows_ += part.shape[0];
    }
  }

  int64_t num_rows() const { return num_rows_; }

  const uint8_t* row(int64_t index) const {
    for (const TensorView& part : parts_) {
      if (index < part.shape[0]) return part.as<uint8_t>() + index * part.stride[0];
      index -= part.shape[0];
    }
    return zeros_.data();
  }

 private:
  const std::vector<TensorView>& parts_;
  const std::vector<uint8_t> zeros_;
  int64_t num_rows_ = 0;
};

}  // namespace

int64_t packed_bytes(int64_t num_rows, int32_t dtype, int64_t num_cols) {
  if (!has_packer(static_cast<DType>(dtype))) return -1;
  const TileFormat format("prepack_weight", kernels(), static_cast<DType>(dtype));
  return format.matrix_bytes("prepack_weight", num_rows, num_cols);
}

void pack_tiles(TensorView data, std::vector<TensorView> parts, int32_t dtype, int64_t num_cols) {
  const char* op = "prepack_weight";
  PYVT_CHECK(op, has_packer(static_cast<DType>(dtype)), "weight: no packer for this dtype");
  const TileFormat format(op, kernels(), static_cast<DType>(dtype));
  format.check_columns(op, num_cols);
  const PartRows rows(op, parts, format.file_bytes(num_cols));
  const int64_t num_tiles = (rows.num_rows() + kTileRows - 1) / kTileRows;
  const int64_t tile_bytes = format.tile_bytes(num_cols);
  PYVT_CHECK(op,
             data.dtype == DType::kU8 && data.rank == 1 && data.is_dense(1) && data.is_writeable &&
                 data.shape[0] == num_tiles * tile_bytes,
             "data: expected ", num_tiles * tile_bytes, " writeable bytes");
  parallel_for(num_tiles, kGrainBytes / (tile_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const uint8_t* sources[kTileRows];
      for (int64_t i = 0; i < kTileRows; ++i) sources[i] = rows.row(tile * kTileRows + i);
      format.pack(sources, num_cols, data.as<uint8_t>() + tile * tile_bytes);
    }
  });
}

}  // namespace pyvt::cpu
