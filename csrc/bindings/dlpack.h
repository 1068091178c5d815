// DLPack in and out: arrays of other libraries on the same device become tensors without a copy,
// and tensors theirs. The emulator's memory is the host's, so NumPy takes its tensors.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/device_tensor.h"

namespace pyvt::bindings {

#ifdef PYVT_CUDA_EMU
constexpr int kDLDevice = 1;  // kDLCPU
#else
constexpr int kDLDevice = 2;  // kDLCUDA
#endif
constexpr int kDLNumber = 0;  // pyvt opens the first device

// A capsule that keeps the tensor's memory; waits, so that any stream may read it.
py::capsule to_dlpack(const DeviceTensor& tensor);

// A tensor over the memory of `source`, which has `__dlpack__`; it is kept as long as the tensor.
// Raises UnsupportedError for another device or dtype.
DeviceTensor from_dlpack(std::shared_ptr<cuda::Context> context, const py::object& source);

}  // namespace pyvt::bindings
