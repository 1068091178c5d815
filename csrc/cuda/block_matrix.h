// From a BlockMatrix to what kernels read.
#pragma once

#include "cuda/device/blocks.cuh"
#include "cuda/weights.h"
#include "pyvt/check.h"

namespace pyvt::cuda {

inline int block_columns(DType dtype) {
  switch (dtype) {
#define PYVT_COLUMNS(name, text, number, block, bytes) \
  case DType::name:                                    \
    return block;
    PYVT_DTYPES(PYVT_COLUMNS)
#undef PYVT_COLUMNS
  }
  return 1;
}

inline int block_bytes(DType dtype) {
  switch (dtype) {
#define PYVT_BLOCK_BYTES(name, text, number, block, bytes) \
  case DType::name:                                        \
    return bytes;
    PYVT_DTYPES(PYVT_BLOCK_BYTES)
#undef PYVT_BLOCK_BYTES
  }
  return 0;
}

// A matrix, or matrix `index` of a stack.
inline Blocks blocks_of(const char* op, const BlockMatrix& weight, int64_t index = 0) {
  const TensorView& view = weight.blocks;
  const int columns = block_columns(weight.dtype), bytes = block_bytes(weight.dtype);
  PYVT_CHECK(op, columns >= kGroup && weight.num_cols % columns == 0,
             "weight: expected rows of whole blocks, got ", weight.num_cols, " columns of ",
             dtype_name(weight.dtype));
  PYVT_CHECK(op,
             view.rank >= 2 && view.dtype == DType::kU8 && view.is_dense(1) &&
                 view.shape[view.rank - 1] == weight.num_cols / columns * bytes,
             "weight: expected u8 [..., N, bytes of a row]");
  const auto* data = static_cast<const uint8_t*>(view.data);
  if (view.rank == 3) data += index * view.stride[0];
  return {data,
          weight.dtype,
          view.shape[view.rank - 2],
          weight.num_cols,
          view.stride[view.rank - 2],
          columns / kGroup,
          bytes};
}

}  // namespace pyvt::cuda
