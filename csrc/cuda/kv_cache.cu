// The paged KV cache: reshape_and_cache writes new tokens, rotate_and_cache norms and turns their
// heads too; copy_blocks, gather_blocks and scatter_blocks move whole blocks.
//
// contract  the references of pyvt/ops/kv_cache.py; a slot of −1 writes nothing; fp8 saturates
// layout    [B, S, Nk, D] of any stride, so that a head's tokens of a block may lie side by side
// work      a block per token, or per block of the cache; rotate_and_cache a warp per head of a
//           token, whose lanes turn a pair at a time: a row is read twice, the second time from L1
// estimate  bf16: 8·Nk·D bytes a token, 4096 tokens of 8 heads of 128 move 34 MB, 8 us at 4.3 TB/s;
//           rotate_and_cache 4·D·(N + 2·Nk) bytes a token, 101 MB for 32 query heads, 23 us, and
//           10 operations an element; latency in a decode step, 2 us each
// launches  1 each; rotate_and_cache in place of four, one a layer of a decode step
// source    Su et al. 2021, arXiv:2104.09864; Zhang & Sennrich 2019, arXiv:1910.07467
#include "cuda/device/attention.cuh"
#include "cuda/device/index.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPerThread = 8;
constexpr int kHeadWarps = 4;  // of a block of rotate_and_cache: heads at a time
constexpr float kF16Max = 65504.0f;

// New tokens [T, Nk, D].
struct Tokens {
  const void* data;
  DType dtype;
  int64_t token_stride, head_stride, stride;
};

PYVT_DEVICE void write(const Cache& cache, int64_t at, float value) {
  if (cache.dtype == DType::kFP8) {
    static_cast<fp8*>(cache.data)[at] = store<fp8>(value);
    return;
  }
  if (cache.dtype == DType::kF16 && !isinf(value)) {
    value = value > kF16Max ? kF16Max : value < -kF16Max ? -kF16Max : value;
  }
  store_any(cache.data, cache.dtype, at, value);
}

__global__ void __launch_bounds__(kMaxThreads)
    write_kernel(Cache k_cache, Cache v_cache, Tokens k, Tokens v, Index slots) {
  const int64_t token = blockIdx.x, slot = slots[token];
  if (slot < 0) return;
  const int64_t block = slot / k_cache.block_size, place = slot % k_cache.block_size;
  const int64_t head_dim = k_cache.head_dim, size = k_cache.num_heads * head_dim;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
    const int64_t head = i / head_dim, dim = i % head_dim;
    const int64_t k_from = token * k.token_stride + head * k.head_stride + dim * k.stride;
    const int64_t v_from = token * v.token_stride + head * v.head_stride + dim * v.stride;
    write(k_cache, k_cache.at(block, place, head) + dim * k_cache.stride,
          load_any(k.data, k.dtype, k_from));
    write(v_cache, v_cache.at(block, place, head) + dim * v_cache.stride,
          load_any(v.data, v.dtype, v_from));
  }
}

// The weight of a norm over the dims of a head, no data where there is none.
struct Weight {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  PYVT_DEVICE float get(int64_t dim) const { return load_any(data, dtype, dim); }
};

PYVT_DEVICE float rounded(float x, DType dtype) {
  return dtype == DType::kBF16  ? load(store<bf16>(x))
         : dtype == DType::kF16 ? load(store<f16>(x))
                                : x;
}

// One head of a token, as a warp sees it, and where the cache wants it.
struct Head {
  const Heads& x;
  int64_t token, head;
  const Weight& weight;
  float factor;  // of the norm
  const Cache& cache;
  int64_t place;  // of dim 0 in the cache, −1 for none

  PYVT_DEVICE float get(int64_t dim) const {
    const float value = x.get(token, head, dim);
    return weight.data == nullptr ? value : rounded(value * factor * weight.get(dim), x.dtype);
  }
  PYVT_DEVICE void put(int64_t dim, float value) const {
    x.set(token, head, dim, value);
    if (place >= 0) write(cache, place + dim * cache.stride, rounded(value, x.dtype));
  }
};

// The factor of a head's norm, in every lane.
PYVT_DEVICE float norm_factor(const Heads& x, int64_t token, int64_t head, float eps) {
  float square = 0.0f;
  for (int64_t dim = threadIdx.x % kWarp; dim < x.head_dim; dim += kWarp) {
    const float value = x.get(token, head, dim);
    square += value * value;
  }
  return 1.0f / sqrtf(warp_sum(square) / static_cast<float>(x.head_dim) + eps);
}

