// The caster from a NumPy array (or None) to TensorView. bf16 is known by ml_dtypes' descriptor.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::bindings {

namespace py = pybind11;

// The bf16 descriptor of ml_dtypes; set when the module is imported and never released.
inline PyObject*& bf16_descriptor() {
  static PyObject* descriptor = nullptr;
  return descriptor;
}

inline bool dtype_of(const py::array& array, DType* found) {
  const py::dtype dtype = array.dtype();
  const char kind = dtype.kind();
  const int64_t size = dtype.itemsize();
  if (dtype.byteorder() == '>') return false;
  if (kind == 'f') {
    *found = size == 4 ? DType::kF32 : size == 2 ? DType::kF16 : DType::kF64;
    return size == 4 || size == 2 || size == 8;
  }
  if (kind == 'i') {
    *found = size == 8 ? DType::kI64 : size == 4 ? DType::kI32 : DType::kI8;
    return size == 8 || size == 4 || size == 1;
  }
  if (kind == 'u') {
    *found = size == 8 ? DType::kU64 : DType::kU8;
    return size == 8 || size == 1;
  }
  if (kind == 'b') {
    *found = DType::kBool;
    return true;
  }
  *found = DType::kBF16;
  return dtype.ptr() == bf16_descriptor() || dtype.equal(py::handle(bf16_descriptor()));
}

}  // namespace pyvt::bindings

namespace pybind11::detail {

template <>
struct type_caster<pyvt::TensorView> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::TensorView, const_name("numpy.ndarray | None"));

  bool load(handle source, bool) {
    if (source.is_none()) return true;
    if (!isinstance<array>(source)) return false;
    const array given = reinterpret_borrow<array>(source);
    if (given.ndim() > pyvt::kMaxRank) return false;
    if (!pyvt::bindings::dtype_of(given, &value.dtype)) return false;
    const int64_t item = given.itemsize();
    value.data = const_cast<void*>(given.data());
    value.rank = static_cast<int>(given.ndim());
    value.is_writeable = given.writeable();
    for (int i = 0; i < value.rank; ++i) {
      value.shape[i] = given.shape(i);
      if (given.strides(i) % item != 0) return false;
      value.stride[i] = given.strides(i) / item;
    }
    return true;
  }
};

}  // namespace pybind11::detail
