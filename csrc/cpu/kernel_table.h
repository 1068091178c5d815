// KernelTable: one function pointer per kernel and dtype combination, filled once per ISA.
//
// A kernel is a template in kernels/<family>.cpp over its element types. The table holds it for
// the three float dtypes f32, bf16, f16 as an array indexed by `float_index`.
#pragma once

#include <cstdint>
#include <string>

#include "cpu/attn_tile.h"
#include "cpu/delta_tokens.h"
#include "cpu/packed_format.h"
#include "pyvt/check.h"
#include "pyvt/dtype.h"

namespace pyvt::cpu {

constexpr int kNumFloats = 3;

// Index of a float dtype in a table row: f32 0, bf16 1, f16 2.
inline int float_index(const char* op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kBF16:
      return 1;
    case DType::kF16:
      return 2;
    default:
      detail::fail(op, "dtype: expected f32|bf16|f16, got ", dtype_name(dtype));
  }
}

// out, x, the op's one number, elements.
using MapKernel = void (*)(void* out, const void* x, float scalar, int64_t n);
// out, x, y, elements.
using ZipKernel = void (*)(void* out, const void* x, const void* y, int64_t n);
// Rows of n channels of one token; bias may be null.
using ConvKernel = void (*)(void* out, const void* const* inputs, const void* const* taps,
                            const float* bias, int num_taps, int64_t n);

struct KernelTable {
  const char* isa;

  // linear.cpp: by weight; by activation; by output
  FloatFormat floats[kNumFloats];
  void (*widen_row[kNumFloats])(const void* from, float* to, int64_t n);
  void (*finish_rows[kNumFloats])(void* out, int64_t stride_bytes, const float* sums,
                                  const float* bias, int64_t num_rows, int64_t n);
  // linear.cpp: products of kFloatSteps rows with an f32 panel
  decltype(FloatFormat::direct) float_panel;

  // quant.cpp: [x]; sums may be null
  void (*quantize_row[kNumFloats])(const void* x, int8_t* codes, float* scales, float* sums,
                                   int64_t n);
  // linear_grids, _k, _levels, _q*, _two_bits.cpp: by int8_index
  Int8Format int8[kNumInt8Formats];

  // norm.cpp: [x][weight][out]
  void (*rms_norm[kNumFloats][kNumFloats][kNumFloats])(void* out, const void* x, const void* weight,
                                                       float eps, int64_t n);
  // norm.cpp: [x][residual]
  void (*add_rows[kNumFloats][kNumFloats])(void* residual, const void* x, int64_t n);
  // norm.cpp: [gate][out]
  void (*norm_gated[kNumFloats][kNumFloats])(void* out, const float* x, const void* gate,
                                             const float* weight, float eps, int64_t n);

  // elementwise.cpp: [x], of two dtypes [x][y], cast [x][out]
  ZipKernel add[kNumFloats][kNumFloats];
  ZipKernel mul[kNumFloats][kNumFloats];
  MapKernel cast[kNumFloats][kNumFloats];
  MapKernel scale[kNumFloats];
  MapKernel soft_cap[kNumFloats];
  MapKernel relu[kNumFloats];
  MapKernel sigmoid[kNumFloats];
  MapKernel silu[kNumFloats];
  MapKernel gelu[kNumFloats];
  ZipKernel silu_and_mul[kNumFloats];
  ZipKernel gelu_and_mul[kNumFloats];
  ZipKernel sigmoid_gate[kNumFloats];

  // moe.cpp: f32 rows `stride` apart, by place, weighted and added in this order, to [out]; and
  // x + factor · y, [x]
  void (*weighted_sum[kNumFloats])(void* out, const float* rows, int64_t stride,
                                   const int64_t* places, const float* weights, int64_t num_rows,
                                   int64_t n);
  void (*add_scaled[kNumFloats])(void* out, const void* x, const void* y, float factor, int64_t n);

  // kv_cache.cpp: numbers of e4m3, by x
  MapKernel narrow_to_fp8[kNumFloats];
  MapKernel widen_fp8;

  // rope.cpp: [x][table]
  void (*rotate_head[kNumFloats][kNumFloats])(void* x, const void* cos_sin, int64_t half);

  // attention.cpp: [cache], FP8 behind the floats; [out]
  int attn_lanes;
  void (*attend_tile[kNumFloats + 1])(const AttnTile& tile);
  // Values [begin, end) as AttnTile::value_columns.
  void (*spread_values[kNumFloats + 1])(const void* const* values, int begin, int end,
                                        int64_t head_dim, int64_t width, float* columns);
  // Keys [begin, end) of f32 rows of row_stride elements as AttnTile::key_columns; both are
  // multiples of a group of columns.
  void (*transpose_keys)(const void* const* keys, int begin, int end, int64_t row_stride,
                         float* columns);
  void (*fold_tile)(const AttnState& state, const AttnState& tile, int num_rows,
                    int64_t row_stride);
  void (*divide_row[kNumFloats])(void* out, const float* sums, float total, int64_t n);
  void (*merge_row[kNumFloats])(void* out, const void* a, const void* b, float weight_a,
                                float weight_b, int64_t n);

  // causal_conv.cpp: [x][weight]
  ConvKernel convolve[kNumFloats][kNumFloats];

  // gated_delta.cpp
  void (*delta_tokens)(const DeltaTokens& run);
  float (*dot)(const float* a, const float* b, int64_t n);
  // g = rate · softplus(a + bias), beta = sigmoid(b); and e^x. Outputs may be inputs.
  void (*delta_gates)(float* g, float* beta, const float* a, const float* b, const float* rate,
                      const float* bias, int64_t n);
  void (*exp_row)(float* out, const float* x, int64_t n);

  // logits.cpp: f32 rows, count_nonfinite [x]
  float (*row_max)(const float* x, int64_t n);
  int64_t (*find_first)(const float* x, int64_t n, float value);
  float (*sum_exp)(const float* x, float top, int64_t n);
  void (*shift_row)(float* out, const float* x, float top, float log_total, int64_t n);
  void (*exp_wide)(double* out, const float* x, float top, int64_t n);
  int64_t (*count_nonfinite[kNumFloats])(const void* x, int64_t n);
};

// The table of the ISA that this process runs on; chosen at first use, PYVT_CPU_ISA forces it.
const KernelTable& kernels();

// The levels that this CPU has and this build holds, best first, separated by spaces.
std::string isa_names();

// Switches the table, for tests that compare levels. Throws for a level that is not there.
void use_isa(const char* name);

}  // namespace pyvt::cpu
