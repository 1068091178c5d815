// Mixture of experts: router_topk, fused_experts, add_shared_expert.
//
// contract  the references of pyvt/ops/moe.py; all between input and output in f32, but for hidden
//           rows of calls in bf16 or f16, which have 17 bits before tensor cores
// layout    weights as stored, [E, N, K] or blocks of it; x, out, ids and logits of any stride
// work      router: a warp per token, K rounds of a maximum. Experts: pairs of token and expert are
//           products of schedules (products.h): few pairs one by one, more sorted by expert on the
//           device, in tiles of 4 or 64 rows; up's product multiplies by silu(gate); then each
//           token's parts are added in the order of its ids
// estimate  a decode step of B tokens reads min(B·K, E) experts of 3·I·H weights: at the sizes of
//           Qwen3.6-35B-A3B in Q4_K and B = 1, 8 · 3 · 512 · 2048 · 4.5 bits are 14 MB a layer,
//           3.3 us at 4.3 TB/s; at B = 64 222 experts, 393 MB, 91 us. Prefill: 6·I·H·K operations a
//           token and layer, 50 MFLOP; scratch of a pair, 4·(I + H) bytes, is written and read once
//           Experts with columns in orders of their own: the rows of all pairs are written in
//           these orders first
// launches  router 1; experts 4 for up to 32 pairs, else 5, 2 more with act=q8, and one for each
//           stack with orders; shared expert 1
// source    Shazeer et al. 2017, arXiv:1701.06538
#include "cuda/device/logits.cuh"
#include "cuda/ops.h"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kSortThreads = 512;
constexpr int kAddThreads = 256, kPerThread = 4;
// Pairs that are held at once: their parts take 134 MB at H = 2048.
constexpr int64_t kMaxPairs = 16384;
// So few that sorting costs more than it saves.
constexpr int64_t kMaxUnsorted = 32;

// [T, K] f32 and i32.
struct Chosen {
  float* weights = nullptr;
  int32_t* ids = nullptr;
  int64_t weights_stride = 0, weight_stride = 0, ids_stride = 0, id_stride = 0;

  PYVT_DEVICE float& weight(int64_t token, int k) const {
    return weights[token * weights_stride + k * weight_stride];
  }
  PYVT_DEVICE int32_t& id(int64_t token, int k) const {
    return ids[token * ids_stride + k * id_stride];
  }
};

// NaN counts as the lowest value.
PYVT_DEVICE unsigned long long router_key(float logit, int64_t expert) {
  return rank_key(isnan(logit) ? -INFINITY : logit, expert);
}

template <typename T>
__global__ void __launch_bounds__(kRouterWarps* kWarp)
    router_kernel(Chosen chosen, Rows logits, int top_k, bool is_renormalized) {
  const int64_t token = int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / kWarp;
  if (token >= logits.num_rows) return;
  const int lane = threadIdx.x % kWarp;
  const int num_experts = static_cast<int>(logits.length);
  const T* row = static_cast<const T*>(logits.data) + logits.row(token);
  const auto logit_of = [&](int expert) { return load(row[expert * logits.stride]); };
  float largest = -INFINITY, sum = 0.0f, sum_of_chosen = 0.0f;
  bool has_nan = false;
  for (int e = lane; e < num_experts; e += kWarp) {
    const float logit = logit_of(e);
    has_nan = has_nan || isnan(logit);
    largest = logit > largest ? logit : largest;
  }
  largest = __any_sync(kAllLanes, has_nan) ? NAN : warp_max(largest);
  for (int e = lane; e < num_experts; e += kWarp) sum += expf(logit_of(e) - largest);
  const float factor = inverse(warp_sum(sum));
  unsigned long long last = ~0ull;
  for (int k = 0; k < top_k; ++k) {
    unsigned long long best = 0;
    for (int e = lane; e < num_experts; e += kWarp) {
      const unsigned long long key = router_key(logit_of(e), e);
      best = key < last && key > best ? key : best;
    }
    last = best = warp_max(best);
    const auto expert = static_cast<int32_t>(token_of(best));
    const float share = expf(logit_of(expert) - largest) * factor;
    sum_of_chosen += share;
    if (lane == k % kWarp) {
      chosen.id(token, k) = expert;
      chosen.weight(token, k) = share;
    }
  }
  if (!is_renormalized) return;
  const float share = inverse(sum_of_chosen);
  for (int k = lane; k < top_k; k += kWarp) chosen.weight(token, k) *= share;
}

