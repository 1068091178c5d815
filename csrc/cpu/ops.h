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
#define PYVT_BLOCK_FORMATS "q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k"

// X(op, dtypes that its tensors may have).
#define CPU_OPS(X)                                       \
  X(rms_norm, "f32 bf16 f16")                            \
  X(fused_add_rms_norm, "f32 bf16 f16")                  \
  X(linear, "f32 bf16 f16")                              \
  X(packed_linear, "f32 bf16 f16 " PYVT_BLOCK_FORMATS)   \
  X(quant_linear, "f32 bf16 f16 " PYVT_BLOCK_FORMATS)    \
  X(quantize_q8_rows, "f32 bf16 f16")                    \
  X(add, "f32 bf16 f16")                                 \
  X(mul, "f32 bf16 f16")                                 \
  X(scale, "f32 bf16 f16")                               \
  X(cast, "f32 bf16 f16")                                \
  X(soft_cap, "f32 bf16 f16")                            \
  X(relu, "f32 bf16 f16")                                \
  X(sigmoid, "f32 bf16 f16")                             \
  X(silu, "f32 bf16 f16")                                \
  X(gelu, "f32 bf16 f16")                                \
  X(silu_and_mul, "f32 bf16 f16")                        \
  X(gelu_and_mul, "f32 bf16 f16")                        \
  X(rotary_embedding, "f32 bf16 f16")                    \
  X(reshape_and_cache, "f32 bf16 f16")                   \
  X(copy_blocks, "f64 f32 bf16 f16")                     \
  X(gather_blocks, "f64 f32 bf16 f16")                   \
  X(scatter_blocks, "f64 f32 bf16 f16")                  \
  X(embedding, "f32 bf16 f16")                           \
  X(quant_embedding, "f32 bf16 f16 " PYVT_BLOCK_FORMATS) \
  X(paged_attention, "f32 bf16 f16")                     \
  X(merge_attn_states, "f32 bf16 f16")                   \
  X(count_nonfinite, "f32 bf16 f16")                     \
  X(apply_temperature, "f32 f64")                        \
  X(apply_min_p, "f32 f64")                              \
  X(apply_top_k_top_p, "f32 f64")                        \
  X(argmax, "f32")                                       \
  X(random_sample, "f32")                                \
  X(rejection_sample, "f32")                             \
  X(log_softmax, "f32")                                  \
  X(top_logprobs, "f32")                                 \
  X(apply_logit_bias, "f32 f64")                         \
  X(apply_banned_ids, "f32")                             \
  X(apply_allowed_ids, "f32")                            \
  X(apply_token_mask, "f32")                             \
  X(apply_penalties, "f32 f64")

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps);
void fused_add_rms_norm(TensorView out, TensorView residual, TensorView x, TensorView weight,
                        double eps);

void quantize_q8_rows(TensorView codes, TensorView scales, TensorView x);
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
void add(TensorView out, TensorView x, TensorView y);
void mul(TensorView out, TensorView x, TensorView y);
void scale(TensorView out, TensorView x, double factor);
void cast(TensorView out, TensorView x);
void soft_cap(TensorView out, TensorView x, double cap);
void relu(TensorView out, TensorView x);
void sigmoid(TensorView out, TensorView x);
void silu(TensorView out, TensorView x);
void gelu(TensorView out, TensorView x);
void silu_and_mul(TensorView out, TensorView x);
void gelu_and_mul(TensorView out, TensorView x);

void rotary_embedding(TensorView q, TensorView k, TensorView positions, TensorView cos_sin);

void reshape_and_cache(TensorView k_cache, TensorView v_cache, TensorView k, TensorView v,
                       TensorView slot_mapping);
void copy_blocks(TensorView k_cache, TensorView v_cache, TensorView src_dst);
void gather_blocks(TensorView out, TensorView cache, TensorView block_ids);
void scatter_blocks(TensorView cache, TensorView blocks, TensorView block_ids);

void embedding(TensorView out, TensorView input_ids, TensorView weight);
void quant_embedding(TensorView out, TensorView input_ids, TensorView blocks, int64_t format,
                     int64_t num_columns);

void paged_attention(TensorView out, TensorView lse, TensorView q, TensorView k_cache,
                     TensorView v_cache, TensorView block_tables, TensorView seq_lens,
                     TensorView cu_seqlens_q, double scale, std::optional<int64_t> window,
                     std::optional<double> soft_cap);
void merge_attn_states(TensorView out, TensorView lse, TensorView out_a, TensorView lse_a,
                       TensorView out_b, TensorView lse_b);

// Logits are f32; the parameters of rows are f32 or f64.
void count_nonfinite(TensorView out, TensorView logits);
void apply_temperature(TensorView out, TensorView logits, TensorView temperature);
void apply_min_p(TensorView out, TensorView logits, TensorView min_p);
void apply_top_k_top_p(TensorView out, TensorView logits, TensorView top_k, TensorView top_p);
void argmax(TensorView out, TensorView logits);
void random_sample(TensorView out, TensorView logits, TensorView seeds, TensorView positions);
void rejection_sample(TensorView out, TensorView num_tokens, TensorView token_ids,
                      TensorView draft_ids, TensorView cu_num_drafts);
void log_softmax(TensorView out, TensorView logits);
void top_logprobs(TensorView top_ids, TensorView top_values, TensorView token_values,
                  TensorView token_ranks, TensorView logits, TensorView token_ids);

void apply_logit_bias(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids,
                      TensorView bias);
void apply_banned_ids(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids);
void apply_allowed_ids(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids);
void apply_token_mask(TensorView out, TensorView logits, TensorView mask);
void apply_penalties(TensorView out, TensorView logits, TensorView prompt_mask,
                     TensorView output_counts, TensorView repetition, TensorView presence,
                     TensorView frequency);

}  // namespace pyvt::cpu
