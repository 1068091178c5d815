// The paged KV cache: reshape_and_cache writes new tokens; copy_blocks, gather_blocks and
// scatter_blocks move whole blocks.
//
// contract  the references of pyvt/ops/kv_cache.py; a slot of −1 writes nothing; fp8 saturates
// layout    [B, S, Nk, D] of any stride, so that a head's tokens of a block may lie side by side
// work      a block per token, or per block of the cache
// estimate  bf16: 8·Nk·D bytes a token, 4096 tokens of 8 heads of 128 move 34 MB, 8 us at 4.3 TB/s;
//           latency in a decode step, 2 us
// launches  1 each
#include "cuda/device/cache.cuh"
#include "cuda/device/index.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPerThread = 8;
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
