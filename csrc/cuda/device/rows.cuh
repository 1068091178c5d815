// A tensor as rows of its last axis: what most kernels walk over. Leading axes are merged into at
// most two; an element may be any float, read and written as f32.
#pragma once

#include "cuda/device/types.cuh"
#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cuda {

PYVT_DEVICE float load_any(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kBF16:
      return load(static_cast<const bf16*>(data)[at]);
    case DType::kF16:
      return load(static_cast<const f16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

PYVT_DEVICE void store_any(void* data, DType dtype, int64_t at, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<bf16*>(data)[at] = store<bf16>(value);
      break;
    case DType::kF16:
      static_cast<f16*>(data)[at] = store<f16>(value);
      break;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

// One row: what a kernel keeps while it walks over it.
struct Row {
  void* data;
  DType dtype;
  int64_t stride;

  PYVT_DEVICE float get(int64_t column) const { return load_any(data, dtype, column * stride); }
  PYVT_DEVICE void set(int64_t column, float value) const {
    store_any(data, dtype, column * stride, value);
  }
};

struct Rows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0, length = 0;
  int64_t num_inner = 1;  // rows of the inner leading axis
  int64_t outer_stride = 0, inner_stride = 0, stride = 1;

  // The first element of a row.
  PYVT_DEVICE int64_t row(int64_t i) const {
    // A grid has fewer rows than 2^32, and narrow division is far quicker.
    const auto index = static_cast<uint32_t>(i), inner = static_cast<uint32_t>(num_inner);
    return index / inner * outer_stride + index % inner * inner_stride;
  }
  PYVT_DEVICE Row at(int64_t i) const {
    const int64_t item = dtype == DType::kF32 ? 4 : 2;
    return {static_cast<char*>(data) + row(i) * item, dtype, stride};
  }
};

inline bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Throws where more than two leading axes stay, or the dtype is no float.
inline Rows rows_of(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, is_float(view.dtype), name, ": expected f32, bf16 or f16, got ",
             dtype_name(view.dtype));
  Rows rows;
  rows.data = view.data;
  rows.dtype = view.dtype;
  if (view.rank == 0) {  // a number is a row of one
    rows.num_rows = rows.length = 1;
    return rows;
  }
  rows.length = view.shape[view.rank - 1];
  rows.stride = view.stride[view.rank - 1];
  rows.num_rows = 1;
  // Leading axes from the last to the first, those of size 1 left out and neighbours merged.
  int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
  int count = 0;
  for (int i = view.rank - 2; i >= 0; --i) {
    rows.num_rows *= view.shape[i];
    if (view.shape[i] == 1) continue;
    if (count > 0 && view.stride[i] == sizes[count - 1] * strides[count - 1]) {
      sizes[count - 1] *= view.shape[i];
      continue;
    }
    sizes[count] = view.shape[i];
    strides[count] = view.stride[i];
    ++count;
  }
  if (rows.num_rows == 0) return rows;
  PYVT_CHECK(op, count <= 2, name, ": expected at most two leading strides, got ", count);
  if (count > 0) {
    rows.num_inner = sizes[0];
    rows.inner_stride = strides[0];
  }
  if (count > 1) rows.outer_stride = strides[1];
  return rows;
}

// Rows of the shape of others.
inline Rows rows_like(const char* op, const char* name, const TensorView& view, const Rows& like) {
  const Rows rows = rows_of(op, name, view);
  PYVT_CHECK(op, rows.num_rows == like.num_rows && rows.length == like.length, name, ": expected [",
             like.num_rows, ", ", like.length, "], got [", rows.num_rows, ", ", rows.length, "]");
  return rows;
}

// Threads of a block that has a row: whole warps, no more than there is work for.
inline unsigned threads_for(int64_t length, int64_t per_thread, int64_t most) {
  int64_t threads = (length + per_thread - 1) / per_thread;
  threads = (threads + 31) / 32 * 32;
  if (threads < 32) threads = 32;
  return static_cast<unsigned>(threads < most ? threads : most);
}

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace pyvt::cuda
