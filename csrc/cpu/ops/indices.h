// Indices: values of an i32 or i64 array, and the part of a view that one of them names.
#pragma once

#include "cpu/ops/rows.h"

namespace pyvt::cpu {

struct Indices {
  const char* data;
  int64_t size;
  int64_t stride_bytes;
  bool is_wide;

  int64_t operator[](int64_t i) const {
    const char* at = data + i * stride_bytes;
    return is_wide ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
  }
};

// Throws for another rank or dtype.
inline Indices indices_of(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, view.rank == 1 && (view.dtype == DType::kI32 || view.dtype == DType::kI64), name,
             ": expected dims [n] of i32|i64");
  return {static_cast<const char*>(view.data), view.shape[0],
          view.stride[0] * item_bytes(view.dtype), view.dtype == DType::kI64};
}

// Throws where a value is outside [low, high).
inline void check_range(const char* op, const char* name, const Indices& indices, int64_t low,
                        int64_t high) {
  for (int64_t i = 0; i < indices.size; ++i) {
    const int64_t value = indices[i];
    PYVT_CHECK(op, value >= low && value < high, name, ": expected values in [", low, ", ", high,
               "), got ", value);
  }
}

// The view without its first dim, at an index of it.
inline TensorView slice(const TensorView& view, int64_t index) {
  TensorView part = view;
  part.data = static_cast<char*>(view.data) + index * view.stride[0] * item_bytes(view.dtype);
  part.rank = view.rank - 1;
  for (int i = 0; i < part.rank; ++i) {
    part.shape[i] = view.shape[i + 1];
    part.stride[i] = view.stride[i + 1];
  }
  return part;
}

}  // namespace pyvt::cpu
