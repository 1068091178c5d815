// log_softmax and top_logprobs: log-probabilities of a vocabulary and the best tokens of a row.
//
// contract  the references of pyvt/ops/logprobs.py; sums in f32, a row with NaN or +inf gives NaN
// layout    logits [R, V] of any stride; out of log_softmax may be logits
// work      a block per row; the n best tokens by n passes, each for the next key below the last
// estimate  12·V bytes a row and 4·n·V from L2: 64 rows of 151,936 with 20 best take 200 us;
//           about 2·(n + 3) operations a logit, 0.4 GFLOP, 7 us at the 60 TFLOP/s of f32
// launches  1 each
#include "cuda/device/logits.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxWarps = kLogitThreads / kWarp;

struct Normaliser {
  float best, log_total;

  PYVT_DEVICE float of(float x) const { return (x - best) - log_total; }
};

PYVT_DEVICE Normaliser normaliser_of(const Logits& logits, int64_t row, float* parts) {
  float best = -INFINITY;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    best = fmaxf(best, logits.at(row, i));
  }
  best = block_max(best, parts);
  float total = 0.0f;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    total += expf(logits.at(row, i) - best);
  }
  return {best, logf(block_sum(total, parts))};
}

__global__ void __launch_bounds__(kLogitThreads) log_softmax_kernel(Logits out, Logits logits) {
  PYVT_SHARED(parts, float[kMaxWarps]);
  const int64_t row = blockIdx.x;
  const Normaliser normaliser = normaliser_of(logits, row, parts);
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    out.at(row, i) = normaliser.of(logits.at(row, i));
  }
}

// NaN has the place of -inf.
PYVT_DEVICE unsigned long long key_of(float x, int64_t token) {
  return rank_key(isnan(x) ? -INFINITY : x, token);
}

struct Best {
  int64_t* ids;
  float* values;
  int64_t count;
  float* token_values;
  int64_t* token_ranks;
};

__global__ void __launch_bounds__(kLogitThreads)
    top_kernel(Best out, Logits logits, Index token_ids) {
  PYVT_SHARED(parts, float[kMaxWarps]);
  PYVT_SHARED(counts, int[kMaxWarps]);
  PYVT_SHARED(keys, unsigned long long[kMaxWarps]);
  // A row without a token, −1, is nobody's to read.
  const int64_t row = blockIdx.x, token = token_ids[row] < 0 ? 0 : token_ids[row];
  const Normaliser normaliser = normaliser_of(logits, row, parts);
  const float own = logits.at(row, token);
  int num_before = 0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float x = logits.at(row, i);
    num_before += x > own || (x == own && i < token);
  }
  num_before = block_sum(num_before, counts);
  if (threadIdx.x == 0) {
    out.token_ranks[row] = 1 + num_before;
    out.token_values[row] = normaliser.of(own);
  }
  unsigned long long last = ~0ull;
  for (int64_t n = 0; n < out.count; ++n) {
    unsigned long long next = 0;
    for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
      const unsigned long long key = key_of(logits.at(row, i), i);
      if (key < last && key > next) next = key;
    }
    last = block_max(next, keys);
    if (threadIdx.x != 0) continue;
    const int64_t id = token_of(last);
    out.ids[row * out.count + n] = id;
    out.values[row * out.count + n] = normaliser.of(logits.at(row, id));
  }
}

}  // namespace

void log_softmax(Context& context, TensorView out, TensorView logits) {
  const char* op = "log_softmax";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  if (from.vocab == 0) return;
  context.launch(op, &log_softmax_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(logit_threads(from.vocab)), 0, to, from);
}

void top_logprobs(Context& context, TensorView top_ids, TensorView top_values,
                  TensorView token_values, TensorView token_ranks, TensorView logits,
                  TensorView token_ids) {
  const char* op = "top_logprobs";
  const Logits from = logits_of(op, "logits", logits);
  PYVT_CHECK(op,
             top_ids.rank == 2 && top_ids.dtype == DType::kI64 && top_ids.is_dense() &&
                 top_values.dtype == DType::kF32 && top_values.is_dense() &&
                 top_values.size() == top_ids.size(),
             "top_ids, top_values: expected i64 and f32 [R, n], side by side");
  PYVT_CHECK(op,
             token_values.dtype == DType::kF32 && token_values.is_dense() &&
                 token_ranks.dtype == DType::kI64 && token_ranks.is_dense(),
             "token_values, token_ranks: expected f32 and i64 [R], side by side");
  const Best best{top_ids.as<int64_t>(), top_values.as<float>(), top_ids.shape[1],
                  token_values.as<float>(), token_ranks.as<int64_t>()};
  if (from.vocab == 0) return;
  context.launch(op, &top_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(logit_threads(from.vocab)), 0, best, from,
                 index_of(op, "token_ids", token_ids, from.num_rows));
}

}  // namespace pyvt::cuda
