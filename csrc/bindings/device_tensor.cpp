// Views and copies of device tensors; see device_tensor.h.
#include "bindings/device_tensor.h"

#include <cstring>

#include "bindings/unlocked.h"

namespace pyvt::bindings {
namespace {

// Of the tensors of a group, so that kernels may read several elements at once.
constexpr size_t kGroupAlignment = 256;

std::vector<PlainDType>& plain_dtypes() {
  static std::vector<PlainDType> dtypes;
  return dtypes;
}

// Raises an error of pyvt.errors.
[[noreturn]] void raise(const char* type, const std::string& text) {
  const py::object error = py::module_::import("pyvt.errors").attr(type);
  PyErr_SetString(error.ptr(), text.c_str());
  throw py::error_already_set();
}

std::string text_of(const py::handle& value) { return py::cast<std::string>(py::str(value)); }

void set_dense_strides(TensorView* view) {
  int64_t stride = 1;
  for (int i = view->rank - 1; i >= 0; --i) {
    view->stride[i] = stride;
    stride *= view->shape[i];
  }
}

// More than any device has where the number is too large for 64 bits.
size_t bytes_of(const TensorView& view, int64_t item_bytes) {
  int64_t bytes = item_bytes;
  bool is_too_large = false;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return 0;
    is_too_large = __builtin_mul_overflow(bytes, view.shape[i], &bytes) || is_too_large;
  }
  return is_too_large ? INT64_MAX : static_cast<size_t>(bytes);
}

// One step of an index on axis `from` of `view`; the axis that stays is appended to `made`.
void apply_slice(const py::slice& slice, const TensorView& view, int from, int64_t item_bytes,
                 TensorView* made) {
  py::ssize_t start, stop, step, length;
  if (!slice.compute(view.shape[from], &start, &stop, &step, &length)) {
    throw py::error_already_set();
  }
  if (step < 0) raise("ShapeError", "[device tensor] index: expected a step above 0");
  if (length > 0) {
    made->data = static_cast<char*>(made->data) + start * view.stride[from] * item_bytes;
  }
  made->shape[made->rank] = length;
  made->stride[made->rank] = view.stride[from] * step;
  ++made->rank;
}

// Arrays have the slot of an index too, and only some of them are one.
bool is_int(const py::handle& part) {
  if (!PyIndex_Check(part.ptr())) return false;
  PyObject* index = PyNumber_Index(part.ptr());
  if (index == nullptr) PyErr_Clear();
  Py_XDECREF(index);
  return index != nullptr;
}

bool is_basic(const py::handle& part) {
  return py::isinstance<py::slice>(part) || part.is_none() || part.is(py::ellipsis()) ||
         is_int(part);
}

}  // namespace

void find_plain_dtypes() {
  const py::dict rows = py::module_::import("pyvt.tensor.dtype").attr("DTYPES");
#define PYVT_PLAIN_ROW(value, text, number, block, bytes)                        \
  if (rows.contains(text) && !rows[text].attr("numpy").is_none()) {              \
    const py::object descriptor = rows[text].attr("numpy");                      \
    plain_dtypes().push_back({DType::value, descriptor.inc_ref().ptr(), bytes}); \
  }
  PYVT_DTYPES(PYVT_PLAIN_ROW)
#undef PYVT_PLAIN_ROW
}

const PlainDType& plain_dtype(py::handle dtype) {
  for (const PlainDType& known : plain_dtypes()) {
    if (known.descriptor == dtype.ptr()) return known;
  }
  const py::dtype wanted = py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype));
  for (const PlainDType& known : plain_dtypes()) {
    if (wanted.equal(py::handle(known.descriptor))) return known;
  }
  raise("UnsupportedError",
        "[device tensor] dtype: expected one that kernels know, got " + text_of(dtype));
}

const PlainDType& plain_dtype(DType dtype) {
  for (const PlainDType& known : plain_dtypes()) {
    if (known.dtype == dtype) return known;
  }
  raise("UnsupportedError",
        std::string("[device tensor] dtype: expected a plain one, got ") + dtype_name(dtype));
}

