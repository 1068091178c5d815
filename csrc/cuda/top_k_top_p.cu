// apply_top_k_top_p: keeps the best tokens of a row without sorting it.
//
// contract  the reference of pyvt/ops/sampling.py; ties with the k-th stay, but k = 1 keeps what
//           argmax chooses; ties at the border of top-p go by the lowest id
// layout    logits [R, V] of any stride; out may be logits
// work      a block per row. A radix descent of four digits finds the value at which a running sum
//           from the greatest value down crosses a target: of counts for top-k, of weights for
//           top-p. Weights are exp(x − max) in fixed point of 44 bits, so their sums are whole
//           numbers and do not depend on the order of threads
// estimate  10 passes over 4·V bytes, from L2: 64 rows of 151,936 take about 60 us; one more of 300
//           barriers, 30 us, where more tokens than are kept have the border's value. About 4
//           operations a logit and pass, 0.4 GFLOP, 7 us at the 60 TFLOP/s of f32
// launches  1
// source    Fan et al. 2018, arXiv:1805.04833; Holtzman et al. 2019, arXiv:1904.09751
#include "cuda/device/logits.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

using Sum = unsigned long long;

constexpr int kMaxWarps = kLogitThreads / kWarp;
constexpr int kDigit = 8, kBins = 1 << kDigit;
constexpr double kUnit = 17592186044416.0;  // 2^44: sums of 2^19 tokens fit in 64 bits

struct Shared {
  Sum parts[kMaxWarps];
  Sum bins[kBins];
  Sum before;       // of greater values
  uint32_t prefix;  // digits found so far
};

// What a token counts: 1, or its weight among those from `floor` on.
struct Measure {
  bool is_weight;
  float best;
  uint32_t floor;

  PYVT_DEVICE Sum of(float value, uint32_t order) const {
    if (order < floor || value == -INFINITY) return 0;
    if (!is_weight) return 1;
    return static_cast<Sum>(exp(static_cast<double>(value - best)) * kUnit);
  }
};

struct Border {
  uint32_t order;  // of the value at which the sum reaches the target
  Sum before;      // the sum of greater values
};

// The greatest value down to which the sum is at least `target`; all threads call it.
PYVT_DEVICE Border find_border(const Logits& logits, int64_t row, const Measure& measure,
                               Sum target, Shared* shared) {
  if (threadIdx.x == 0) {
    shared->before = 0;
    shared->prefix = 0;
  }
  for (int shift = 32 - kDigit; shift >= 0; shift -= kDigit) {
    for (int i = threadIdx.x; i < kBins; i += blockDim.x) shared->bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = shared->prefix;
    for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
      const float value = logits.at(row, i);
      const uint32_t order = order_of(value);
      const bool is_in = shift == 32 - kDigit || order >> (shift + kDigit) == prefix;
      const Sum own = is_in ? measure.of(value, order) : 0;
      if (own > 0) atomicAdd(&shared->bins[order >> shift & (kBins - 1)], own);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      Sum sum = shared->before;
      int digit = kBins - 1;
      while (digit > 0 && sum + shared->bins[digit] < target) sum += shared->bins[digit--];
      // Below the last value that counts there is nothing to find.
      while (digit < kBins - 1 && shared->bins[digit] == 0) sum -= shared->bins[++digit];
      shared->before = sum;
      shared->prefix = prefix << kDigit | static_cast<uint32_t>(digit);
    }
    __syncthreads();
  }
  return {shared->prefix, shared->before};
}

// Sums a measure over the row, in every thread.
PYVT_DEVICE Sum sum_of(const Logits& logits, int64_t row, const Measure& measure, Sum* parts) {
  Sum sum = 0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float value = logits.at(row, i);
    sum += measure.of(value, order_of(value));
  }
  return block_sum(sum, parts);
}

// Keeps of the tokens of one value the first `count` by id and sets the rest to −inf; all threads
// call it, with as many tokens at a time as there are threads.
PYVT_DEVICE void keep_first(const Logits& out, int64_t row, uint32_t order, Sum count,
                            Shared* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int num_warps = blockDim.x / kWarp;
  for (int64_t start = 0; start < out.vocab; start += blockDim.x) {
    const int64_t i = start + threadIdx.x;
    const bool is_tie = i < out.vocab && order_of(out.at(row, i)) == order;
    const uint32_t ties = __ballot_sync(kAllLanes, is_tie);
    if (lane == 0) shared->parts[warp] = static_cast<Sum>(__popc(ties));
    __syncthreads();
    Sum before = static_cast<Sum>(__popc(ties & ((1u << lane) - 1))), all = 0;
    for (int w = 0; w < num_warps; ++w) {
      if (w < warp) before += shared->parts[w];
      all += shared->parts[w];
    }
    if (is_tie && before >= count) out.at(row, i) = -INFINITY;
    count -= all < count ? all : count;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kLogitThreads)
    filter_kernel(Logits out, Logits logits, Index top_k, PerRow top_p) {
  PYVT_SHARED(shared, Shared);
  const int64_t row = blockIdx.x, k = top_k[row];
  const bool is_k = k > 0 && k < logits.vocab;
  const double share = top_p[row];
  const bool is_p = share < 1.0;
  const Sum first = best_key(logits, row, shared.parts);
  const float best = value_of_key(first);
  const bool is_on = (is_k || is_p) && isfinite(best);
  uint32_t floor = 0;
  if (is_on && is_k && k > 1) {
    floor = find_border(logits, row, {false, best, 0}, static_cast<Sum>(k), &shared).order;
  }
  uint32_t border = floor;
  Sum num_ties = ~Sum{0};
  const bool is_one = is_on && is_k && k == 1;
  if (is_on && is_p && !is_one) {
    const Measure measure{true, best, floor};
    const Sum total = sum_of(logits, row, measure, shared.parts);
    Sum target = static_cast<Sum>(ceil(share * static_cast<double>(total)));
    if (target == 0) target = 1;
    if (target > total) target = total;
    const Border found = find_border(logits, row, measure, target, &shared);
    border = found.order;
    const Sum own = measure.of(value_of(border), border);
    num_ties = own == 0 ? 1 : (target - found.before + own - 1) / own;
  }
  // All have read the row: what is above ends with a barrier. So out may be logits.
  Sum found_ties = 0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const float value = logits.at(row, i);
    const uint32_t order = order_of(value);
    const bool is_kept = is_one ? i == token_of(first) : order >= border;
    out.at(row, i) = !is_on || is_kept ? value : -INFINITY;
    found_ties += order == border;
  }
  found_ties = block_sum(found_ties, shared.parts);
  if (found_ties > num_ties) keep_first(out, row, border, num_ties, &shared);
}

}  // namespace

void apply_top_k_top_p(Context& context, TensorView out, TensorView logits, TensorView top_k,
                       TensorView top_p) {
  const char* op = "apply_top_k_top_p";
  const Logits from = logits_of(op, "logits", logits), to = logits_like(op, "out", out, from);
  const Index most = index_of(op, "top_k", top_k, from.num_rows);
  const PerRow shares = per_row(op, "top_p", top_p, from.num_rows);
  if (from.vocab == 0) return;
  context.launch(op, &filter_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(logit_threads(from.vocab)), 0, to, from, most, shares);
}

}  // namespace pyvt::cuda
