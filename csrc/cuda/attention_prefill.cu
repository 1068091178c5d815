// paged_attention on tensor cores, for steps of long requests in bf16 or f16.
//
// contract  that of attention.cu; weights of the softmax are rounded to the dtype of the queries
// layout    q and out of one dtype, the cache of the same or fp8, head dims 64, 128 or 256 side by
//           side and 16-byte aligned
// work      a block has 64 rows of one KV head (a row is a query token and a head of the group), 16
//           a warp; tiles of 64 keys and values, of 32 with 256 dims, go through shared memory. fp8
//           is widened on the way. Scores, softmax and sums stay in registers: the scores'
//           fragments are those of the left operand of the second product
// estimate  4·N·D operations a pair of query and key: 4096 tokens of 32 heads of 128, half of the
//           pairs, are 137 GFLOP, 174 us at 790 TFLOP/s; Qwen3.6's 16 heads of 256 the same.
//           Without asynchronous copies about half of that rate is to be expected. Each tile of
//           keys is read once for 64 rows: 34 operations a byte from L2 with a group of 8, twice
//           that from fp8. In bf16 q, k, v and the output are 101 MB, 23 us, beside them
// launches  1
// source    Dao 2023, arXiv:2307.08691; PTX ISA, mma.m16n8k16 and ldmatrix
#include "cuda/device/attention_tiles.cuh"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = 16 * kWarps;
// Keys of a tile: more would not fit in the memory of every device.
template <int kDim>
constexpr int kKeysOf = kDim > 128 ? 32 : 64;

template <typename T, int kDim>
PYVT_DEVICE void write_rows(const AttentionArguments& a, RowState<kDim>* state, const Tile& tile,
                            int64_t kv_head) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = a.settings.group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = state->total[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const int row = 16 * warp + 8 * half + lane / 4;
    if (row >= tile.num_rows) continue;
    const int64_t token = tile.token(row, group), head = kv_head * group + tile.head(row, group);
    T* out = static_cast<T*>(a.out) + token * a.out_token_stride + head * a.out_head_stride;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int dim = 8 * n + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(out + dim) =
          pack<T>(state->sums[n][2 * half] / total, state->sums[n][2 * half + 1] / total);
    }
    if (lane % 4 == 0 && a.lse != nullptr) {
      a.lse[token * a.lse_token_stride + head * a.lse_head_stride] =
          state->best[half] + logf(total);
    }
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(AttentionArguments a) {
  constexpr int kKeys = kKeysOf<kDim>;
  PYVT_DYNAMIC_SHARED(T, queries);
  T* keys = queries + kRows * (kDim + kTilePad);
  T* values = keys + kKeys * (kDim + kTilePad);
  const int64_t kv_head = blockIdx.y;
  const int group = a.settings.group, warp = threadIdx.x / kWarp, thread = threadIdx.x;
  const Tile tile = find_tile(a.tables, blockIdx.x, group, kRows);
  if (tile.num_rows <= 0) return;
  load_queries<T, kDim, kRows>(queries, a.q, tile, kv_head, group);
  RowState<kDim> state;
  state.see(tile, a.settings, 16 * warp);
  const int low = static_cast<int>(a.settings.first_key(tile.position(0, group)));
  const int stop = static_cast<int>(tile.position(tile.num_rows - 1, group)) + 1;
  const int32_t* table = a.tables.block_table(tile.request);
  for (int first = low / kKeys * kKeys; first < stop; first += kKeys) {
    __syncthreads();
    load_keys<T, kDim, kKeys>(keys, a.k, table, kv_head, first, low, stop, thread, kThreads);
    load_keys<T, kDim, kKeys>(values, a.v, table, kv_head, first, low, stop, thread, kThreads);
    __syncthreads();
    float scores[kKeys / 8][4];
    multiply_keys<T, kDim>(scores, row_of<T, kDim>(queries, 16 * warp), keys);
    softmax_step(scores, &state, a.settings, first);
    multiply_values<T, kDim>(&state, scores, values);
  }
  write_rows<T, kDim>(a, &state, tile, kv_head);
}

template <typename T, int kDim>
void run(Context& context, const AttentionArguments& a) {
  constexpr size_t kShared = sizeof(T) * (kRows + 2 * kKeysOf<kDim>)*(kDim + kTilePad);
  const int64_t tiles = a.tables.num_tokens / (kRows / a.settings.group) + a.tables.num_reqs;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(a.k.num_heads));
  context.launch("paged_attention", &prefill_kernel<T, kDim>, grid, dim3(kThreads), kShared, a);
}

}  // namespace

void attend_by_wide_tiles(Context& context, const AttentionArguments& a) {
  with_tensor_type(
      a, [&](auto type, auto dim) { run<decltype(type), decltype(dim)::value>(context, a); });
}

}  // namespace pyvt::cuda