DeviceTensor::DeviceTensor(std::shared_ptr<cuda::Context> context,
                           const std::vector<int64_t>& shape, const PlainDType& dtype)
    : context_(std::move(context)), dtype_(&dtype) {
  if (shape.size() > kMaxRank)
    raise("ShapeError", "[device tensor] shape: expected 6 dims at most");
  view_.dtype = dtype.dtype;
  view_.rank = static_cast<int>(shape.size());
  view_.is_writeable = true;
  for (int i = 0; i < view_.rank; ++i) {
    if (shape[i] < 0) raise("ShapeError", "[device tensor] shape: expected sizes of at least 0");
    view_.shape[i] = shape[i];
  }
  const auto buffer = context_->take(bytes_of(view_, dtype.item_bytes));
  set_dense_strides(&view_);
  view_.data = buffer->data();
  owner_ = buffer;
}

DeviceTensor DeviceTensor::over(std::shared_ptr<cuda::Context> context, std::shared_ptr<void> owner,
                                const PlainDType& dtype, const TensorView& view) {
  DeviceTensor made;
  made.context_ = std::move(context);
  made.owner_ = std::move(owner);
  made.dtype_ = &dtype;
  made.view_ = view;
  return made;
}

DeviceTensor DeviceTensor::like(const TensorView& view) const {
  DeviceTensor made;
  made.context_ = context_;
  made.owner_ = owner_;
  made.dtype_ = dtype_;
  made.view_ = view;
  return made;
}

py::tuple DeviceTensor::shape() const {
  py::tuple sizes(view_.rank);
  for (int i = 0; i < view_.rank; ++i) sizes[i] = view_.shape[i];
  return sizes;
}

py::tuple DeviceTensor::strides() const {
  py::tuple strides(view_.rank);
  for (int i = 0; i < view_.rank; ++i) strides[i] = view_.stride[i] * dtype_->item_bytes;
  return strides;
}

DeviceTensor DeviceTensor::item(const py::object& index) const {
  const py::tuple parts =
      py::isinstance<py::tuple>(index) ? py::tuple(index) : py::make_tuple(index);
  int num_axes = 0, num_dims = view_.rank, num_ellipses = 0;
  for (const py::handle part : parts) {
    if (!is_basic(part)) {
      raise("ShapeError", "[device tensor] index: expected ints, slices, None or ..., got " +
                              text_of(part) + "; gather rows with an op");
    }
    if (part.is_none()) {
      ++num_dims;
    } else if (part.is(py::ellipsis())) {
      ++num_ellipses;
    } else {
      ++num_axes;
      num_dims -= !py::isinstance<py::slice>(part);
    }
  }
  if (num_axes > view_.rank) raise("ShapeError", "[device tensor] index: more axes than dims");
  if (num_ellipses > 1) raise("ShapeError", "[device tensor] index: expected one ... at most");
  if (num_dims > kMaxRank) raise("ShapeError", "[device tensor] shape: expected 6 dims at most");
  TensorView made = view_;
  made.rank = 0;
  int axis = 0;
  const auto keep = [&](int count) {
    for (; count > 0; --count, ++axis, ++made.rank) {
      made.shape[made.rank] = view_.shape[axis];
      made.stride[made.rank] = view_.stride[axis];
    }
  };
  for (const py::handle part : parts) {
    if (part.is(py::ellipsis())) {
      keep(view_.rank - num_axes);
      num_axes = view_.rank;
    } else if (part.is_none()) {
      made.shape[made.rank] = 1;
      made.stride[made.rank++] = 0;
    } else if (py::isinstance<py::slice>(part)) {
      apply_slice(py::reinterpret_borrow<py::slice>(part), view_, axis++, dtype_->item_bytes,
                  &made);
    } else {
      int64_t at = py::cast<int64_t>(py::reinterpret_steal<py::object>(PyNumber_Index(part.ptr())));
      const int64_t size = view_.shape[axis];
      if (at < -size || at >= size) throw py::index_error("index is out of range");
      at += at < 0 ? size : 0;
      made.data = static_cast<char*>(made.data) + at * view_.stride[axis++] * dtype_->item_bytes;
    }
  }
  keep(view_.rank - axis);
  return like(made);
}

