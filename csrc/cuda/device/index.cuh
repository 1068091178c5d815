// Index arrays: i32 or i64, read as i64.
#pragma once

#include "cuda/device/platform.cuh"
#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cuda {

struct Index {
  const void* data = nullptr;
  int64_t size = 0, stride = 1;
  bool is_wide = false;

  PYVT_DEVICE int64_t operator[](int64_t i) const {
    return is_wide ? static_cast<const int64_t*>(data)[i * stride]
                   : static_cast<const int32_t*>(data)[i * stride];
  }
};

// Throws where it is no index array of that size; a size below 0 is any.
inline Index index_of(const char* op, const char* name, const TensorView& view, int64_t size = -1) {
  PYVT_CHECK(op, view.rank == 1 && (size < 0 || view.shape[0] == size), name, ": expected [", size,
             "]");
  PYVT_CHECK(op, view.dtype == DType::kI64 || view.dtype == DType::kI32, name,
             ": expected i32 or i64, got ", dtype_name(view.dtype));
  return {view.data, view.shape[0], view.stride[0], view.dtype == DType::kI64};
}

}  // namespace pyvt::cuda
