// From logits to token ids: count_nonfinite, argmax, temperature, min-p, the draw.
//
// contract  the references of pyvt/ops/sampling.py; a row without a finite maximum gives −1; the
//           noise is a function of seed, position and token alone, in f64
// layout    logits [R, V] of any stride; out may be logits
// work      a block per row
// estimate  4·V bytes a row, from L2 where lm_head has just written them; 64 rows of 151,936 take
//           9 us at 4.3 TB/s. The draw: two logarithms in f64 for the few tokens that can win,
//           some 10 operations for each of the others
// launches  1 each
// source    Gumbel 1954; Steele, Lea & Flood 2014
#include "cuda/device/logits.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxWarps = kLogitThreads / kWarp;
// A lower temperature is greedy.
constexpr double kMinTemperature = 1e-5;
// The noise of a token is between −3.6 and 36.8: one this far below the best never wins.
constexpr float kNoiseSpan = 41.5f;

__global__ void __launch_bounds__(kLogitThreads) count_nonfinite_kernel(int64_t* out, Rows logits) {
  PYVT_SHARED(parts, int[kMaxWarps]);
  const Row row = logits.at(blockIdx.x);
  int count = 0;
  for (int64_t i = threadIdx.x; i < logits.length; i += blockDim.x) count += !isfinite(row.get(i));
  count = block_sum(count, parts);
  if (threadIdx.x == 0) out[blockIdx.x] = count;
}

__global__ void __launch_bounds__(kLogitThreads) argmax_kernel(int64_t* out, Logits logits) {
  PYVT_SHARED(parts, unsigned long long[kMaxWarps]);
  const unsigned long long best = best_key(logits, blockIdx.x, parts);
  if (threadIdx.x == 0) out[blockIdx.x] = isfinite(value_of_key(best)) ? token_of(best) : kNoToken;
}

__global__ void __launch_bounds__(kLogitThreads)
    temperature_kernel(Logits out, Logits logits, PerRow temperature) {
  const int64_t row = blockIdx.x;
  const double by = temperature[row];
  const bool is_on = by >= kMinTemperature && by != 1.0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float x = logits.at(row, i);
    const float divided = temperature.is_f64 ? static_cast<float>(static_cast<double>(x) / by)
                                             : x / static_cast<float>(by);
    out.at(row, i) = is_on ? divided : x;
  }
}

__global__ void __launch_bounds__(kLogitThreads)
    min_p_kernel(Logits out, Logits logits, PerRow min_p) {
  PYVT_SHARED(parts, unsigned long long[kMaxWarps]);
  const int64_t row = blockIdx.x;
  const double share = min_p[row];
  const float best = value_of_key(best_key(logits, row, parts));
  const double wide = best + log(share);
  const double threshold =
      min_p.is_f64 ? wide : static_cast<double>(best + logf(static_cast<float>(share)));
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float x = logits.at(row, i);
    out.at(row, i) = share > 0.0 && x < threshold ? -INFINITY : x;
  }
}

PYVT_DEVICE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

PYVT_DEVICE uint64_t output(uint64_t state, uint64_t index) {
  return mix(state + (index + 1) * 0x9e3779b97f4a7c15u);
}

struct Draw {
  double value;
  int64_t token;
};

PYVT_DEVICE Draw better(const Draw& a, const Draw& b) {
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}

__global__ void __launch_bounds__(kLogitThreads)
    draw_kernel(int64_t* out, Logits logits, const uint64_t* seeds, int64_t seed_stride,
                Index positions) {
  PYVT_SHARED(parts, unsigned long long[kMaxWarps]);
  PYVT_SHARED(draws, Draw[kMaxWarps]);
  const int64_t row = blockIdx.x;
  const float best = value_of_key(best_key(logits, row, parts));
  if (!isfinite(best)) {
    if (threadIdx.x == 0) out[row] = kNoToken;
    return;
  }
  const uint64_t state =
      output(mix(seeds[row * seed_stride]), static_cast<uint64_t>(positions[row]));
  Draw own{-INFINITY, logits.vocab};
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float x = logits.at(row, i);
    if (x < best - kNoiseSpan) continue;
    const uint64_t bits = output(state, static_cast<uint64_t>(i)) >> 12;
    const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-52;
    own = better(own, {x - log(-log(uniform)), i});
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double value = __shfl_xor_sync(kAllLanes, own.value, step);
    const int64_t token = __shfl_xor_sync(kAllLanes, own.token, step);
    own = better(own, {value, token});
  }
  if (threadIdx.x % kWarp == 0) draws[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < static_cast<int>(blockDim.x) / kWarp; ++i) own = better(own, draws[i]);
  out[row] = own.token;
}

int64_t* ids_of(const char* op, const char* name, const TensorView& out, int64_t size) {
  PYVT_CHECK(op, out.dtype == DType::kI64 && out.is_dense() && out.size() == size, name,
             ": expected i64, side by side");
  return out.as<int64_t>();
}

}  // namespace

void count_nonfinite(Context& context, TensorView out, TensorView logits) {
  const char* op = "count_nonfinite";
  const Rows rows = rows_of(op, "logits", logits);
  context.launch(op, &count_nonfinite_kernel, dim3(blocks_for(rows.num_rows, 1)),
                 dim3(logit_threads(rows.length)), 0, ids_of(op, "out", out, rows.num_rows), rows);
}

void argmax(Context& context, TensorView out, TensorView logits) {
  const char* op = "argmax";
  const Logits rows = logits_of(op, "logits", logits);
  context.launch(op, &argmax_kernel, dim3(blocks_for(rows.num_rows, 1)),
                 dim3(logit_threads(rows.vocab)), 0, ids_of(op, "out", out, rows.num_rows), rows);
}

void apply_temperature(Context& context, TensorView out, TensorView logits,
                       TensorView temperature) {
  const char* op = "apply_temperature";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const PerRow values = per_row(op, "temperature", temperature, from.num_rows);
  context.launch(op, &temperature_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(logit_threads(from.vocab)), 0, to, from, values);
}

void apply_min_p(Context& context, TensorView out, TensorView logits, TensorView min_p) {
  const char* op = "apply_min_p";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const PerRow values = per_row(op, "min_p", min_p, from.num_rows);
  context.launch(op, &min_p_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(logit_threads(from.vocab)), 0, to, from, values);
}

void random_sample(Context& context, TensorView out, TensorView logits, TensorView seeds,
                   TensorView positions) {
  const char* op = "random_sample";
  const Logits rows = logits_of(op, "logits", logits);
  PYVT_CHECK(op, seeds.rank == 1 && seeds.shape[0] == rows.num_rows && seeds.dtype == DType::kU64,
             "seeds: expected u64 [R]");
  const Index places = index_of(op, "positions", positions, rows.num_rows);
  context.launch(op, &draw_kernel, dim3(blocks_for(rows.num_rows, 1)),
                 dim3(logit_threads(rows.vocab)), 0, ids_of(op, "out", out, rows.num_rows), rows,
                 static_cast<const uint64_t*>(seeds.as<uint64_t>()), seeds.stride[0], places);
}

}  // namespace pyvt::cuda
