// TensorView: a strided array that somebody else owns. Shape and strides in elements.
#pragma once

#include <cstdint>

#include "pyvt/dtype.h"

namespace pyvt {

constexpr int kMaxRank = 6;

struct TensorView {
  void* data = nullptr;  // null for an optional tensor that was not given
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};
  bool is_writeable = false;

  bool has_value() const { return data != nullptr || rank > 0; }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }

  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }

  // Whether the last `dims` dims lie side by side without gaps; an empty view does.
  bool is_dense(int dims) const {
    if (size() == 0) return true;
    int64_t expected = 1;
    for (int i = rank - 1; i >= rank - dims; --i) {
      if (shape[i] != 1 && stride[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }

  bool is_dense() const { return is_dense(rank); }
};

}  // namespace pyvt