DeviceTensor DeviceTensor::reshape(const std::vector<int64_t>& shape) const {
  TensorView made = view_;
  made.rank = static_cast<int>(shape.size());
  if (made.rank > kMaxRank) raise("ShapeError", "[device tensor] shape: expected 6 dims at most");
  int64_t known = 1;
  int free = -1;
  for (int i = 0; i < made.rank; ++i) {
    made.shape[i] = shape[i];
    if (shape[i] == -1) {
      free = i;
    } else if (shape[i] < 0) {
      raise("ShapeError", "[device tensor] shape: expected sizes of at least 0");
    } else {
      known *= shape[i];
    }
  }
  if (free >= 0) made.shape[free] = known == 0 ? 0 : view_.size() / known;
  if (made.size() != view_.size()) {
    raise("ShapeError", "[device tensor] shape: expected the size of " + text_of(this->shape()));
  }
  set_dense_strides(&made);
  if (view_.is_dense()) return like(made);
  // Axes of both shapes are matched in groups of equal size; a group must lie without gaps.
  for (int from = 0, to = 0; from < view_.rank || to < made.rank;) {
    const int first_from = from, first_to = to;
    int64_t have = from < view_.rank ? view_.shape[from++] : 1;
    int64_t want = to < made.rank ? made.shape[to++] : 1;
    while (have != want) {
      if (have < want) {
        have *= view_.shape[from++];
      } else {
        want *= made.shape[to++];
      }
    }
    int64_t stride = 1;
    bool is_first = true;
    for (int i = from - 1; i >= first_from; --i) {
      if (view_.shape[i] == 1) continue;
      if (!is_first && view_.stride[i] != stride) {
        raise("ShapeError", "[device tensor] reshape: expected a view, got strides " +
                                text_of(strides()) + "; copy with ops.cast first");
      }
      if (is_first) made.stride[to - 1] = view_.stride[i];
      stride = view_.stride[i] * view_.shape[i];
      is_first = false;
    }
    for (int i = to - 2; i >= first_to; --i)
      made.stride[i] = made.stride[i + 1] * made.shape[i + 1];
  }
  return like(made);
}

DeviceTensor DeviceTensor::as_dtype(const py::object& dtype) const {
  const PlainDType& wanted = plain_dtype(dtype);
  if (wanted.item_bytes != dtype_->item_bytes) {
    raise("ShapeError",
          "[device tensor] view: expected a dtype of the same size, got " + text_of(dtype));
  }
  DeviceTensor made = like(view_);
  made.dtype_ = &wanted;
  made.view_.dtype = wanted.dtype;
  return made;
}

DeviceTensor DeviceTensor::transpose(const std::vector<int>& axes) const {
  TensorView made = view_;
  if (static_cast<int>(axes.size()) != view_.rank) {
    raise("ShapeError", "[device tensor] axes: expected one for each dim");
  }
  int seen = 0;
  for (int i = 0; i < view_.rank; ++i) {
    if (axes[i] < 0 || axes[i] >= view_.rank || (seen >> axes[i] & 1) != 0) {
      raise("ShapeError", "[device tensor] axes: expected each dim once");
    }
    seen |= 1 << axes[i];
    made.shape[i] = view_.shape[axes[i]];
    made.stride[i] = view_.stride[axes[i]];
  }
  return like(made);
}

int64_t DeviceTensor::span_bytes() const {
  if (view_.size() == 0) return 0;
  int64_t span = 1;
  for (int i = 0; i < view_.rank; ++i) span += (view_.shape[i] - 1) * view_.stride[i];
  return span * dtype_->item_bytes;
}

