// paged_attention on tensor cores, for steps of short requests.
//
// contract  that of attention_prefill.cu
// layout    that of attention_prefill.cu
// work      a block has 16 rows of one KV head and a part of the keys. Its four warps take 16 keys
//           in turn, each with tiles, softmax and sums of its own, so that none waits for another
//           until the end; then the block adds the four up. Parts are merged by attention.cu
// estimate  4·Nk·D bytes a cached token and layer in bf16, half of that in fp8: 64 requests of 4096
//           tokens with 8 KV heads of 128 read 1.07 GB, 250 us a layer at 4.3 TB/s; Qwen3.6 with 2
//           of 256 0.54 GB, 125 us. 4·N·D operations a token: a group of 8 has 8 a byte, of 16 rows
//           half are idle, 70 TFLOP/s of 790. A group of 2, as in Qwen3-0.6B, takes the same time:
//           16 keys of 128 dims are 8 kB and some 850 instructions of warps whatever the group, so
//           that instructions allow twice of 4.3 TB/s. 128 threads have 16 to 64 KB of loads on
//           their way, and 4.3 TB/s want 20 KB a multiprocessor
// launches  1
// source    Dao et al. 2023, Flash-Decoding; PTX ISA, mma.m16n8k16 and ldmatrix
#include "cuda/device/attention_tiles.cuh"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = kDecodeRows, kKeys = 16, kStep = kWarps * kKeys;

template <typename T, int kDim>
struct Shared {
  static constexpr int kTile = kRows * (kDim + kTilePad);
  T queries[kTile];
  union {
    T tiles[kWarps][2][kTile];  // keys and values of a warp
    float sums[kWarps][kRows][kDim];
  };
  float best[kWarps][kRows], total[kWarps][kRows];
};

// The warp's part of the keys of a span.
template <typename T, int kDim>
PYVT_DEVICE void attend(const AttentionArguments& a, const Tile& tile, int64_t kv_head, int low,
                        int stop, const Span& span, RowState<kDim>* state, Shared<T, kDim>* s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int32_t* table = a.tables.block_table(tile.request);
  T* keys = s->tiles[warp][0];
  T* values = s->tiles[warp][1];
  for (int64_t t = span.first; t < span.stop; ++t) {
    const int first = static_cast<int>(t) * kStep + warp * kKeys;
    if (first >= stop || first + kKeys <= low) continue;
    __syncwarp(kAllLanes);
    load_keys<T, kDim, kKeys>(keys, a.k, table, kv_head, first, low, stop, lane, kWarp);
    load_keys<T, kDim, kKeys>(values, a.v, table, kv_head, first, low, stop, lane, kWarp);
    __syncwarp(kAllLanes);
    float scores[kKeys / 8][4];
    multiply_keys<T, kDim>(scores, s->queries, keys);
    softmax_step(scores, state, a.settings, first);
    multiply_values<T, kDim>(state, scores, values);
  }
}

// Sums, maxima and totals of a warp to shared memory, over its tiles.
template <typename T, int kDim>
PYVT_DEVICE void share(RowState<kDim>* state, Shared<T, kDim>* s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 8 * half + lane / 4;
    float total = state->total[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    if (lane % 4 == 0) {
      s->best[warp][row] = state->best[half];
      s->total[warp][row] = total;
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(&s->sums[warp][row][8 * n + lane % 4 * 2]) = {
          state->sums[n][2 * half], state->sums[n][2 * half + 1]};
    }
  }
}

// Adds the parts of the warps up and writes rows of out, or of a part.
template <typename T, int kDim>
PYVT_DEVICE void write_rows(const AttentionArguments& a, const Tile& tile, int64_t kv_head,
                            const Shared<T, kDim>& s) {
  const int group = a.settings.group;
  for (int i = threadIdx.x; i < tile.num_rows * kDim; i += kThreads) {
    const int row = i / kDim, dim = i % kDim;
    float best = -INFINITY, total = 0.0f, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) best = fmaxf(best, s.best[w][row]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float own = s.best[w][row];
      const float factor = own == -INFINITY ? 0.0f : expf(own - best);
      total += factor * s.total[w][row];
      sum += factor * s.sums[w][row][dim];
    }
    const int64_t token = tile.token(row, group), head = kv_head * group + tile.head(row, group);
    if (a.num_splits > 1) {
      const int64_t at = (token * a.q.num_heads + head) * a.num_splits + blockIdx.z;
      a.part_sums[at * kDim + dim] = sum;
      if (dim == 0) {
        a.part_stats[2 * at] = best;
        a.part_stats[2 * at + 1] = total;
      }
      continue;
    }
    static_cast<T*>(a.out)[token * a.out_token_stride + head * a.out_head_stride + dim] =
        store<T>(sum / total);
    if (dim == 0 && a.lse != nullptr) {
      a.lse[token * a.lse_token_stride + head * a.lse_head_stride] = best + logf(total);
    }
  }
}

// grid: tiles of rows, KV heads, parts of the keys.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) decode_kernel(AttentionArguments a) {
  using Memory = Shared<T, kDim>;
  PYVT_DYNAMIC_SHARED(Memory, s);
  const int64_t kv_head = blockIdx.y;
  const int group = a.settings.group;
  const Tile tile = find_tile(a.tables, blockIdx.x, group, kRows);
  if (tile.num_rows <= 0) return;
  load_queries<T, kDim, kRows>(s->queries, a.q, tile, kv_head, group);
  RowState<kDim> state;
  state.see(tile, a.settings, 0);
  const int low = static_cast<int>(a.settings.first_key(tile.position(0, group)));
  const int stop = static_cast<int>(tile.position(tile.num_rows - 1, group)) + 1;
  const Span span = part_of(low / kStep, (stop + kStep - 1) / kStep, blockIdx.z, a.num_splits);
  __syncthreads();
  attend<T, kDim>(a, tile, kv_head, low, stop, span, &state, s);
  __syncthreads();
  share<T, kDim>(&state, s);
  __syncthreads();
  write_rows<T, kDim>(a, tile, kv_head, *s);
}

template <typename T, int kDim>
void run(Context& context, const AttentionArguments& a, int64_t num_tiles) {
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(a.k.num_heads),
                  static_cast<unsigned>(a.num_splits));
  context.launch("paged_attention", &decode_kernel<T, kDim>, grid, dim3(kThreads),
                 sizeof(Shared<T, kDim>), a);
}

}  // namespace

void attend_by_split_keys(Context& context, const AttentionArguments& a, int64_t num_tiles) {
  with_tensor_type(a, [&](auto type, auto dim) {
    run<decltype(type), decltype(dim)::value>(context, a, num_tiles);
  });
}

}  // namespace pyvt::cuda
