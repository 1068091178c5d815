// What changes single tokens of the logits: bias, banned and allowed ids, masks, penalties.
//
// contract  the references of pyvt/ops/penalties.py; f64 where a parameter is
// layout    logits [R, V] of any stride; out may be logits
// work      a thread per token, or per pair of row and token; rows are copied first where out is
//           not logits; penalties count the tokens of each row in memory of their own
// estimate  8·V bytes a row for a copy or a mask, 16·V for penalties: 64 rows of 151,936 take 36 us
//           at 4.3 TB/s; pairs are latency, 2 us; few operations beside the bytes
// launches  1 each, 1 more for a copy; allowed ids 3; penalties 2 and a memset
// source    Keskar et al. 2019, arXiv:1909.05858
#include "cuda/device/logits.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kPairThreads = 128;

struct Pairs {
  Index rows, tokens;
};

__global__ void __launch_bounds__(kLogitThreads) copy_kernel(Logits out, Logits logits) {
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    out.at(blockIdx.x, i) = logits.at(blockIdx.x, i);
  }
}

__global__ void __launch_bounds__(kPairThreads)
    bias_kernel(Logits out, Logits logits, Pairs pairs, PerRow bias) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pairs.rows.size) return;
  const float x = logits.at(pairs.rows[i], pairs.tokens[i]);
  out.at(pairs.rows[i], pairs.tokens[i]) =
      bias.is_f64 ? static_cast<float>(x + bias[i]) : x + static_cast<float>(bias[i]);
}

__global__ void __launch_bounds__(kPairThreads) ban_kernel(Logits out, Pairs pairs) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < pairs.rows.size) out.at(pairs.rows[i], pairs.tokens[i]) = -INFINITY;
}

// Keeps the allowed logits and marks their rows.
__global__ void __launch_bounds__(kPairThreads)
    gather_kernel(float* kept, int* is_named, Logits logits, Pairs pairs) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pairs.rows.size) return;
  kept[i] = logits.at(pairs.rows[i], pairs.tokens[i]);
  is_named[pairs.rows[i]] = 1;
}

__global__ void __launch_bounds__(kLogitThreads)
    clear_kernel(Logits out, Logits logits, const int* is_named) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    out.at(row, i) = is_named[row] == 1 ? -INFINITY : logits.at(row, i);
  }
}

__global__ void __launch_bounds__(kPairThreads)
    scatter_kernel(Logits out, const float* kept, Pairs pairs) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < pairs.rows.size) out.at(pairs.rows[i], pairs.tokens[i]) = kept[i];
}

struct Bits {
  const bool* data;
  int64_t row_stride, stride;

  PYVT_DEVICE bool at(int64_t row, int64_t token) const {
    return data[row * row_stride + token * stride];
  }
};

__global__ void __launch_bounds__(kLogitThreads) mask_kernel(Logits out, Logits logits, Bits mask) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    out.at(row, i) = mask.at(row, i) ? logits.at(row, i) : -INFINITY;
  }
}

// Of a token of a row: kSeen where it occurs at all, and how often it is in the output.
constexpr unsigned kSeen = 1u << 31;

struct Penalties {
  unsigned* counts;  // [R, V]
  PerRow repetition, presence, frequency;
};

__global__ void __launch_bounds__(kPairThreads)
    count_kernel(unsigned* counts, int64_t vocab, Pairs pairs, const bool* is_output,
                 int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pairs.rows.size) return;
  unsigned* count = &counts[pairs.rows[i] * vocab + pairs.tokens[i]];
  atomicOr(count, kSeen);
  if (is_output[i * stride]) atomicAdd(count, 1u);
}

template <typename T>
PYVT_DEVICE float penalised(float value, int count, T repetition, T presence, T frequency) {
  T x = value;
  if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
  if (count > 0) x -= frequency * static_cast<T>(count) + presence;
  return static_cast<float>(x);
}

template <typename T>
__global__ void __launch_bounds__(kLogitThreads)
    penalties_kernel(Logits out, Logits logits, Penalties p) {
  const int64_t row = blockIdx.x;
  const T repetition = static_cast<T>(p.repetition[row]);
  const T presence = static_cast<T>(p.presence[row]), frequency = static_cast<T>(p.frequency[row]);
  const bool is_on = repetition != 1 || presence != 0 || frequency != 0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float value = logits.at(row, i);
    const unsigned seen = p.counts[row * logits.vocab + i];
    const int count = static_cast<int>(seen & ~kSeen);
    out.at(row, i) =
        !is_on || seen == 0 ? value : penalised<T>(value, count, repetition, presence, frequency);
  }
}

Pairs pairs_of(const char* op, const TensorView& row_ids, const TensorView& token_ids) {
  const Index rows = index_of(op, "row_ids", row_ids);
  return {rows, index_of(op, "token_ids", token_ids, rows.size)};
}

