// The structures are those of DLPack 0.8; see dlpack.h.
#include "bindings/dlpack.h"

#include <vector>

#include "bindings/unlocked.h"

namespace pyvt::bindings {
namespace {

struct DLDevice {
  int32_t type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t rank;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null where the tensor is dense
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* owner;
  void (*release)(DLManagedTensor*);
};

constexpr char kName[] = "dltensor", kUsedName[] = "used_dltensor";

struct DTypeRow {
  DType dtype;
  uint8_t code, bits;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kF64, 2, 64}, {DType::kF32, 2, 32}, {DType::kF16, 2, 16}, {DType::kBF16, 4, 16},
    {DType::kFP8, 10, 8}, {DType::kI64, 0, 64}, {DType::kI32, 0, 32}, {DType::kI8, 0, 8},
    {DType::kU8, 1, 8},   {DType::kU64, 1, 64}, {DType::kBool, 6, 8},
};

// What a capsule keeps: the tensor, and its sizes for the reader.
struct Export {
  DLManagedTensor managed;
  DeviceTensor tensor;
  std::vector<int64_t> shape, strides;
};

void release_export(DLManagedTensor* managed) { delete static_cast<Export*>(managed->owner); }

// A capsule that nobody took releases its tensor.
void release_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kName)) return;
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kName));
  managed->release(managed);
}

[[noreturn]] void refuse(const std::string& text) {
  const py::object error = py::module_::import("pyvt.errors").attr("UnsupportedError");
  PyErr_SetString(error.ptr(), ("[device tensor] from_dlpack: " + text).c_str());
  throw py::error_already_set();
}

const PlainDType& plain_of(const DLDataType& dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) {
      return plain_dtype(row.dtype);
    }
  }
  refuse("expected a dtype that kernels know");
}

}  // namespace

py::capsule to_dlpack(const DeviceTensor& tensor) {
  {
    Unlocked unlocked;
    tensor.context().synchronize();
  }
  const TensorView& view = tensor.view();
  auto* made = new Export{{}, tensor, {}, {}};
  made->shape.assign(view.shape, view.shape + view.rank);
  made->strides.assign(view.stride, view.stride + view.rank);
  DLDataType dtype{};
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == view.dtype) dtype = {row.code, row.bits, 1};
  }
  made->managed = {{view.data,
                    {kDLDevice, kDLNumber},
                    view.rank,
                    dtype,
                    made->shape.data(),
                    made->strides.data(),
                    0},
                   made,
                   &release_export};
  return py::reinterpret_steal<py::capsule>(PyCapsule_New(&made->managed, kName, &release_capsule));
}

DeviceTensor from_dlpack(std::shared_ptr<cuda::Context> context, const py::object& source) {
  const auto device = py::cast<std::pair<int, int>>(source.attr("__dlpack_device__")());
  if (device.first != kDLDevice || device.second != kDLNumber) {
    refuse("expected memory of this device, got another's");
  }
#ifdef PYVT_CUDA_EMU
  const py::object capsule = source.attr("__dlpack__")();
#else
  // The maker lets our stream wait for what it has queued.
  const auto stream = reinterpret_cast<intptr_t>(context->stream());
  const py::object capsule = source.attr("__dlpack__")(py::arg("stream") = stream);
#endif
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  if (managed == nullptr) throw py::error_already_set();
  const DLTensor& given = managed->tensor;
  const PlainDType& dtype = plain_of(given.dtype);
  if (given.rank > kMaxRank) refuse("expected 6 dims at most");
  TensorView view;
  view.data = static_cast<char*>(given.data) + given.byte_offset;
  view.dtype = dtype.dtype;
  view.rank = given.rank;
  view.is_writeable = true;
  int64_t dense = 1;
  for (int i = given.rank - 1; i >= 0; --i) {
    view.shape[i] = given.shape[i];
    view.stride[i] = given.strides == nullptr ? dense : given.strides[i];
    if (view.stride[i] < 0) refuse("expected strides of at least 0; copy the array first");
    dense *= given.shape[i];
  }
  if (PyCapsule_SetName(capsule.ptr(), kUsedName) != 0) throw py::error_already_set();
  std::shared_ptr<void> owner(managed, [context](void* kept) {
    auto* tensor = static_cast<DLManagedTensor*>(kept);
    // Its maker may use the memory again at once, on a stream of its own.
    (void)cudaStreamSynchronize(context->stream());
    const py::gil_scoped_acquire acquired;
    if (tensor->release != nullptr) tensor->release(tensor);
  });
  return DeviceTensor::over(std::move(context), std::move(owner), dtype, view);
}

}  // namespace pyvt::bindings