// Norms and turns a head of a token, and writes it to `place` of the cache where that is not -1.
PYVT_DEVICE void turn(const Heads& x, const Weight& weight, int64_t token, int64_t head,
                      const Row& angles, int64_t half, float eps, const Cache& cache,
                      int64_t place) {
  const int64_t lane = threadIdx.x % kWarp;
  const float factor = weight.data == nullptr ? 1.0f : norm_factor(x, token, head, eps);
  const Head mine{x, token, head, weight, factor, cache, place};
  for (int64_t pair = lane; pair < half; pair += kWarp) {
    const float cosine = angles.get(pair), sine = angles.get(half + pair);
    const float x1 = mine.get(pair), x2 = mine.get(half + pair);
    mine.put(pair, x1 * cosine - x2 * sine);
    mine.put(half + pair, x2 * cosine + x1 * sine);
  }
  for (int64_t dim = 2 * half + lane; dim < x.head_dim; dim += kWarp) mine.put(dim, mine.get(dim));
}

// Query heads, key heads, value heads: a warp each. Each kind has code of its own: of a choice
// between parameters the compiler makes copies on the stack.
__global__ void __launch_bounds__(kHeadWarps* kWarp)
    rotate_kernel(Heads q, Heads k, Heads v, Cache k_cache, Cache v_cache, Weight q_weight,
                  Weight k_weight, Index positions, Rows cos_sin, Index slots, float eps) {
  const int64_t token = blockIdx.x, half = cos_sin.length / 2;
  int64_t head = blockIdx.y * kHeadWarps + threadIdx.x / kWarp;
  if (head < q.num_heads) {
    turn(q, q_weight, token, head, cos_sin.at(positions[token]), half, eps, k_cache, -1);
    return;
  }
  head -= q.num_heads;
  const int64_t slot = slots[token];
  const auto block_size = static_cast<uint32_t>(k_cache.block_size);
  const auto row = static_cast<uint32_t>(slot < 0 ? 0 : slot);
  if (head < k.num_heads) {
    const int64_t place = slot < 0 ? -1 : k_cache.at(row / block_size, row % block_size, head);
    turn(k, k_weight, token, head, cos_sin.at(positions[token]), half, eps, k_cache, place);
    return;
  }
  head -= k.num_heads;
  if (head >= k.num_heads || slot < 0) return;
  const int64_t place = v_cache.at(row / block_size, row % block_size, head);
  for (int64_t dim = threadIdx.x % kWarp; dim < v.head_dim; dim += kWarp) {
    write(v_cache, place + dim * v_cache.stride, v.get(token, head, dim));
  }
}

// Copies block `from` of one array into block `to` of another, element by element of `T`.
template <typename T>
PYVT_DEVICE void copy_block(const Cache& out, int64_t to, const Cache& in, int64_t from) {
  const int64_t heads = in.num_heads, dims = in.head_dim, size = in.block_size * heads * dims;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
    const int64_t dim = i % dims, head = i / dims % heads, token = i / dims / heads;
    static_cast<T*>(out.data)[out.at(to, token, head) + dim * out.stride] =
        static_cast<const T*>(in.data)[in.at(from, token, head) + dim * in.stride];
  }
}

// Which block of `out` gets which of `in`: named ones, or the block's own number.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    blocks_kernel(Cache out, Index out_ids, Cache in, Index in_ids) {
  const int64_t i = blockIdx.x;
  const int64_t to = out_ids.data == nullptr ? i : out_ids[i];
  const int64_t from = in_ids.data == nullptr ? i : in_ids[i];
  copy_block<T>(out, to, in, from);
}

void copy(const char* op, Context& context, const Cache& out, const Index& out_ids, const Cache& in,
          const Index& in_ids, int64_t count) {
  PYVT_CHECK(op,
             out.dtype == in.dtype && out.block_size == in.block_size &&
                 out.num_heads == in.num_heads && out.head_dim == in.head_dim,
             "blocks: expected one shape and dtype");
  const int64_t size = in.block_size * in.num_heads * in.head_dim;
  if (size == 0) return;
  const dim3 grid(blocks_for(count, 1)), threads(threads_for(size, kPerThread, kMaxThreads));
  const auto run = [&](auto type) {
    context.launch(op, &blocks_kernel<decltype(type)>, grid, threads, 0, out, out_ids, in, in_ids);
  };
  switch (item_bytes(in.dtype)) {
    case 8:
      return run(uint64_t{});
    case 4:
      return run(uint32_t{});
    case 2:
      return run(uint16_t{});
    default:
      return run(uint8_t{});
  }
}

Tokens tokens_of(const char* op, const char* name, const TensorView& x, const Cache& cache) {
  PYVT_CHECK(op,
             x.rank == 3 && is_float(x.dtype) && x.shape[1] == cache.num_heads &&
                 x.shape[2] == cache.head_dim,
             name, ": expected floats [T, Nk, D]");
  return {x.data, x.dtype, x.stride[0], x.stride[1], x.stride[2]};
}

}  // namespace

