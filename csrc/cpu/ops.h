// Every native op: its declaration and its row in CPU_OPS. Outputs first, then inputs, then
// scalars, as in the reference of the same name in pyvt/ops.
#pragma once

#include <cstdint>
#include <optional>

#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

// X(op, dtypes that its tensors may have).
#define CPU_OPS(X)                      \
  X(rms_norm, "f32 bf16 f16")           \
  X(fused_add_rms_norm, "f32 bf16 f16") \
  X(quantize_q8_rows, "f32 bf16 f16")

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps);
void fused_add_rms_norm(TensorView out, TensorView residual, TensorView x, TensorView weight,
                        double eps);
void quantize_q8_rows(TensorView codes, TensorView scales, TensorView x);

}  // namespace pyvt::cpu