py::array DeviceTensor::from_span(const void* data) const {
  std::vector<py::ssize_t> shape, strides;
  for (int i = 0; i < view_.rank; ++i) {
    shape.push_back(view_.shape[i]);
    strides.push_back(view_.stride[i] * dtype_->item_bytes);
  }
  const auto descriptor = py::reinterpret_borrow<py::dtype>(dtype_->descriptor);
  if (view_.size() == 0) return py::array(descriptor, shape);
  // With a base it is a view, which is copied to an array without gaps.
  const py::array view(descriptor, shape, strides, data, py::none());
  return py::array(view.attr("copy")());
}

void DeviceTensor::fill_from(const py::array& array) const {
  const py::array dense = py::module_::import("numpy").attr("ascontiguousarray")(array);
  if (dense.size() != view_.size() || !view_.is_dense() || dense.itemsize() != dtype_->item_bytes) {
    raise("ShapeError", "[device tensor] copy: expected a dense tensor of shape " +
                            text_of(array.attr("shape")) + ", got " + text_of(shape()));
  }
  const void* from = dense.data();
  Unlocked unlocked;
  context_->upload(view_.data, from, static_cast<size_t>(num_bytes()));
}

void DeviceTensor::fill_zero() const {
  if (!view_.is_dense()) raise("ShapeError", "[device tensor] zeros: expected a dense tensor");
  cuda::check(cudaMemsetAsync(view_.data, 0, static_cast<size_t>(num_bytes()), context_->stream()),
              "cudaMemset");
}

Fetch::Fetch(std::vector<DeviceTensor> tensors)
    : tensors_(std::move(tensors)), download_(tensors_.at(0).shared_context()) {
  std::vector<std::pair<const void*, size_t>> pieces;
  for (const DeviceTensor& tensor : tensors_) {
    pieces.emplace_back(tensor.view().data, static_cast<size_t>(tensor.span_bytes()));
  }
  download_.start(pieces);
}

py::list Fetch::arrays() {
  {
    Unlocked unlocked;
    download_.wait();
  }
  return unwaited();
}

py::list Fetch::unwaited() const {
  py::list made;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    made.append(tensors_[i].from_span(download_.piece(i)));
  }
  return made;
}

TensorGroup::TensorGroup(std::shared_ptr<cuda::Context> context,
                         const std::vector<py::array>& arrays) {
  size_t total = 0;
  for (const py::array& array : arrays) {
    offsets_.push_back(total);
    const auto size = static_cast<size_t>(array.nbytes());
    total += (size + kGroupAlignment - 1) / kGroupAlignment * kGroupAlignment;
  }
  offsets_.push_back(total);
  buffer_ = context->take(total);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const PlainDType& dtype = plain_dtype(arrays[i].dtype());
    TensorView view;
    view.data = static_cast<char*>(buffer_->data()) + offsets_[i];
    view.dtype = dtype.dtype;
    view.rank = static_cast<int>(arrays[i].ndim());
    view.is_writeable = true;
    if (view.rank > kMaxRank) raise("ShapeError", "[device tensor] shape: expected 6 dims at most");
    for (int axis = 0; axis < view.rank; ++axis) view.shape[axis] = arrays[i].shape(axis);
    set_dense_strides(&view);
    tensors_.push_back(DeviceTensor::over(context, buffer_, dtype, view));
  }
  fill(arrays);
}

void TensorGroup::fill(const std::vector<py::array>& arrays) const {
  if (arrays.empty() || arrays.size() > tensors_.size()) {
    raise("ShapeError", "[device tensor] group: expected at most as many arrays as it has");
  }
  const py::object dense = py::module_::import("numpy").attr("ascontiguousarray");
  std::vector<char> bytes(offsets_[arrays.size()]);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const DeviceTensor& to = tensors_[i];
    const py::array from = dense(arrays[i]);
    if (from.size() != to.view().size() || from.itemsize() != to.dtype().item_bytes) {
      raise("ShapeError", "[device tensor] group: expected shape " + text_of(to.shape()) +
                              ", got " + text_of(arrays[i].attr("shape")));
    }
    std::memcpy(bytes.data() + offsets_[i], from.data(), static_cast<size_t>(from.nbytes()));
  }
  Unlocked unlocked;
  tensors_[0].context().upload(buffer_->data(), bytes.data(), bytes.size());
}

}  // namespace pyvt::bindings