// Sorts the pairs by expert and lists tiles of up to `height` of them; one block. `counts` of
// shared memory has a number for each expert.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(int32_t* pairs, int32_t* tiles, ExpertIds ids, int num_pairs, int num_experts,
                int height, int num_tiles) {
  PYVT_DYNAMIC_SHARED(int32_t, counts);
  PYVT_SHARED(num_used, int32_t[1]);
  for (int e = threadIdx.x; e < num_experts; e += kSortThreads) counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < num_pairs; p += kSortThreads) atomicAdd(&counts[ids[p]], 1);
  __syncthreads();
  // Then counts[e] is the first place of expert e.
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    int first_place = 0, first_tile = 0;
    for (int start = 0; start < num_experts; start += kWarp) {
      const int expert = start + lane;
      const int count = expert < num_experts ? counts[expert] : 0;
      const int own_tiles = (count + height - 1) / height;
      int place = count, tile = own_tiles;
#pragma unroll
      for (int delta = 1; delta < kWarp; delta *= 2) {
        const int other_place = __shfl_up_sync(kAllLanes, place, delta);
        const int other_tile = __shfl_up_sync(kAllLanes, tile, delta);
        place += lane >= delta ? other_place : 0;
        tile += lane >= delta ? other_tile : 0;
      }
      const int own_place = first_place + place - count, own_tile = first_tile + tile - own_tiles;
      if (expert < num_experts) counts[expert] = own_place;
      for (int i = 0; i < own_tiles; ++i) {
        const int rest = count - i * height;
        int32_t* to = tiles + 3 * (own_tile + i);
        to[0] = expert;
        to[1] = own_place + i * height;
        to[2] = rest < height ? rest : height;
      }
      first_place += __shfl_sync(kAllLanes, place, kWarp - 1);
      first_tile += __shfl_sync(kAllLanes, tile, kWarp - 1);
    }
    if (lane == 0) num_used[0] = first_tile;
  }
  __syncthreads();
  for (int i = num_used[0] + threadIdx.x; i < num_tiles; i += kSortThreads) tiles[3 * i + 2] = 0;
  for (int p = threadIdx.x; p < num_pairs; p += kSortThreads) {
    pairs[atomicAdd(&counts[ids[p]], 1)] = p;
  }
}

// out[p, i] = x[p / per_x_row, columns[ids[p], i]].
__global__ void __launch_bounds__(kAddThreads)
    take_pairs_kernel(Rows out, Rows x, ExpertIds ids, const int32_t* columns, int64_t stride,
                      int per_x_row) {
  const int pair = static_cast<int>(blockIdx.x);
  const Row to = out.at(pair), from = x.at(pair / per_x_row);
  const int32_t* order = columns + ids[pair] * stride;
  for (int64_t i = threadIdx.x; i < out.length; i += blockDim.x) to.set(i, from.get(order[i]));
}

// out[t] = Σ weights[t, k] · parts[t · K + k], by k.
__global__ void __launch_bounds__(kAddThreads)
    add_parts_kernel(Rows out, Rows parts, Rows weights) {
  const int64_t token = blockIdx.x;
  const int top_k = static_cast<int>(weights.length);
  const Row to = out.at(token), of_weights = weights.at(token);
  const auto* from = static_cast<const float*>(parts.data) + token * top_k * out.length;
  const int64_t i = int64_t{blockIdx.y} * kAddThreads + threadIdx.x;
  if (i >= out.length) return;
  float sum = 0.0f;
  for (int k = 0; k < top_k; ++k) sum += of_weights.get(k) * from[k * out.length + i];
  to.set(i, sum);
}

__global__ void __launch_bounds__(kAddThreads)
    shared_kernel(Rows out, Rows routed, Rows shared, Rows gate) {
  const int64_t token = blockIdx.x;
  const Row to = out.at(token), of_routed = routed.at(token), of_shared = shared.at(token);
  const float share = 1.0f / (1.0f + expf(-gate.at(token).get(0)));
  for (int64_t i = threadIdx.x; i < out.length; i += blockDim.x) {
    to.set(i, of_routed.get(i) + share * of_shared.get(i));
  }
}

