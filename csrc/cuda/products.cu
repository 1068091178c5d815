// From weights as ops take them to what the kernels of products read; see products.h.
#include "cuda/products.h"

#include <limits>

namespace pyvt::cuda {
namespace {

struct BlockSize {
  int columns, bytes;
};

BlockSize block_size(DType dtype) {
  switch (dtype) {
#define PYVT_SIZE(name, text, number, block, bytes) \
  case DType::name:                                 \
    return {block, bytes};
    PYVT_DTYPES(PYVT_SIZE)
#undef PYVT_SIZE
  }
  return {1, 1};
}

// What loads of a block need: the greatest power of two up to 16 that divides its size.
int64_t alignment_of(int64_t bytes) {
  for (const int64_t align : {16, 4, 2}) {
    if (bytes % align == 0) return align;
  }
  return 1;
}

int narrow(const char* op, const char* name, int64_t size) {
  PYVT_CHECK(op, size <= std::numeric_limits<int32_t>::max(), name, ": expected fewer than 2^31");
  return static_cast<int>(size);
}

// Rows, and matrices where there are several; strides in bytes.
Matrices shape_of(const char* op, const char* name, const TensorView& view, DType dtype,
                  int64_t num_cols) {
  PYVT_CHECK(op, view.rank == 2 || view.rank == 3, name, ": expected [N, K] or [E, N, K]");
  const int64_t item = view.dtype == DType::kU8 ? 1 : view.dtype == DType::kF32 ? 4 : 2;
  PYVT_CHECK(op, view.shape[view.rank - 1] <= 1 || view.stride[view.rank - 1] == 1, name,
             ": expected rows side by side");
  Matrices found;
  found.data = static_cast<const uint8_t*>(view.data);
  found.dtype = dtype;
  found.num_rows = narrow(op, name, view.shape[view.rank - 2]);
  found.num_cols = narrow(op, name, num_cols);
  found.row_stride = view.stride[view.rank - 2] * item;
  if (view.rank == 3) {
    found.num_matrices = narrow(op, name, view.shape[0]);
    found.matrix_stride = view.stride[0] * item;
  }
  return found;
}

bool is_aligned(const Matrices& matrices, int64_t align) {
  return reinterpret_cast<uintptr_t>(matrices.data) % static_cast<uintptr_t>(align) == 0 &&
         matrices.row_stride % align == 0 && matrices.matrix_stride % align == 0;
}

}  // namespace

bool has_codes(DType dtype) {
  switch (dtype) {
#define PYVT_CODES(name) case DType::name:
    PYVT_CODE_FORMATS(PYVT_CODES)
#undef PYVT_CODES
    return true;
    default:
      return false;
  }
}

Matrices matrices_of(const char* op, const char* name, const BlockMatrix& weight) {
  const BlockSize size = block_size(weight.dtype);
  const TensorView& view = weight.blocks;
  PYVT_CHECK(op, size.columns > 1 && view.dtype == DType::kU8 && view.rank >= 2, name,
             ": expected rows of blocks, got ", dtype_name(weight.dtype));
  PYVT_CHECK(op, weight.num_cols / size.columns * size.bytes == view.shape[view.rank - 1], name,
             ": expected rows of ", weight.num_cols, " columns");
  const Matrices found = shape_of(op, name, view, weight.dtype, weight.num_cols);
  PYVT_CHECK(op, view.size() == 0 || is_aligned(found, alignment_of(size.bytes)), name,
             ": expected addresses that are multiples of ", alignment_of(size.bytes));
  return found;
}

Matrices matrices_of(const char* op, const char* name, const ExpertStack& stack) {
  if (!stack.plain.has_value()) return matrices_of(op, name, stack.blocks);
  const TensorView& view = stack.plain;
  PYVT_CHECK(op, is_float(view.dtype) && view.rank == 3, name, ": expected floats [E, N, K]");
  Matrices found = shape_of(op, name, view, view.dtype, view.shape[2]);
  found.is_wide = found.num_cols % 8 == 0 && is_aligned(found, 16);
  return found;
}

}  // namespace pyvt::cuda
