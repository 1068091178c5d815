// merge_attn_states: the attention of the same queries over two disjoint sets of keys.
//
// contract  the reference of pyvt/ops/attention.py; sums in f32, one rounding
// layout    [T, N, D] and [T, N] of any stride; out may be one of the inputs, lse likewise
// work      a warp per token and head
// estimate  three rows of D read or written: bf16, 32 heads of 128, 64 tokens 1.6 MB, latency, 2
// us;
//           4 operations an element
// launches  1
// source    Ye et al. 2025, arXiv:2501.01005
#include "cuda/device/attention.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4;

// [T, N] f32.
struct Lse {
  float* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;

  // A set without keys has −inf or +inf.
  PYVT_DEVICE float get(int64_t token, int64_t head) const {
    const float lse = data[token * token_stride + head * head_stride];
    return lse == INFINITY ? -INFINITY : lse;
  }
};

__global__ void __launch_bounds__(kWarps* kWarp)
    merge_kernel(Heads out, Lse lse, Heads out_a, Lse lse_a, Heads out_b, Lse lse_b,
                 int64_t num_pairs) {
  const int64_t pair = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (pair >= num_pairs) return;
  const auto num_heads = static_cast<uint32_t>(out.num_heads);
  const int64_t token = static_cast<uint32_t>(pair) / num_heads;
  const int64_t head = static_cast<uint32_t>(pair) % num_heads;
  const int lane = threadIdx.x % kWarp;
  const float a = lse_a.get(token, head), b = lse_b.get(token, head);
  const float top = a > b || isnan(a) ? a : b, shift = top == -INFINITY ? 0.0f : top;
  const float weight_a = expf(a - shift), weight_b = expf(b - shift), sum = weight_a + weight_b;
  const bool is_empty = sum == 0.0f;
  const float share_a = is_empty ? 0.0f : weight_a / sum,
              share_b = is_empty ? 0.0f : weight_b / sum;
  for (int i = lane; i < out.head_dim; i += kWarp) {
    const float from_a = share_a == 0.0f ? 0.0f : share_a * out_a.get(token, head, i);
    const float from_b = share_b == 0.0f ? 0.0f : share_b * out_b.get(token, head, i);
    out.set(token, head, i, from_a + from_b);
  }
  __syncwarp(kAllLanes);  // lse may be one that is read above
  if (lane == 0 && lse.data != nullptr) {
    lse.data[token * lse.token_stride + head * lse.head_stride] =
        is_empty ? -INFINITY : shift + logf(sum);
  }
}

Heads heads_like(const char* op, const char* name, const TensorView& x, const TensorView& like) {
  const Heads heads = heads_of(op, name, x);
  PYVT_CHECK(
      op, x.shape[0] == like.shape[0] && x.shape[1] == like.shape[1] && x.shape[2] == like.shape[2],
      name, ": expected the shape of out");
  return heads;
}

Lse lse_of(const char* op, const char* name, const TensorView& x, const TensorView& like) {
  PYVT_CHECK(op,
             x.rank == 2 && x.dtype == DType::kF32 && x.shape[0] == like.shape[0] &&
                 x.shape[1] == like.shape[1],
             name, ": expected f32 [T, N]");
  return {x.as<float>(), x.stride[0], x.stride[1]};
}

}  // namespace

void merge_attn_states(Context& context, TensorView out, TensorView lse, TensorView out_a,
                       TensorView lse_a, TensorView out_b, TensorView lse_b) {
  const char* op = "merge_attn_states";
  const Heads to = heads_of(op, "out", out);
  const Lse to_lse = lse.has_value() ? lse_of(op, "lse", lse, out) : Lse{};
  const int64_t num_pairs = out.shape[0] * out.shape[1];
  PYVT_CHECK(op, num_pairs < int64_t{1} << 32, "out: expected fewer than 2^32 heads");
  context.launch(op, &merge_kernel, dim3(blocks_for(num_pairs, kWarps)), dim3(kWarps * kWarp), 0,
                 to, to_lse, heads_like(op, "out_a", out_a, out), lse_of(op, "lse_a", lse_a, out),
                 heads_like(op, "out_b", out_b, out), lse_of(op, "lse_b", lse_b, out), num_pairs);
}

}  // namespace pyvt::cuda
