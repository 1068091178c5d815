// The ops of this backend: X(op, dtypes that its tensors may have). Parameters are those of the
// same op in pyvt/op_list.h, behind the context.
#pragma once

#include <optional>
#include <string>

#include "cuda/context.h"
#include "cuda/weights.h"
#include "pyvt/op_list.h"
#include "pyvt/tensor_view.h"

#define PYVT_CUDA_FLOATS "f32 bf16 f16"
// The formats of PYVT_PRODUCT_FORMATS: all block formats.
#define PYVT_CUDA_BLOCKS                                                                  \
  "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s " \
  "iq4_nl iq4_xs mxfp4 nvfp4 int4_g128 int4_g32 int8_g128 int8_g32 nvfp4_g128 nvfp4_g32 " \
  "fp8_g128 fp8_g32"

// clang-format off
#define CUDA_OPS(X) \
  X(rms_norm, PYVT_CUDA_FLOATS) \
  X(fused_add_rms_norm, PYVT_CUDA_FLOATS) \
  X(rms_norm_gated, PYVT_CUDA_FLOATS) \
  X(l2_norm, PYVT_CUDA_FLOATS) \
  X(add, PYVT_CUDA_FLOATS) \
  X(mul, PYVT_CUDA_FLOATS) \
  X(scale, PYVT_CUDA_FLOATS) \
  X(cast, PYVT_CUDA_FLOATS) \
  X(take_columns, PYVT_CUDA_FLOATS) \
  X(soft_cap, PYVT_CUDA_FLOATS) \
  X(relu, PYVT_CUDA_FLOATS) \
  X(sigmoid, PYVT_CUDA_FLOATS) \
  X(silu, PYVT_CUDA_FLOATS) \
  X(gelu, PYVT_CUDA_FLOATS) \
  X(silu_and_mul, PYVT_CUDA_FLOATS) \
  X(gelu_and_mul, PYVT_CUDA_FLOATS) \
  X(sigmoid_gate, PYVT_CUDA_FLOATS) \
  X(rotary_embedding, PYVT_CUDA_FLOATS) \
  X(reshape_and_cache, PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(rotate_and_cache, PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(copy_blocks, "f64 " PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(gather_blocks, "f64 " PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(scatter_blocks, "f64 " PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(embedding, PYVT_CUDA_FLOATS) \
  X(linear, PYVT_CUDA_FLOATS) \
  X(quant_linear, PYVT_CUDA_FLOATS " " PYVT_CUDA_BLOCKS) \
  X(quant_embedding, PYVT_CUDA_FLOATS " " PYVT_CUDA_BLOCKS) \
  X(quantize_q8_rows, PYVT_CUDA_FLOATS) \
  X(router_topk, PYVT_CUDA_FLOATS) \
  X(fused_experts, PYVT_CUDA_FLOATS " " PYVT_CUDA_BLOCKS) \
  X(add_shared_expert, PYVT_CUDA_FLOATS) \
  X(causal_conv1d, PYVT_CUDA_FLOATS) \
  X(gdn_gate, PYVT_CUDA_FLOATS) \
  X(gated_delta_rule, PYVT_CUDA_FLOATS) \
  X(gated_delta_net, PYVT_CUDA_FLOATS) \
  X(paged_attention, PYVT_CUDA_FLOATS " fp8_e4m3") \
  X(merge_attn_states, PYVT_CUDA_FLOATS) \
  X(count_nonfinite, PYVT_CUDA_FLOATS) \
  X(argmax, "f32") \
  X(apply_temperature, "f32 f64") \
  X(apply_min_p, "f32 f64") \
  X(apply_top_k_top_p, "f32 f64") \
  X(random_sample, "f32") \
  X(log_softmax, "f32") \
  X(top_logprobs, "f32") \
  X(apply_logit_bias, "f32 f64") \
  X(apply_banned_ids, "f32") \
  X(apply_allowed_ids, "f32") \
  X(apply_token_mask, "f32") \
  X(apply_penalties, "f32 f64")
// clang-format on

namespace pyvt::cuda {

// What the words of the table mean to a launcher.
using pyvt_out = TensorView;  // written, perhaps read
using pyvt_in = TensorView;
using pyvt_tiles = NoTiles;
using pyvt_blocks = BlockMatrix;
using pyvt_experts = ExpertStack;
using pyvt_f64 = double;
using pyvt_i64 = int64_t;
using pyvt_opt_f64 = std::optional<double>;
using pyvt_opt_i64 = std::optional<int64_t>;
using pyvt_text = std::string;

#define PYVT_PLAIN(...) __VA_ARGS__
#define PYVT_TYPE(op, dtypes, parameters, names) \
  using op##_type = void(Context & context, PYVT_PLAIN parameters);
CPU_OPS(PYVT_TYPE)
#undef PYVT_TYPE

#define PYVT_DECLARE(op, dtypes) op##_type op;
CUDA_OPS(PYVT_DECLARE)
#undef PYVT_DECLARE

}  // namespace pyvt::cuda
