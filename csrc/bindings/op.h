// Binds an op: its outputs are checked, it is appended to the plan that is being recorded, if any,
// and run without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "bindings/unlocked.h"
#include "bindings/view.h"
#include "cpu/plan.h"

namespace pyvt::bindings {

// An output of an op: which parameter it is, and its name.
struct Output {
  size_t place;
  std::string name;
};

inline std::vector<std::string> words_of(std::string text) {
  for (char& letter : text) {
    if (letter == '(' || letter == ',' || letter == ')') letter = ' ';
  }
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

// The outputs among "(type name, ...)", a row's parameters in the table of ops.
inline std::vector<Output> outputs_of(const char* parameters) {
  const std::vector<std::string> words = words_of(parameters);
  std::vector<Output> outputs;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i] == "pyvt_out") outputs.push_back({i / 2, words[i + 1]});
  }
  return outputs;
}

template <typename Arg>
const TensorView* view_of(const Arg&) {
  return nullptr;
}
inline const TensorView* view_of(const TensorView& view) { return &view; }

template <typename... Args>
void bind_op(py::module_& m, const char* name, const char* parameters, void (*op)(Args...)) {
  m.def(name, [op, name, outputs = outputs_of(parameters)](Args... args) {
    const TensorView* views[] = {view_of(args)...};
    for (const Output& output : outputs) {
      const TensorView& view = *views[output.place];
      PYVT_CHECK(name, view.is_writeable || view.size() == 0 || !view.has_value(), output.name,
                 ": expected a writeable array, got a read-only one");
    }
    Unlocked unlocked;
    op(args...);
    if (const auto& plan = cpu::recording_plan())
      plan->append(name, [op, args...] { op(args...); });
  });
}

}  // namespace pyvt::bindings