Bits bits_of(const char* op, const char* name, const TensorView& x, const Logits& like) {
  PYVT_CHECK(op,
             x.rank == 2 && x.dtype == DType::kBool && x.shape[0] == like.num_rows &&
                 x.shape[1] == like.vocab,
             name, ": expected bool [R, V]");
  return {x.as<bool>(), x.stride[0], x.stride[1]};
}

dim3 row_grid(const Logits& logits) { return dim3(blocks_for(logits.num_rows, 1)); }
dim3 row_block(const Logits& logits) { return dim3(logit_threads(logits.vocab)); }
dim3 pair_grid(const Pairs& pairs) { return dim3(blocks_for(pairs.rows.size, kPairThreads)); }

void copy_rows(const char* op, Context& context, const Logits& out, const Logits& logits) {
  if (out.data == logits.data) return;
  context.launch(op, &copy_kernel, row_grid(logits), row_block(logits), 0, out, logits);
}

}  // namespace

void apply_logit_bias(Context& context, TensorView out, TensorView logits, TensorView row_ids,
                      TensorView token_ids, TensorView bias) {
  const char* op = "apply_logit_bias";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const Pairs pairs = pairs_of(op, row_ids, token_ids);
  const PerRow values = per_row(op, "bias", bias, pairs.rows.size);
  copy_rows(op, context, to, from);
  context.launch(op, &bias_kernel, pair_grid(pairs), dim3(kPairThreads), 0, to, from, pairs,
                 values);
}

void apply_banned_ids(Context& context, TensorView out, TensorView logits, TensorView row_ids,
                      TensorView token_ids) {
  const char* op = "apply_banned_ids";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const Pairs pairs = pairs_of(op, row_ids, token_ids);
  copy_rows(op, context, to, from);
  context.launch(op, &ban_kernel, pair_grid(pairs), dim3(kPairThreads), 0, to, pairs);
}

void apply_allowed_ids(Context& context, TensorView out, TensorView logits, TensorView row_ids,
                       TensorView token_ids) {
  const char* op = "apply_allowed_ids";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const Pairs pairs = pairs_of(op, row_ids, token_ids);
  const size_t num_rows = static_cast<size_t>(from.num_rows);
  const auto kept = context.take(static_cast<size_t>(pairs.rows.size) * sizeof(float));
  const auto named = context.take(num_rows * sizeof(int));
  auto* values = static_cast<float*>(kept->data());
  auto* is_named = static_cast<int*>(named->data());
  check(cudaMemsetAsync(is_named, 0, num_rows * sizeof(int), context.stream()), op);
  context.launch(op, &gather_kernel, pair_grid(pairs), dim3(kPairThreads), 0, values, is_named,
                 from, pairs);
  context.launch(op, &clear_kernel, row_grid(from), row_block(from), 0, to, from,
                 static_cast<const int*>(is_named));
  context.launch(op, &scatter_kernel, pair_grid(pairs), dim3(kPairThreads), 0, to,
                 static_cast<const float*>(values), pairs);
}

void apply_token_mask(Context& context, TensorView out, TensorView logits, TensorView mask) {
  const char* op = "apply_token_mask";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  context.launch(op, &mask_kernel, row_grid(from), row_block(from), 0, to, from,
                 bits_of(op, "mask", mask, from));
}

void apply_penalties(Context& context, TensorView out, TensorView logits, TensorView row_ids,
                     TensorView token_ids, TensorView is_output, TensorView repetition,
                     TensorView presence, TensorView frequency) {
  const char* op = "apply_penalties";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const Pairs pairs = pairs_of(op, row_ids, token_ids);
  PYVT_CHECK(op,
             is_output.rank == 1 && is_output.dtype == DType::kBool &&
                 is_output.shape[0] == pairs.rows.size,
             "is_output: expected bool [M]");
  const size_t num_bytes = static_cast<size_t>(from.num_rows * from.vocab) * sizeof(unsigned);
  const auto taken = context.take(num_bytes);
  auto* counts = static_cast<unsigned*>(taken->data());
  check(cudaMemsetAsync(counts, 0, num_bytes, context.stream()), op);
  context.launch(op, &count_kernel, pair_grid(pairs), dim3(kPairThreads), 0, counts, from.vocab,
                 pairs, static_cast<const bool*>(is_output.as<bool>()), is_output.stride[0]);
  const Penalties penalties{counts, per_row(op, "repetition", repetition, from.num_rows),
                            per_row(op, "presence", presence, from.num_rows),
                            per_row(op, "frequency", frequency, from.num_rows)};
  const bool is_f64 =
      penalties.repetition.is_f64 || penalties.presence.is_f64 || penalties.frequency.is_f64;
  const auto kernel = is_f64 ? &penalties_kernel<double> : &penalties_kernel<float>;
  context.launch(op, kernel, row_grid(from), row_block(from), 0, to, from, penalties);
}

}  // namespace pyvt::cuda
