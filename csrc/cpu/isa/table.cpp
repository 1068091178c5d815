// The kernel table of a level: every family of kernels/ fills its rows.
#include "cpu/kernel_table.h"

namespace pyvt::cpu::PYVT_ISA {

#define PYVT_FAMILIES(X)                                                                 \
  X(attention)                                                                           \
  X(causal_conv)                                                                         \
  X(gated_delta)                                                                         \
  X(elementwise)                                                                         \
  X(kv_cache)                                                                            \
  X(linear)                                                                              \
  X(linear_grids)                                                                        \
  X(linear_k)                                                                            \
  X(linear_fp8)                                                                          \
  X(linear_levels)                                                                       \
  X(linear_pairs) X(linear_q4) X(linear_q5) X(linear_q6_k) X(linear_q8) X(linear_scaled) \
      X(linear_two_bits) X(logits) X(moe) X(norm) X(quant) X(rope)

#define PYVT_DECLARE(family) void fill_##family(KernelTable& table);
PYVT_FAMILIES(PYVT_DECLARE)
#undef PYVT_DECLARE

const KernelTable& table() {
  static const KernelTable filled = [] {
    KernelTable table = {};
    table.isa = PYVT_ISA_NAME;
#define PYVT_FILL(family) fill_##family(table);
    PYVT_FAMILIES(PYVT_FILL)
#undef PYVT_FILL
    return table;
  }();
  return filled;
}

}  // namespace pyvt::cpu::PYVT_ISA
