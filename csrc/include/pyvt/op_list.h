// The table of native ops, in C and C++: X(op, dtypes that its tensors may have, parameters, their
// names). Outputs first, then inputs, then scalars, as in the reference of the same name in
// pyvt/ops. From it come the launchers' declarations (cpu/ops.h), the bindings of Python and the
// functions of c_api.h.
#ifndef PYVT_OP_LIST_H
#define PYVT_OP_LIST_H

// The block formats, all of them with kernels.
#define PYVT_BLOCK_FORMATS                                            \
  "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq2_xxs iq2_xs " \
  "iq2_s iq3_xxs iq3_s iq4_nl iq4_xs mxfp4 nvfp4 int4_g128 int4_g32 " \
  "int8_g128 int8_g32 nvfp4_g128 nvfp4_g32 fp8_g128 fp8_g32"

// clang-format off
#define CPU_OPS(X) \
  X(rms_norm, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in weight, pyvt_f64 eps), \
    (out, x, weight, eps)) \
  X(fused_add_rms_norm, "f32 bf16 f16", \
    (pyvt_out out, pyvt_out residual, pyvt_in x, pyvt_in weight, pyvt_f64 eps), \
    (out, residual, x, weight, eps)) \
  X(rms_norm_gated, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in gate, pyvt_in weight, pyvt_f64 eps), \
    (out, x, gate, weight, eps)) \
  X(l2_norm, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_f64 eps), \
    (out, x, eps)) \
  X(linear, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in weight, pyvt_in bias), \
    (out, x, weight, bias)) \
  X(packed_linear, "f32 bf16 f16 " PYVT_BLOCK_FORMATS, \
    (pyvt_out out, pyvt_in x, pyvt_tiles weight, pyvt_in bias, pyvt_text act), \
    (out, x, weight, bias, act)) \
  X(quant_linear, "f32 bf16 f16 " PYVT_BLOCK_FORMATS, \
    (pyvt_out out, pyvt_in x, pyvt_blocks weight, pyvt_in bias, pyvt_text act), \
    (out, x, weight, bias, act)) \
  X(quantize_q8_rows, "f32 bf16 f16", \
    (pyvt_out codes, pyvt_out scales, pyvt_in x), \
    (codes, scales, x)) \
  X(add, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in y), \
    (out, x, y)) \
  X(mul, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in y), \
    (out, x, y)) \
  X(scale, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_f64 factor), \
    (out, x, factor)) \
  X(cast, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(take_columns, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in columns), \
    (out, x, columns)) \
  X(soft_cap, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_f64 cap), \
    (out, x, cap)) \
  X(relu, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(sigmoid, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(silu, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(gelu, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(silu_and_mul, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(gelu_and_mul, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x), \
    (out, x)) \
  X(sigmoid_gate, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in x, pyvt_in gate), \
    (out, x, gate)) \
  X(router_topk, "f32 bf16 f16", \
    (pyvt_out weights, pyvt_out ids, pyvt_in logits, pyvt_i64 top_k, pyvt_i64 renormalize), \
    (weights, ids, logits, top_k, renormalize)) \
  X(fused_experts, "f32 bf16 f16 " PYVT_BLOCK_FORMATS, \
    (pyvt_out out, pyvt_in x, pyvt_in expert_ids, pyvt_in expert_weights, pyvt_experts gate, \
     pyvt_experts up, pyvt_experts down, pyvt_in gate_columns, pyvt_in up_columns, \
     pyvt_in down_columns, pyvt_text act), \
    (out, x, expert_ids, expert_weights, gate, up, down, gate_columns, up_columns, down_columns, \
     act)) \
  X(add_shared_expert, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in routed, pyvt_in shared, pyvt_in gate), \
    (out, routed, shared, gate)) \
  X(rotary_embedding, "f32 bf16 f16", \
    (pyvt_out q, pyvt_out k, pyvt_in positions, pyvt_in cos_sin), \
    (q, k, positions, cos_sin)) \
  X(reshape_and_cache, "f32 bf16 f16 fp8_e4m3", \
    (pyvt_out k_cache, pyvt_out v_cache, pyvt_in k, pyvt_in v, pyvt_in slot_mapping), \
    (k_cache, v_cache, k, v, slot_mapping)) \
  X(rotate_and_cache, "f32 bf16 f16 fp8_e4m3", \
    (pyvt_out q, pyvt_out k, pyvt_out k_cache, pyvt_out v_cache, pyvt_in v, pyvt_in q_weight, \
     pyvt_in k_weight, pyvt_in positions, pyvt_in cos_sin, pyvt_in slot_mapping, pyvt_f64 eps), \
    (q, k, k_cache, v_cache, v, q_weight, k_weight, positions, cos_sin, slot_mapping, eps)) \
  X(copy_blocks, "f64 f32 bf16 f16 fp8_e4m3", \
    (pyvt_out k_cache, pyvt_out v_cache, pyvt_in src_dst), \
    (k_cache, v_cache, src_dst)) \
  X(gather_blocks, "f64 f32 bf16 f16 fp8_e4m3", \
    (pyvt_out out, pyvt_in cache, pyvt_in block_ids), \
    (out, cache, block_ids)) \
  X(scatter_blocks, "f64 f32 bf16 f16 fp8_e4m3", \
    (pyvt_out cache, pyvt_in blocks, pyvt_in block_ids), \
    (cache, blocks, block_ids)) \
  X(embedding, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in input_ids, pyvt_in weight), \
    (out, input_ids, weight)) \
  X(quant_embedding, "f32 bf16 f16 " PYVT_BLOCK_FORMATS, \
    (pyvt_out out, pyvt_in input_ids, pyvt_blocks weight), \
    (out, input_ids, weight)) \
  X(packed_embedding, "f32 bf16 f16 " PYVT_BLOCK_FORMATS, \
    (pyvt_out out, pyvt_in input_ids, pyvt_tiles weight), \
    (out, input_ids, weight)) \
  X(paged_attention, "f32 bf16 f16 fp8_e4m3", \
    (pyvt_out out, pyvt_out lse, pyvt_in q, pyvt_in k_cache, pyvt_in v_cache, \
     pyvt_in block_tables, pyvt_in seq_lens, pyvt_in cu_seqlens_q, pyvt_f64 scale, \
     pyvt_opt_i64 window, pyvt_opt_f64 soft_cap), \
    (out, lse, q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q, scale, window, \
     soft_cap)) \
  X(merge_attn_states, "f32 bf16 f16", \
    (pyvt_out out, pyvt_out lse, pyvt_in out_a, pyvt_in lse_a, pyvt_in out_b, \
     pyvt_in lse_b), \
    (out, lse, out_a, lse_a, out_b, lse_b)) \
  X(causal_conv1d, "f32 bf16 f16", \
    (pyvt_out out, pyvt_out conv_state, pyvt_in x, pyvt_in weight, pyvt_in bias, \
     pyvt_in cu_seqlens_q, pyvt_in initial_slots, pyvt_in state_slots), \
    (out, conv_state, x, weight, bias, cu_seqlens_q, initial_slots, state_slots)) \
  X(gdn_gate, "f32 bf16 f16", \
    (pyvt_out g, pyvt_out beta, pyvt_in a, pyvt_in b, pyvt_in decay_rate, pyvt_in dt_bias), \
    (g, beta, a, b, decay_rate, dt_bias)) \
  X(gated_delta_rule, "f32 bf16 f16", \
    (pyvt_out out, pyvt_out state, pyvt_in q, pyvt_in k, pyvt_in v, pyvt_in g, pyvt_in beta, \
     pyvt_in cu_seqlens_q, pyvt_in initial_slots, pyvt_in state_slots, pyvt_f64 scale, \
     pyvt_text head_map), \
    (out, state, q, k, v, g, beta, cu_seqlens_q, initial_slots, state_slots, scale, head_map)) \
  X(gated_delta_net, "f32 bf16 f16", \
    (pyvt_out out, pyvt_out state, pyvt_in q, pyvt_in k, pyvt_in v, pyvt_in z, pyvt_in a, \
     pyvt_in b, pyvt_in decay_rate, pyvt_in dt_bias, pyvt_in weight, pyvt_in cu_seqlens_q, \
     pyvt_in initial_slots, pyvt_in state_slots, pyvt_f64 eps, pyvt_text head_map), \
    (out, state, q, k, v, z, a, b, decay_rate, dt_bias, weight, cu_seqlens_q, initial_slots, \
     state_slots, eps, head_map)) \
  X(count_nonfinite, "f32 bf16 f16", \
    (pyvt_out out, pyvt_in logits), \
    (out, logits)) \
  X(apply_temperature, "f32 f64", \
    (pyvt_out out, pyvt_in logits, pyvt_in temperature), \
    (out, logits, temperature)) \
  X(apply_min_p, "f32 f64", \
    (pyvt_out out, pyvt_in logits, pyvt_in min_p), \
    (out, logits, min_p)) \
  X(apply_top_k_top_p, "f32 f64", \
    (pyvt_out out, pyvt_in logits, pyvt_in top_k, pyvt_in top_p), \
    (out, logits, top_k, top_p)) \
  X(argmax, "f32", \
    (pyvt_out out, pyvt_in logits), \
    (out, logits)) \
  X(random_sample, "f32", \
    (pyvt_out out, pyvt_in logits, pyvt_in seeds, pyvt_in positions), \
    (out, logits, seeds, positions)) \
  X(rejection_sample, "f32", \
    (pyvt_out out, pyvt_out num_tokens, pyvt_in token_ids, pyvt_in draft_ids, \
     pyvt_in cu_num_drafts), \
    (out, num_tokens, token_ids, draft_ids, cu_num_drafts)) \
  X(log_softmax, "f32", \
    (pyvt_out out, pyvt_in logits), \
    (out, logits)) \
  X(top_logprobs, "f32", \
    (pyvt_out top_ids, pyvt_out top_values, pyvt_out token_values, pyvt_out token_ranks, \
     pyvt_in logits, pyvt_in token_ids), \
    (top_ids, top_values, token_values, token_ranks, logits, token_ids)) \
  X(apply_logit_bias, "f32 f64", \
    (pyvt_out out, pyvt_in logits, pyvt_in row_ids, pyvt_in token_ids, pyvt_in bias), \
    (out, logits, row_ids, token_ids, bias)) \
  X(apply_banned_ids, "f32", \
    (pyvt_out out, pyvt_in logits, pyvt_in row_ids, pyvt_in token_ids), \
    (out, logits, row_ids, token_ids)) \
  X(apply_allowed_ids, "f32", \
    (pyvt_out out, pyvt_in logits, pyvt_in row_ids, pyvt_in token_ids), \
    (out, logits, row_ids, token_ids)) \
  X(apply_token_mask, "f32", \
    (pyvt_out out, pyvt_in logits, pyvt_in mask), \
    (out, logits, mask)) \
  X(apply_penalties, "f32 f64", \
    (pyvt_out out, pyvt_in logits, pyvt_in row_ids, pyvt_in token_ids, pyvt_in is_output, \
     pyvt_in repetition, pyvt_in presence, pyvt_in frequency), \
    (out, logits, row_ids, token_ids, is_output, repetition, presence, frequency))
// clang-format on

#endif
