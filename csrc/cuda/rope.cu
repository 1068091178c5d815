// rotary_embedding: turns the first R dims of every query and key head, in place.
//
// contract  x1, x2 = x1·cos − x2·sin, x2·cos + x1·sin with x1 the first R/2 dims, x2 the next
// layout    q [T, N, D], k [T, Nk, D] of any stride; the table [P, R] of any float
// work      a block per token; a thread turns one pair at a time, so nobody reads what is written
// estimate  bf16: 4·R·(N + Nk) bytes a token and one row of the table; 4096 tokens of 32 + 8 heads
//           of 128 move 84 MB, 20 us at 4.3 TB/s; latency in a decode step, 2 us; 3
//           operations an element
// launches  1
// source    Su et al. 2021, arXiv:2104.09864
#include "cuda/device/attention.cuh"
#include "cuda/device/index.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPerThread = 4;

__global__ void __launch_bounds__(kMaxThreads)
    rope_kernel(Heads q, Heads k, Index positions, Rows cos_sin) {
  const int64_t token = blockIdx.x, half = cos_sin.length / 2;
  const Row angles = cos_sin.at(positions[token]);
  const int64_t num_pairs = (q.num_heads + k.num_heads) * half;
  for (int64_t i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    const int64_t pair = i % half;
    int64_t head = i / half;
    const bool is_q = head < q.num_heads;
    if (!is_q) head -= q.num_heads;
    const Heads& x = is_q ? q : k;
    const float cosine = angles.get(pair), sine = angles.get(half + pair);
    const float x1 = x.get(token, head, pair), x2 = x.get(token, head, half + pair);
    x.set(token, head, pair, x1 * cosine - x2 * sine);
    x.set(token, head, half + pair, x2 * cosine + x1 * sine);
  }
}

}  // namespace

void rotary_embedding(Context& context, TensorView q, TensorView k, TensorView positions,
                      TensorView cos_sin) {
  const char* op = "rotary_embedding";
  const Heads queries = heads_of(op, "q", q), keys = heads_of(op, "k", k);
  const Rows angles = rows_of(op, "cos_sin", cos_sin);
  PYVT_CHECK(op, k.shape[0] == q.shape[0] && k.shape[2] == q.shape[2], "k: expected [T, Nk, D]");
  PYVT_CHECK(op, angles.length % 2 == 0 && angles.length <= q.shape[2],
             "cos_sin: expected an even R of at most D");
  const Index places = index_of(op, "positions", positions, q.shape[0]);
  const int64_t num_pairs = (queries.num_heads + keys.num_heads) * angles.length / 2;
  if (num_pairs == 0) return;
  context.launch(op, &rope_kernel, dim3(blocks_for(q.shape[0], 1)),
                 dim3(threads_for(num_pairs, kPerThread, kMaxThreads)), 0, queries, keys, places,
                 angles);
}

}  // namespace pyvt::cuda
