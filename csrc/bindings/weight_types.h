// The Python side of weights: the types and dtypes that casters know by identity.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <unordered_map>

#include "pyvt/dtype.h"

namespace pyvt::bindings {

namespace py = pybind11;

// Looked up when the module is imported and never released.
struct WeightTypes {
  PyObject* packed_tensor = nullptr;
  PyObject* quant_tensor = nullptr;
  std::unordered_map<PyObject*, DType> dtypes;  // by identity: rows of pyvt.tensor.dtype.DTYPES
};

inline WeightTypes& weight_types() {
  static WeightTypes types;
  return types;
}

inline bool dtype_named(const std::string& name, DType* found) {
#define PYVT_FIND(value, text, number, block, bytes) \
  if (name == text) {                                \
    *found = DType::value;                           \
    return true;                                     \
  }
  PYVT_DTYPES(PYVT_FIND)
#undef PYVT_FIND
  return false;
}

inline void find_weight_types() {
  WeightTypes& types = weight_types();
  const auto attribute = [](const char* module, const char* name) {
    return py::object(py::module_::import(module).attr(name)).release().ptr();
  };
  types.packed_tensor = attribute("pyvt.tensor.packed_tensor", "PackedTensor");
  types.quant_tensor = attribute("pyvt.tensor.quant_tensor", "QuantTensor");
  const py::dict rows = py::module_::import("pyvt.tensor.dtype").attr("DTYPES");
  for (const auto& [name, dtype] : rows) {
    DType found;
    if (dtype_named(py::cast<std::string>(name), &found)) {
      types.dtypes[py::reinterpret_borrow<py::object>(dtype).release().ptr()] = found;
    }
  }
}

inline bool dtype_of_weight(py::handle weight, DType* found) {
  const py::object dtype = weight.attr("dtype");
  const auto known = weight_types().dtypes.find(dtype.ptr());
  if (known == weight_types().dtypes.end()) {
    return dtype_named(py::cast<std::string>(dtype.attr("name")), found);
  }
  *found = known->second;
  return true;
}

inline bool is_instance_of(py::handle source, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(source.ptr())) == type;
}

// Reads the blocks of a QuantTensor, as arrays or tensors of a device: whatever the module's caster
// of TensorView takes.
template <typename BlockMatrix>
bool read_blocks(py::handle source, bool convert, BlockMatrix* found) {
  if (!is_instance_of(source, weight_types().quant_tensor)) return false;
  if (!dtype_of_weight(source, &found->dtype)) return false;
  py::detail::make_caster<decltype(found->blocks)> blocks;
  if (!blocks.load(source.attr("blocks"), convert)) return false;
  found->blocks = py::detail::cast_op<decltype(found->blocks)&>(blocks);
  const py::tuple shape = source.attr("shape");
  if (shape.size() < 2) return false;
  found->num_cols = shape[shape.size() - 1].cast<int64_t>();
  return found->blocks.has_value();
}

}  // namespace pyvt::bindings
