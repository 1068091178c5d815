// The arguments of paged_attention as its kernels take them.
#pragma once

#include "cuda/context.h"
#include "cuda/device/attention.cuh"

namespace pyvt::cuda {

struct AttentionArguments {
  Heads q;
  Cache k, v;
  Tables tables;
  Settings settings;
  void* out;
  DType out_dtype;
  int64_t out_token_stride, out_head_stride;
  float* lse;
  int64_t lse_token_stride, lse_head_stride;
  // With split keys: sums [T, N, splits, D] and maximum and sum [T, N, splits, 2].
  float* part_sums;
  float* part_stats;
  int num_splits;
};

// Computes a step on tensor cores; false where it is none for them.
bool prefill_on_tensor_cores(Context& context, const AttentionArguments& arguments);

}  // namespace pyvt::cuda
