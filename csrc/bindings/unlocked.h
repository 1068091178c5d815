// The GIL, let go of for a moment.
#pragma once

#include <pybind11/pybind11.h>

namespace pyvt::bindings {

// Unlike pybind11's own guard it lets the thread end while it waits for the GIL, as CPython ends
// threads that still compute when the interpreter does.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace pyvt::bindings