// Rows of f32 side by side.
Rows dense_rows(void* data, int64_t num_rows, int64_t length) {
  Rows rows;
  rows.data = data;
  rows.num_rows = num_rows;
  rows.length = length;
  rows.num_inner = num_rows > 0 ? num_rows : 1;
  rows.inner_stride = length;
  return rows;
}

size_t as_size(int64_t size) { return static_cast<size_t>(size); }

// Rows of a view from a token on.
TensorView tokens_of(const TensorView& view, int64_t first, int64_t count, int64_t item) {
  TensorView part = view;
  part.data = static_cast<char*>(view.data) + first * view.stride[0] * item;
  part.shape[0] = count;
  return part;
}

struct Stacks {
  Matrices gate, up, down;
  TensorView gate_columns, up_columns, down_columns;  // [E, K], without value where in their own
};

void check_columns(const char* op, const char* name, const TensorView& columns,
                   const Matrices& stack) {
  PYVT_CHECK(op,
             !columns.has_value() ||
                 (columns.dtype == DType::kI32 && columns.rank == 2 && columns.is_dense(1) &&
                  columns.shape[0] == stack.num_matrices && columns.shape[1] == stack.num_cols),
             name, ": expected i32 [", stack.num_matrices, ", ", stack.num_cols, "]");
}

// The pairs of some tokens, whose products go through the same schedule.
class Pairs {
 public:
  Pairs(Context& context, const char* op, const TensorView& ids, int num_experts, bool may_split)
      : context_(context), op_(op), may_split_(may_split) {
    const int64_t count = ids.size();
    schedule_.num_rows = static_cast<int>(count);
    schedule_.ids = {ids.data, ids.stride[0], ids.stride[1], static_cast<int>(ids.shape[1]),
                     ids.dtype == DType::kI64};
    if (count <= kMaxUnsorted) {
      schedule_.num_tiles = schedule_.num_rows;
      return;
    }
    const int height = count <= int64_t{kFewRows} * num_experts ? kFewRows : kTileRows;
    const int64_t most = count / height + (num_experts < count ? num_experts : count);
    schedule_.height = height;
    schedule_.num_tiles = static_cast<int>(most);
    order_ = context.take(as_size(count + 3 * most) * sizeof(int32_t));
    auto* pairs = static_cast<int32_t*>(order_->data());
    schedule_.pairs = pairs;
    schedule_.tiles = pairs + count;
    context.launch(op, &sort_kernel, dim3(1), dim3(kSortThreads),
                   as_size(num_experts) * sizeof(int32_t), pairs, pairs + count, schedule_.ids,
                   schedule_.num_rows, num_experts, height, schedule_.num_tiles);
  }

  // The row of each pair in the order of its expert's columns, in memory of `buffer`.
  Rows taken(const Rows& x, const TensorView& columns, int per_x_row,
             std::shared_ptr<Buffer>* buffer) const {
    *buffer = context_.take(as_size(schedule_.num_rows * x.length) * sizeof(float));
    const Rows rows = dense_rows((*buffer)->data(), schedule_.num_rows, x.length);
    if (x.length == 0) return rows;
    context_.launch(op_, &take_pairs_kernel, dim3(static_cast<unsigned>(schedule_.num_rows)),
                    dim3(threads_for(x.length, kPerThread, kAddThreads)), 0, rows, x, schedule_.ids,
                    columns.as<const int32_t>(), columns.stride[0], per_x_row);
    return rows;
  }

  // Rows of x in int8, where products are of codes.
  void quantize(const Rows& x, bool is_used) {
    codes_.reset();
    if (!is_used || schedule_.height == 1) return;
    const size_t size = as_size(x.num_rows * x.length);
    codes_ = context_.take(size + size / kQ8Group * sizeof(float));
    codes_at_ = static_cast<int8_t*>(codes_->data());
    scales_at_ = reinterpret_cast<float*>(codes_at_ + size);
    quantize_rows(context_, op_, codes_at_, scales_at_, x);
  }

