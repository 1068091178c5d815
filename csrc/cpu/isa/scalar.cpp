// The kernel table of the level scalar: every kernel body compiled with its flags, nothing exported
// but the table.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/kernel_table.h"
#include "pyvt/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pyvt::cpu {
namespace {

#include "cpu/simd/scalar.h"

#include "cpu/kernels/linear-inl.h"
#include "cpu/kernels/norm-inl.h"

KernelTable make() {
  KernelTable table = {};
  table.isa = "scalar";
  fill_linear(table);
  fill_norm(table);
  return table;
}

}  // namespace

const KernelTable& scalar_table() {
  static const KernelTable table = make();
  return table;
}

}  // namespace pyvt::cpu
