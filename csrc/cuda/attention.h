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

// Rows of a tile of decode: query tokens side by side, all heads of a group each.
constexpr int kDecodeRows = 16;

// On tensor cores, for what fits_tensor_cores (attention.cu) accepts: steps of long requests, and
// of short ones with keys split over the grid.
void attend_by_wide_tiles(Context& context, const AttentionArguments& arguments);
void attend_by_split_keys(Context& context, const AttentionArguments& arguments, int64_t num_tiles);

}  // namespace pyvt::cuda
