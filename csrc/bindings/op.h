// Binds an op: it is appended to the plan that is being recorded, if any, and run without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/view.h"
#include "cpu/plan.h"

namespace pyvt::bindings {

// The GIL, let go of for a moment. Unlike pybind11's own guard it lets the thread end while it
// waits for the GIL, as CPython ends threads that still compute when the interpreter does.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

template <typename... Args>
void bind_op(py::module_& m, const char* name, void (*op)(Args...)) {
  m.def(name, [op, name](Args... args) {
    Unlocked unlocked;
    op(args...);
    if (const auto& plan = cpu::recording_plan())
      plan->append(name, [op, args...] { op(args...); });
  });
}

}  // namespace pyvt::bindings
