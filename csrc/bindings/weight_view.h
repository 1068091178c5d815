// The casters from the packed tensors of pyvt.tensor to what native ops take: PackedTensor to
// PackedMatrix, QuantTensor to BlockMatrix, either or a plain array to ExpertStack.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/view.h"
#include "bindings/weight_types.h"
#include "cpu/packed_format.h"

namespace pyvt::bindings {

// The tiles of a PackedTensor of any rank; the shape of a matrix is its last two dims.
inline bool read_tiles(py::handle source, const py::tuple& shape, cpu::PackedMatrix* found) {
  if (shape.size() < 2) return false;
  // The tensor's own checks: uint8, one dim, contiguous.
  const py::array data = source.attr("data");
  found->data = static_cast<const uint8_t*>(data.data());
  found->num_bytes = data.size();
  found->num_rows = shape[shape.size() - 2].cast<int64_t>();
  found->num_cols = shape[shape.size() - 1].cast<int64_t>();
  return true;
}

}  // namespace pyvt::bindings

namespace pybind11::detail {

template <>
struct type_caster<pyvt::cpu::PackedMatrix> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::cpu::PackedMatrix, const_name("PackedTensor"));

  bool load(handle source, bool) {
    using namespace pyvt::bindings;
    if (!is_instance_of(source, weight_types().packed_tensor)) return false;
    if (!dtype_of_weight(source, &value.dtype)) return false;
    const tuple shape = source.attr("shape");
    return shape.size() == 2 && read_tiles(source, shape, &value);
  }
};

template <>
struct type_caster<pyvt::cpu::BlockMatrix> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::cpu::BlockMatrix, const_name("QuantTensor"));

  bool load(handle source, bool convert) {
    return pyvt::bindings::read_blocks(source, convert, &value);
  }
};

template <>
struct type_caster<pyvt::cpu::ExpertStack> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::cpu::ExpertStack, const_name("PackedTensor | QuantTensor | ndarray"));

  bool load(handle source, bool convert) {
    using namespace pyvt::bindings;
    if (isinstance<array>(source)) {
      make_caster<pyvt::TensorView> plain;
      if (!plain.load(source, convert)) return false;
      value.plain = cast_op<pyvt::TensorView&>(plain);
      if (value.plain.rank == 3) value.num_experts = value.plain.shape[0];
      return true;
    }
    if (is_instance_of(source, weight_types().quant_tensor)) {
      make_caster<pyvt::cpu::BlockMatrix> blocks;
      if (!blocks.load(source, convert)) return false;
      value.blocks = cast_op<pyvt::cpu::BlockMatrix&>(blocks);
      if (value.blocks.blocks.rank == 3) value.num_experts = value.blocks.blocks.shape[0];
      return true;
    }
    if (!is_instance_of(source, weight_types().packed_tensor)) return false;
    if (!dtype_of_weight(source, &value.tiles.dtype)) return false;
    const tuple shape = source.attr("shape");
    if (shape.size() == 3) value.num_experts = shape[0].cast<int64_t>();
    return read_tiles(source, shape, &value.tiles);
  }
};

}  // namespace pybind11::detail
