// The casters from DeviceTensor (or None), and from a QuantTensor whose blocks are one, to what the
// ops of a device take.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/device_tensor.h"
#include "bindings/weight_types.h"
#include "cuda/weights.h"

namespace pybind11::detail {

template <>
struct type_caster<pyvt::TensorView> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::TensorView, const_name("DeviceTensor | None"));

  bool load(handle source, bool) {
    if (source.is_none()) return true;
    if (!isinstance<pyvt::bindings::DeviceTensor>(source)) return false;
    value = source.cast<const pyvt::bindings::DeviceTensor&>().view();
    return true;
  }
};

template <>
struct type_caster<pyvt::cuda::BlockMatrix> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::cuda::BlockMatrix, const_name("QuantTensor"));

  bool load(handle source, bool convert) {
    return pyvt::bindings::read_blocks(source, convert, &value);
  }
};

template <>
struct type_caster<pyvt::cuda::ExpertStack> {
 public:
  PYBIND11_TYPE_CASTER(pyvt::cuda::ExpertStack, const_name("QuantTensor | DeviceTensor"));

  bool load(handle source, bool convert) {
    using namespace pyvt::bindings;
    if (is_instance_of(source, weight_types().quant_tensor)) {
      make_caster<pyvt::cuda::BlockMatrix> blocks;
      if (!blocks.load(source, convert)) return false;
      value.blocks = cast_op<pyvt::cuda::BlockMatrix&>(blocks);
      value.num_experts = value.blocks.blocks.rank == 3 ? value.blocks.blocks.shape[0] : -1;
    } else {
      make_caster<pyvt::TensorView> plain;
      if (source.is_none() || !plain.load(source, convert)) return false;
      value.plain = cast_op<pyvt::TensorView&>(plain);
      value.num_experts = value.plain.rank == 3 ? value.plain.shape[0] : -1;
    }
    return value.num_experts >= 0;
  }
};

}  // namespace pybind11::detail