  void product(const Rows& out, const Rows& x, const Matrices& weight, const Rows& gate, bool is_q8,
               int per_x_row) {
    MatrixProduct product;
    product.out = out;
    product.x = x;
    product.gate = gate;
    product.weight = weight;
    product.schedule = schedule_;
    product.schedule.per_x_row = per_x_row;
    product.may_split = may_split_;
    product.is_q8 = is_q8 && has_codes(weight.dtype);
    if (product.is_q8 && codes_ != nullptr) {
      product.codes = codes_at_;
      product.scales = scales_at_;
    }
    multiply(context_, op_, product);
  }

 private:
  static constexpr size_t kQ8Group = 32;

  Context& context_;
  const char* op_;
  bool may_split_;
  Schedule schedule_;
  std::shared_ptr<Buffer> order_, codes_;
  float* scales_at_ = nullptr;
  int8_t* codes_at_ = nullptr;
};

void run_experts(Context& context, const char* op, const TensorView& out, const TensorView& x,
                 const TensorView& ids, const TensorView& weights, const Stacks& stacks,
                 bool is_q8) {
  const int64_t num_pairs = ids.size(), top_k = ids.shape[1];
  const int64_t inner = stacks.gate.num_rows, hidden = x.shape[1];
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const auto parts = context.take(as_size(num_pairs * hidden) * sizeof(float));
  const Rows of_parts = dense_rows(parts->data(), num_pairs, hidden);
  if (num_pairs > 0) {
    const auto middle = context.take(as_size(num_pairs * inner) * sizeof(float));
    const Rows of_middle = dense_rows(middle->data(), num_pairs, inner);
    Pairs pairs(context, op, ids, stacks.gate.num_matrices, out.dtype != DType::kF32);
    const int per_token = static_cast<int>(top_k);
    std::shared_ptr<Buffer> of_gate, of_up, of_down;
    const auto is_coded = [&](const Matrices& stack) { return is_q8 && has_codes(stack.dtype); };
    // One input of gate and up, or one of each.
    Rows input = from;
    int per_input = per_token;
    if (stacks.gate_columns.has_value()) {
      input = pairs.taken(from, stacks.gate_columns, per_token, &of_gate);
      per_input = 1;
    }
    const bool is_one = stacks.gate_columns.data == stacks.up_columns.data;
    pairs.quantize(input, is_coded(stacks.gate) || (is_one && is_coded(stacks.up)));
    pairs.product(of_middle, input, stacks.gate, {}, is_q8, per_input);
    if (!is_one) {
      const bool has_order = stacks.up_columns.has_value();
      input = has_order ? pairs.taken(from, stacks.up_columns, per_token, &of_up) : from;
      per_input = has_order ? 1 : per_token;
      pairs.quantize(input, is_coded(stacks.up));
    }
    pairs.product(of_middle, input, stacks.up, of_middle, is_q8, per_input);
    Rows hidden_rows = of_middle;
    if (stacks.down_columns.has_value()) {
      hidden_rows = pairs.taken(of_middle, stacks.down_columns, 1, &of_down);
    }
    pairs.quantize(hidden_rows, is_coded(stacks.down));
    pairs.product(of_parts, hidden_rows, stacks.down, {}, is_q8, 1);
  }
  const dim3 grid(static_cast<unsigned>(to.num_rows), blocks_for(hidden, kAddThreads));
  context.launch(op, &add_parts_kernel, grid, dim3(kAddThreads), 0, to, of_parts,
                 rows_of(op, "expert_weights", weights));
}

}  // namespace

void router_topk(Context& context, TensorView weights, TensorView ids, TensorView logits,
                 int64_t top_k, int64_t renormalize) {
  const char* op = "router_topk";
  const Rows from = rows_of(op, "logits", logits);
  PYVT_CHECK(op, logits.rank == 2 && top_k >= 1 && top_k <= from.length, "top_k: expected 1 to ",
             from.length);
  const auto is_chosen = [&](const TensorView& view, DType dtype) {
    return view.rank == 2 && view.dtype == dtype && view.shape[0] == from.num_rows &&
           view.shape[1] == top_k;
  };
  PYVT_CHECK(op, is_chosen(weights, DType::kF32) && is_chosen(ids, DType::kI32),
             "weights, ids: expected f32 and i32 [", from.num_rows, ", ", top_k, "]");
  const Chosen chosen = {weights.as<float>(), ids.as<int32_t>(), weights.stride[0],
                         weights.stride[1],   ids.stride[0],     ids.stride[1]};
  with_float(from.dtype, [&](auto type) {
    context.launch(op, &router_kernel<decltype(type)>,
                   dim3(blocks_for(from.num_rows, kRouterWarps)), dim3(kRouterWarps * kWarp), 0,
                   chosen, from, static_cast<int>(top_k), renormalize != 0);
  });
}