void reshape_and_cache(Context& context, TensorView k_cache, TensorView v_cache, TensorView k,
                       TensorView v, TensorView slot_mapping) {
  const char* op = "reshape_and_cache";
  const Cache keys = cache_of(op, "k_cache", k_cache), values = cache_of(op, "v_cache", v_cache);
  PYVT_CHECK(op, is_kv_dtype(keys.dtype) && values.dtype == keys.dtype,
             "k_cache: expected f32, bf16, f16 or fp8_e4m3");
  const Tokens new_keys = tokens_of(op, "k", k, keys), new_values = tokens_of(op, "v", v, values);
  PYVT_CHECK(op, k.shape[0] == v.shape[0], "v: expected the tokens of k");
  const Index slots = index_of(op, "slot_mapping", slot_mapping, k.shape[0]);
  const int64_t size = keys.num_heads * keys.head_dim;
  if (size == 0) return;
  context.launch(op, &write_kernel, dim3(blocks_for(k.shape[0], 1)),
                 dim3(threads_for(size, kPerThread, kMaxThreads)), 0, keys, values, new_keys,
                 new_values, slots);
}

void rotate_and_cache(Context& context, TensorView q, TensorView k, TensorView k_cache,
                      TensorView v_cache, TensorView v, TensorView q_weight, TensorView k_weight,
                      TensorView positions, TensorView cos_sin, TensorView slot_mapping,
                      double eps) {
  const char* op = "rotate_and_cache";
  const Heads queries = heads_of(op, "q", q),
              heads[] = {heads_of(op, "k", k), heads_of(op, "v", v)};
  const Cache keys = cache_of(op, "k_cache", k_cache), values = cache_of(op, "v_cache", v_cache);
  PYVT_CHECK(op, is_kv_dtype(keys.dtype) && values.dtype == keys.dtype,
             "k_cache: expected f32, bf16, f16 or fp8_e4m3");
  const int64_t num_tokens = q.shape[0], head_dim = queries.head_dim;
  for (const TensorView* x : {&k, &v}) {
    PYVT_CHECK(op,
               x->shape[0] == num_tokens && x->shape[1] == keys.num_heads &&
                   x->shape[2] == head_dim && keys.head_dim == head_dim,
               "k, v: expected [T, Nk, D]");
  }
  const Rows angles = rows_of(op, "cos_sin", cos_sin);
  PYVT_CHECK(op, angles.length % 2 == 0 && angles.length <= head_dim,
             "cos_sin: expected an even R of at most D");
  for (const TensorView* weight : {&q_weight, &k_weight}) {
    if (weight->data == nullptr) continue;
    PYVT_CHECK(op,
               weight->rank == 1 && weight->shape[0] == head_dim && weight->is_dense() &&
                   is_float(weight->dtype),
               "weight: expected ", head_dim, " floats side by side");
  }
  const Index places = index_of(op, "positions", positions, num_tokens);
  const Index slots = index_of(op, "slot_mapping", slot_mapping, num_tokens);
  const int64_t num_heads = queries.num_heads + 2 * keys.num_heads;
  if (num_heads == 0 || head_dim == 0) return;
  context.launch(op, &rotate_kernel,
                 dim3(blocks_for(num_tokens, 1), blocks_for(num_heads, kHeadWarps)),
                 dim3(kHeadWarps * kWarp), 0, queries, heads[0], heads[1], keys, values,
                 Weight{q_weight.data, q_weight.dtype}, Weight{k_weight.data, k_weight.dtype},
                 places, angles, slots, static_cast<float>(eps));
}

void copy_blocks(Context& context, TensorView k_cache, TensorView v_cache, TensorView src_dst) {
  const char* op = "copy_blocks";
  PYVT_CHECK(op, src_dst.rank == 2 && src_dst.shape[1] == 2 && src_dst.dtype == DType::kI64,
             "src_dst: expected i64 [M, 2]");
  const int64_t count = src_dst.shape[0];
  const auto* pairs = src_dst.as<int64_t>();
  const Index from{pairs, count, src_dst.stride[0], true};
  const Index to{pairs + src_dst.stride[1], count, src_dst.stride[0], true};
  for (const TensorView& view : {k_cache, v_cache}) {
    const Cache cache = cache_of(op, "cache", view);
    copy(op, context, cache, to, cache, from, count);
  }
}

void gather_blocks(Context& context, TensorView out, TensorView cache, TensorView block_ids) {
  const char* op = "gather_blocks";
  const Cache to = cache_of(op, "out", out), from = cache_of(op, "cache", cache);
  const Index ids = index_of(op, "block_ids", block_ids, to.num_blocks);
  copy(op, context, to, {}, from, ids, to.num_blocks);
}

void scatter_blocks(Context& context, TensorView cache, TensorView blocks, TensorView block_ids) {
  const char* op = "scatter_blocks";
  const Cache to = cache_of(op, "cache", cache), from = cache_of(op, "blocks", blocks);
  const Index ids = index_of(op, "block_ids", block_ids, from.num_blocks);
  copy(op, context, to, ids, from, {}, from.num_blocks);
}

}  // namespace pyvt::cuda
