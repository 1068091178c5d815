// The Python module of the CUDA backend, and of its emulated twin: expands CUDA_OPS into bindings
// and the table OPS; a new op needs no edit here. The GIL is released around every op.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/device_tensor.h"
#include "bindings/device_view.h"
#include "bindings/dlpack.h"
#include "bindings/unlocked.h"
#ifdef PYVT_CUDA_EMU
#include "cuda/emu/faults.h"
#endif
#include "cuda/cublas_lt.h"
#include "cuda/graph.h"
#include "cuda/ops.h"

namespace py = pybind11;
using namespace pyvt;
using bindings::DeviceTensor;

namespace {

using Contexts = std::shared_ptr<cuda::Context>;

// The device that ops run on; opened by `open`.
Contexts& current() {
  static auto* context = new Contexts;  // never destroyed: the driver may be gone at exit
  return *context;
}

cuda::Context& opened(const char* op) {
  PYVT_CHECK(op, current() != nullptr, "device: expected an open one; call open first");
  return *current();
}

template <typename... Args>
void bind(py::module_& m, const char* name, void (*op)(cuda::Context&, Args...)) {
  m.def(name, [op, name](Args... args) {
    bindings::Unlocked unlocked;
    op(opened(name), args...);
  });
}

void bind_errors() {
  const py::module_ errors = py::module_::import("pyvt.errors");
  static PyObject* kernel_error = py::object(errors.attr("KernelError")).release().ptr();
  static PyObject* memory_error = py::object(errors.attr("OutOfMemoryError")).release().ptr();
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const cuda::OutOfMemory& error) {
      PyErr_SetString(memory_error, error.what());
#ifdef PYVT_CUDA_EMU
    } catch (const emu::Error& error) {
      PyErr_SetString(kernel_error, error.what());
#endif
    } catch (const Error& error) {
      PyErr_SetString(kernel_error, error.what());
    }
  });
}

DeviceTensor empty(const std::vector<int64_t>& shape, const py::object& dtype) {
  (void)opened("empty");
  return DeviceTensor(current(), shape, bindings::plain_dtype(dtype));
}

DeviceTensor zeros(const std::vector<int64_t>& shape, const py::object& dtype) {
  DeviceTensor made = empty(shape, dtype);
  made.fill_zero();
  return made;
}

DeviceTensor upload(const py::array& array) {
  std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  DeviceTensor made = empty(shape, array.dtype());
  made.fill_from(array);
  return made;
}

std::unique_ptr<bindings::Fetch> new_fetch(std::vector<DeviceTensor> tensors) {
  if (tensors.empty()) throw py::value_error("fetch: expected tensors");
  return std::make_unique<bindings::Fetch>(std::move(tensors));
}

py::object numpy(const DeviceTensor& tensor) {
  return py::object(bindings::Fetch({tensor}).arrays()[0]);
}

void bind_groups(py::module_& m) {
  py::class_<bindings::Fetch>(m, "Fetch", "Tensors on their way to the host.")
#ifdef PYVT_CUDA_EMU
      .def("unwaited", &bindings::Fetch::unwaited, "What a caller would read without the wait.")
#endif
      .def("arrays", &bindings::Fetch::arrays, "Wait, and return NumPy arrays.");
  py::class_<bindings::TensorGroup>(m, "TensorGroup", "Tensors that one copy fills.")
      .def(py::init([](const std::vector<py::array>& arrays) {
             (void)opened("TensorGroup");
             return std::make_unique<bindings::TensorGroup>(current(), arrays);
           }),
           py::arg("arrays"))
      .def_property_readonly("tensors", &bindings::TensorGroup::tensors)
      .def("fill", &bindings::TensorGroup::fill, py::arg("arrays"),
           "Fill the first tensors from arrays of their sizes; the rest stays.");
}

void bind_tensor(py::module_& m) {
  py::class_<DeviceTensor>(m, "DeviceTensor", "A strided array in the memory of a device.")
      .def_property_readonly("shape", &DeviceTensor::shape)
      .def_property_readonly("strides", &DeviceTensor::strides)
      .def_property_readonly("ndim", [](const DeviceTensor& t) { return t.view().rank; })
      .def_property_readonly("size", [](const DeviceTensor& t) { return t.view().size(); })
      .def_property_readonly("nbytes", &DeviceTensor::num_bytes)
      .def_property_readonly("itemsize", [](const DeviceTensor& t) { return t.dtype().item_bytes; })
      .def_property_readonly("dtype",
                             [](const DeviceTensor& t) { return py::handle(t.dtype().descriptor); })
      .def_property_readonly("device_type", [](const DeviceTensor&) { return PYVT_DEVICE_TYPE; })
      .def_property_readonly(
          "address",
          [](const DeviceTensor& t) { return reinterpret_cast<uintptr_t>(t.view().data); })
      .def("__len__",
           [](const DeviceTensor& t) {
             if (t.view().rank == 0) throw py::type_error("a tensor without dims has no length");
             return t.view().shape[0];
           })
      .def("__getitem__", &DeviceTensor::item)
      .def("reshape",
           [](const DeviceTensor& t, const py::args& shape) {
             const bool is_tuple = shape.size() == 1 && py::isinstance<py::sequence>(shape[0]);
             const py::object sizes = is_tuple ? py::object(shape[0]) : py::object(shape);
             return t.reshape(py::cast<std::vector<int64_t>>(sizes));
           })
      .def("view", &DeviceTensor::as_dtype, "The same bytes as another dtype of the same size.")
      .def("transpose",
           [](const DeviceTensor& t, const py::args& axes) {
             return t.transpose(py::cast<std::vector<int>>(axes));
           })
      .def("numpy", &numpy, "Copy to a NumPy array; waits for the device.")
      .def("tolist", [](const DeviceTensor& t) { return numpy(t).attr("tolist")(); })
      .def(
          "fetch",
          [](const DeviceTensor&, std::vector<DeviceTensor> tensors) {
            return new_fetch(std::move(tensors));
          },
          "Start to copy tensors to the host.")
      .def("upload", [](const DeviceTensor&, const py::array& array) { return upload(array); })
      .def("upload_together",
           [](const DeviceTensor&, const std::vector<py::array>& arrays) {
             return bindings::TensorGroup(current(), arrays).tensors();
           })
      .def("fill_from", &DeviceTensor::fill_from, "Copy a NumPy array of this shape into it.")
      .def("__dlpack__",
           [](const DeviceTensor& t, const py::kwargs&) { return bindings::to_dlpack(t); })
      .def("__dlpack_device__",
           [](const DeviceTensor&) {
             return py::make_tuple(bindings::kDLDevice, bindings::kDLNumber);
           })
      .def("empty", [](const DeviceTensor&, const std::vector<int64_t>& shape,
                       const py::object& dtype) { return empty(shape, dtype); });
}

