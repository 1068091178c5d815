// Binds an op: it is appended to the plan that is being recorded, if any, and run without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/unlocked.h"
#include "bindings/view.h"
#include "cpu/plan.h"

namespace pyvt::bindings {

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
