// The caster from a NumPy array (or None) to TensorView. bf16 and fp8 are known by the descriptors
// of ml_dtypes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::bindings {

namespace py = pybind11;

// The descriptors of ml_dtypes; found when the module is imported and never released.
struct NamedDTypes {
  PyObject *bf16 = nullptr, *fp8 = nullptr;

  void find() {
    const py::module_ names = py::module_::import("ml_dtypes");
    bf16 = py::dtype::from_args(names.attr("bfloat16")).release().ptr();
    fp8 = py::dtype::from_args(names.attr("float8_e4m3fn")).release().ptr();
  }
};

inline NamedDTypes& named_dtypes() {
  static NamedDTypes found;
  return found;
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
  const NamedDTypes& named = named_dtypes();
  *found = size == 1 ? DType::kFP8 : DType::kBF16;
  PyObject* descriptor = size == 1 ? named.fp8 : named.bf16;
  return dtype.ptr() == descriptor || dtype.equal(py::handle(descriptor));
}

// Throws for an array that no view can hold.
inline void check_layout(const py::array& array) {
  const int64_t item = array.itemsize();
  bool is_whole = reinterpret_cast<uintptr_t>(array.data()) % static_cast<uintptr_t>(item) == 0;
  for (int64_t i = 0; i < array.ndim(); ++i) is_whole = is_whole && array.strides(i) % item == 0;
  PYVT_CHECK("native", array.ndim() <= kMaxRank, "array: expected at most ", kMaxRank,
             " dims, got ", array.ndim());
  PYVT_CHECK("native", is_whole || array.size() == 0,
             "array: expected aligned elements, got an array that cuts through them; pass a copy");
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
    if (!pyvt::bindings::dtype_of(given, &value.dtype)) return false;
    const int64_t item = given.itemsize();
    value.data = const_cast<void*>(given.data());
    pyvt::bindings::check_layout(given);
    value.rank = static_cast<int>(given.ndim());
    value.is_writeable = given.writeable();
    for (int i = 0; i < value.rank; ++i) {
      value.shape[i] = given.shape(i);
      value.stride[i] = given.strides(i) / item;
    }
    return true;
  }
};

}  // namespace pybind11::detail
