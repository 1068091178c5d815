// Runs code without the GIL. pybind11's own guard takes the GIL back in a destructor; where the
// interpreter has ended meanwhile, CPython ends the thread there, and unwinding out of a destructor
// ends the process.
#pragma once

#include <pybind11/pybind11.h>

#include <type_traits>
#include <utility>

namespace pyvt::bindings {

template <typename F>
auto without_gil(F&& f) {
  PyThreadState* const state = PyEval_SaveThread();
  try {
    if constexpr (std::is_void_v<decltype(f())>) {
      f();
      PyEval_RestoreThread(state);
    } else {
      auto result = f();
      PyEval_RestoreThread(state);
      return result;
    }
  } catch (const std::exception&) {
    PyEval_RestoreThread(state);
    throw;
  }
}

// Binds a function that runs without the GIL.
template <typename Result, typename... Args>
auto unlocked(Result (*function)(Args...)) {
  return [function](Args... args) {
    return without_gil([&]() -> Result { return function(std::move(args)...); });
  };
}

}  // namespace pyvt::bindings