void fused_experts(Context& context, TensorView out, TensorView x, TensorView expert_ids,
                   TensorView expert_weights, ExpertStack gate, ExpertStack up, ExpertStack down,
                   TensorView gate_columns, TensorView up_columns, TensorView down_columns,
                   std::string act) {
  const char* op = "fused_experts";
  PYVT_CHECK(
      op, x.rank == 2 && out.rank == 2 && out.shape[0] == x.shape[0] && out.shape[1] == x.shape[1],
      "x, out: expected one shape [T, H]");
  PYVT_CHECK(op,
             expert_ids.rank == 2 && expert_ids.shape[0] == x.shape[0] &&
                 (expert_ids.dtype == DType::kI32 || expert_ids.dtype == DType::kI64),
             "expert_ids: expected i32 or i64 [T, K]");
  PYVT_CHECK(op,
             expert_weights.rank == 2 && expert_weights.dtype == DType::kF32 &&
                 expert_weights.shape[0] == x.shape[0] &&
                 expert_weights.shape[1] == expert_ids.shape[1],
             "expert_weights: expected f32 [T, K]");
  PYVT_CHECK(op, act == "none" || act == "q8", "act: expected none or q8, got ", act);
  const Stacks stacks = {matrices_of(op, "gate", gate),
                         matrices_of(op, "up", up),
                         matrices_of(op, "down", down),
                         gate_columns,
                         up_columns,
                         down_columns};
  const int64_t hidden = x.shape[1], inner = stacks.gate.num_rows;
  PYVT_CHECK(op,
             stacks.gate.num_cols == hidden && stacks.up.num_cols == hidden &&
                 stacks.up.num_rows == inner && stacks.down.num_rows == hidden &&
                 stacks.down.num_cols == inner,
             "gate, up, down: expected [E, I, H], [E, I, H] and [E, H, I] with H = ", hidden);
  PYVT_CHECK(op,
             stacks.up.num_matrices == stacks.gate.num_matrices &&
                 stacks.down.num_matrices == stacks.gate.num_matrices,
             "gate, up, down: expected as many experts each");
  check_columns(op, "gate_columns", gate_columns, stacks.gate);
  check_columns(op, "up_columns", up_columns, stacks.up);
  check_columns(op, "down_columns", down_columns, stacks.down);
  if (out.size() == 0) return;
  const int64_t id_bytes = expert_ids.dtype == DType::kI64 ? 8 : 4;
  const int64_t x_bytes = x.dtype == DType::kF32 ? 4 : 2;
  const int64_t top_k = expert_ids.shape[1], step = kMaxPairs / (top_k > 0 ? top_k : 1);
  for (int64_t first = 0; first < x.shape[0]; first += step) {
    const int64_t count = x.shape[0] - first < step ? x.shape[0] - first : step;
    run_experts(context, op, tokens_of(out, first, count, x_bytes),
                tokens_of(x, first, count, x_bytes), tokens_of(expert_ids, first, count, id_bytes),
                tokens_of(expert_weights, first, count, 4), stacks, act == "q8");
  }
}

void add_shared_expert(Context& context, TensorView out, TensorView routed, TensorView shared,
                       TensorView gate) {
  const char* op = "add_shared_expert";
  const Rows from = rows_of(op, "routed", routed), gates = rows_of(op, "gate", gate);
  PYVT_CHECK(op, gates.num_rows == from.num_rows && gates.length == 1, "gate: expected [",
             from.num_rows, ", 1]");
  if (from.length == 0) return;
  context.launch(op, &shared_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(threads_for(from.length, kPerThread, kAddThreads)), 0,
                 rows_like(op, "out", out, from), from, rows_like(op, "shared", shared, from),
                 gates);
}

}  // namespace pyvt::cuda
