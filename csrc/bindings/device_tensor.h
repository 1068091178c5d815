// DeviceTensor: a strided array in the memory of a device, as Python sees it. Views share the
// buffer, which goes back to its pool with the last of them. There are no arithmetic operators:
// every computation is an op.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "cuda/context.h"
#include "pyvt/tensor_view.h"

namespace pyvt::bindings {

namespace py = pybind11;

// NumPy's descriptors of the plain dtypes; set when the module is imported and never released.
struct PlainDType {
  DType dtype;
  PyObject* descriptor;
  int64_t item_bytes;
};

// Looks the descriptors up.
void find_plain_dtypes();

// Throws pyvt.errors.UnsupportedError for a dtype that no device tensor has.
const PlainDType& plain_dtype(py::handle dtype);
const PlainDType& plain_dtype(DType dtype);

class DeviceTensor {
 public:
  // A new tensor, content undefined.
  DeviceTensor(std::shared_ptr<cuda::Context> context, const std::vector<int64_t>& shape,
               const PlainDType& dtype);

  // Over memory of somebody else, which `owner` keeps.
  static DeviceTensor over(std::shared_ptr<cuda::Context> context, std::shared_ptr<void> owner,
                           const PlainDType& dtype, const TensorView& view);

  DeviceTensor like(const TensorView& view) const;

  const TensorView& view() const { return view_; }
  const PlainDType& dtype() const { return *dtype_; }
  cuda::Context& context() const { return *context_; }
  const std::shared_ptr<cuda::Context>& shared_context() const { return context_; }

  py::tuple shape() const;
  py::tuple strides() const;  // in bytes, as NumPy's
  int64_t num_bytes() const { return view_.size() * dtype_->item_bytes; }

  // Ints, slices, None and one `...`; an index that selects elements one by one is no view.
  DeviceTensor item(const py::object& index) const;
  // Throws ShapeError where the elements would have to be copied.
  DeviceTensor reshape(const std::vector<int64_t>& shape) const;
  // The same bytes as another dtype of the same size.
  DeviceTensor as_dtype(const py::object& dtype) const;
  DeviceTensor transpose(const std::vector<int>& axes) const;

  // The bytes from the first element to the last.
  int64_t span_bytes() const;
  // A new NumPy array of this shape from so many bytes at `data`.
  py::array from_span(const void* data) const;
  // Elements in order, of the same shape and dtype; the array may be changed at once.
  void fill_from(const py::array& array) const;
  void fill_zero() const;

 private:
  DeviceTensor() = default;

  std::shared_ptr<cuda::Context> context_;
  std::shared_ptr<void> owner_;  // a Buffer of the pool, or what keeps another's memory
  const PlainDType* dtype_ = nullptr;
  TensorView view_;
};

// NumPy arrays of tensors whose copies are on their way.
class Fetch {
 public:
  explicit Fetch(std::vector<DeviceTensor> tensors);
  // Waits for the copies.
  py::list arrays();
  // What lies where the copies go, whether they are done or not.
  py::list unwaited() const;

 private:
  std::vector<DeviceTensor> tensors_;
  cuda::Download download_;
};

// Tensors in one buffer, filled from host arrays in one copy.
class TensorGroup {
 public:
  TensorGroup(std::shared_ptr<cuda::Context> context, const std::vector<py::array>& arrays);
  const std::vector<DeviceTensor>& tensors() const { return tensors_; }
  // The first arrays of the group, of the same sizes as before; the rest stays.
  void fill(const std::vector<py::array>& arrays) const;

 private:
  std::vector<DeviceTensor> tensors_;
  std::vector<size_t> offsets_;  // and the end
  std::shared_ptr<cuda::Buffer> buffer_;
};

}  // namespace pyvt::bindings