void bind_graph(py::module_& m) {
  py::class_<cuda::Pool, std::shared_ptr<cuda::Pool>>(m, "Pool", "Device memory, used again.")
      .def(py::init([] { return std::make_shared<cuda::Pool>(opened("Pool")); }))
      .def("trim", &cuda::Pool::trim)
      .def_property_readonly("nbytes", &cuda::Pool::num_bytes);
  py::class_<cuda::Graph>(m, "Graph", "The ops of a step, captured once and launched again.")
      .def(py::init([] {
        (void)opened("Graph");
        return std::make_unique<cuda::Graph>(current());
      }))
      .def("start", &cuda::Graph::start, py::arg("pool"))
      .def("stop", &cuda::Graph::stop)
      .def("abandon", &cuda::Graph::abandon)
      .def("run", &cuda::Graph::run, py::call_guard<bindings::Unlocked>())
      .def("__len__", &cuda::Graph::num_kernels);
}

}  // namespace

PYBIND11_MODULE(PYVT_MODULE, m) {
  m.doc() = "Kernels of the CUDA backend.";
  bindings::find_plain_dtypes();
  bindings::find_weight_types();
  bind_errors();
  bind_tensor(m);
  bind_groups(m);
  bind_graph(m);

  py::dict ops;
#define PYVT_BIND(op, dtypes) \
  bind(m, #op, &cuda::op);    \
  ops[#op] = dtypes;
  CUDA_OPS(PYVT_BIND)
#undef PYVT_BIND
  m.attr("OPS") = ops;
  m.attr("DEVICE_TYPE") = PYVT_DEVICE_TYPE;
#ifdef PYVT_CUDA_EMU
  m.attr("IS_SIMULATED") = true;
  m.def("run_fault", &emu::run_fault, py::arg("name"), "Run a kernel that is wrong on purpose.");
  m.def(
      "tensor_core_uses", [] { return emu::tensor_core_uses(); },
      "How often warps used tensor cores, by op.");
  m.def("seed", &emu::seed, py::arg("value"), "Start the shuffles of thread orders anew.");
  m.def("pass_barrier", &emu::pass_barrier, py::arg("file"), py::arg("line"),
        "Make threads pass the barrier in a line of a kernel; none with an empty name.");
  m.def("set_memory_limit", &emu::set_memory_limit, py::arg("num_bytes"));
#else
  m.attr("IS_SIMULATED") = false;
#endif

  m.def("num_devices", &cuda::num_devices, "Devices; raises KernelError with the reason for none.");
  m.def(
      "open",
      [](int device) {
        if (current() == nullptr) current() = std::make_shared<cuda::Context>(device);
      },
      py::arg("device") = 0, "Open the device that ops run on, once.");
  m.def("set_cublas_path", &cuda::set_cublas_path, py::arg("path"));
  m.def("why_no_cublas", &cuda::why_no_cublas, "Why cuBLASLt is not used, empty where it is.");
  m.def("use_cublas", &cuda::use_cublas, py::arg("is_used"), "Leave products to own kernels.");
  m.def("device_name", [] { return opened("device_name").name(); });
  m.def("arch", [] { return opened("arch").arch(); }, "10 · major + minor; 0 for the emulator.");
  m.def("num_launches", [] { return opened("num_launches").num_launches; });
  m.def("num_uploads", [] { return opened("num_uploads").num_uploads; });
  m.def("num_waits", [] { return opened("num_waits").num_waits; });
  m.def(
      "synchronize", [] { opened("synchronize").synchronize(); },
      py::call_guard<bindings::Unlocked>());
  m.def(
      "memory",
      [] {
        size_t free = 0, total = 0;
        cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        return py::make_tuple(free, total);
      },
      "Free and total bytes of the device.");
  m.def("pool_bytes", [] { return opened("pool_bytes").pool()->num_bytes(); });
  m.def("trim", [] { opened("trim").trim(); });
  m.def("empty", &empty, py::arg("shape"), py::arg("dtype"));
  m.def("zeros", &zeros, py::arg("shape"), py::arg("dtype"));
  m.def(
      "from_dlpack",
      [](const py::object& source) {
        (void)opened("from_dlpack");
        return bindings::from_dlpack(current(), source);
      },
      py::arg("source"), "A tensor over another library's memory on this device, without a copy.");
  m.def("upload", &upload, py::arg("array"), "Copy a NumPy array to the device.");
}
