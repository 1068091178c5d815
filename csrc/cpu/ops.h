// Every native op: its declaration and its row in CPU_OPS. Outputs first, then inputs, then
// scalars, as in the reference of the same name in pyvt/ops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/packed_format.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

// The block formats with kernels of their own.
#define PYVT_BLOCK_FORMATS ""

// X(op, dtypes that its tensors may have).
#define CPU_OPS(X)                      \
  X(rms_norm, "f32 bf16 f16")           \
  X(fused_add_rms_norm, "f32 bf16 f16") \
  X(linear, "f32 bf16 f16")             \
  X(packed_linear, "f32 bf16 f16 " PYVT_BLOCK_FORMATS)

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps);
void fused_add_rms_norm(TensorView out, TensorView residual, TensorView x, TensorView weight,
                        double eps);

void linear(TensorView out, TensorView x, TensorView weight, TensorView bias);
void packed_linear(TensorView out, TensorView x, PackedMatrix weight, TensorView bias,
                   std::string act);
void quant_linear(TensorView out, TensorView x, BlockMatrix weight, TensorView bias,
                  std::string act);

// Lays the rows of `parts`, u8 [rows, bytes of a row] one below the other, as tiles of `num_cols`
// columns of the dtype with that number; `data` has their size. No op: nothing computes.
void pack_tiles(TensorView data, std::vector<TensorView> parts, int32_t dtype, int64_t num_cols);

// Bytes that `pack_tiles` needs; -1 for a dtype without a packer.
int64_t packed_bytes(int64_t num_rows, int32_t dtype, int64_t num_cols);

}  // namespace pyvt::cpu
