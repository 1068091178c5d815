// Rows: the walk over all leading dims of a view whose last dim is dense.
#pragma once

#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

struct Rows {
  char* data;
  int64_t num_rows;
  int64_t length;  // elements of a row
  int rank;        // of the leading dims
  int64_t shape[kMaxRank];
  int64_t stride_bytes[kMaxRank];

  void* row(int64_t index) const {
    int64_t offset = 0;
    for (int i = rank - 1; i >= 0; --i) {
      offset += index % shape[i] * stride_bytes[i];
      index /= shape[i];
    }
    return data + offset;
  }
};

inline int64_t item_bytes(DType dtype) {
  switch (dtype) {
#define PYVT_BYTES(name, text, number, block, bytes) \
  case DType::name:                                  \
    return bytes;
    PYVT_DTYPES(PYVT_BYTES)
#undef PYVT_BYTES
  }
  return 0;
}

// The walk over rows whose elements lie `view.stride` of the last dim apart.
inline Rows strided_rows_of(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, view.rank >= 1, name, ": expected one dim or more");
  Rows rows{};
  rows.data = static_cast<char*>(view.data);
  rows.length = view.shape[view.rank - 1];
  rows.rank = view.rank - 1;
  rows.num_rows = 1;
  for (int i = 0; i < rows.rank; ++i) {
    rows.shape[i] = view.shape[i];
    rows.stride_bytes[i] = view.stride[i] * item_bytes(view.dtype);
    rows.num_rows *= view.shape[i];
  }
  return rows;
}

// Throws where the last dim is not dense.
inline Rows rows_of(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, view.rank >= 1 && view.is_dense(1), name, ": expected a dense last dim");
  return strided_rows_of(op, name, view);
}

}  // namespace pyvt::cpu
