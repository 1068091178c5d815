// The Python module of the CPU backend: expands CPU_OPS into bindings and the table OPS; a new op
// needs no edit here. The GIL is released around every op.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/op.h"
#include "bindings/weight_view.h"
#include "cpu/kernel_table.h"
#include "cpu/machine_limits.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"
#include "cpu/usable_cores.h"

namespace py = pybind11;
using namespace pyvt;

PYBIND11_MODULE(_native, m) {
  m.doc() = "Kernels of the CPU backend.";

  bindings::named_dtypes().find();
  bindings::find_weight_types();

  py::object kernel_error = py::module_::import("pyvt.errors").attr("KernelError");
  static PyObject* error_type = kernel_error.release().ptr();
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetString(error_type, error.what());
    }
  });

  py::dict ops;
#define PYVT_BIND(op, dtypes, parameters, names)    \
  bindings::bind_op(m, #op, #parameters, &cpu::op); \
  ops[#op] = dtypes;
  CPU_OPS(PYVT_BIND)
#undef PYVT_BIND
  m.attr("OPS") = ops;

  py::class_<cpu::Plan, std::shared_ptr<cpu::Plan>>(
      m, "Plan", "The op calls of a step, recorded once and run again.")
      .def(py::init<>())
      .def(
          "start", [](std::shared_ptr<cpu::Plan> plan) { cpu::recording_plan() = std::move(plan); },
          "Append the ops that this thread calls from now on.")
      .def(
          "stop", [](cpu::Plan&) { cpu::recording_plan().reset(); }, "Append no more.")
      .def("run", &cpu::Plan::run, py::call_guard<bindings::Unlocked>(), "Run all calls.")
      .def("timed_run", &cpu::Plan::timed_run, py::call_guard<bindings::Unlocked>(),
           "Run all calls; return the nanoseconds of each.")
      .def("ops", &cpu::Plan::ops, "Return the op of each call.")
      .def("__len__", &cpu::Plan::size);

  py::dict numbers;
#define PYVT_NUMBER(name, text, number, block, bytes) \
  numbers[text] = py::make_tuple(number, block, bytes);
  PYVT_DTYPES(PYVT_NUMBER)
#undef PYVT_NUMBER
  m.attr("DTYPES") = numbers;

  m.def("pack_tiles", &cpu::pack_tiles, py::call_guard<bindings::Unlocked>(),
        "Lay rows of a weight as tiles.");
  m.def("packed_bytes", &cpu::packed_bytes, "Bytes of the tiles, -1 where nothing packs them.");

  m.def("isa", [] { return cpu::kernels().isa; }, "Name of the kernel table in use.");
  m.def(
      "multiplies_bf16", [] { return cpu::kernels().floats[1].pairs[0] != nullptr; },
      "Whether products of bf16 take two columns at once, so that they beat those of f32.");
  m.def("isa_names", &cpu::isa_names, "Levels that can be used, best first.");
  m.def("use_isa", &cpu::use_isa, py::arg("name"), "Switch the kernel table; for tests.");
  m.def("num_threads", &cpu::num_threads, "Threads of a parallel region.");
  m.def("set_num_threads", &cpu::set_num_threads, py::arg("count"), "Set the threads of a region.");
  m.def("num_usable_cores", &cpu::num_usable_cores, py::arg("root") = "",
        "Cores by affinity and quota, from the files below a root.");
  m.def(
      "machine_limits",
      [](int repetitions) {
        cpu::MachineLimits limits;
        {
          bindings::Unlocked unlocked;
          limits = cpu::machine_limits(repetitions);
        }
        py::dict rates;
        rates["read"] = limits.read;
        rates["fma_f32"] = limits.fma_f32;
        rates["bf16"] = limits.bf16;
        rates["int8_signed"] = limits.int8_signed;
        rates["int8"] = limits.int8;
        rates["int16"] = limits.int16;
        rates["int4"] = limits.int4;
        return rates;
      },
      py::arg("repetitions") = 5, "Measure the best rates of this machine; for benchmarks.");
  m.def("shutdown_threads", &cpu::shutdown_threads, py::call_guard<bindings::Unlocked>(),
        "End and join the workers.");
}
