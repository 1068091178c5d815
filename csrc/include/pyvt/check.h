// Error type of native code and the check that throws it. Launchers check what memory safety needs;
// the full contract of an op is checked once, in Python.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pyvt {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
template <typename... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "[" << op << "] ";
  (text << ... << parts);
  throw Error(text.str());
}
}  // namespace detail

}  // namespace pyvt

#define PYVT_CHECK(op, condition, ...)                       \
  do {                                                       \
    if (!(condition)) ::pyvt::detail::fail(op, __VA_ARGS__); \
  } while (0)
