// paged_attention on tensor cores, for steps with more tokens than requests in bf16 or f16.
//
// contract  that of attention.cu; weights of the softmax are rounded to the dtype of the cache
// layout    q, cache and out of one dtype, head dims 64 or 128 side by side and 16-byte aligned
// work      a block has 64 rows of one KV head (a row is a query token and a head of the group), 16
//           a warp; tiles of 64 keys and values go through shared memory. Scores, softmax and sums
//           stay in registers: the scores' fragments are those of the left operand of the second
//           product
// estimate  4·N·D operations a pair of query and key: 4096 tokens of 32 heads of 128, half of the
//           pairs, are 137 GFLOP, 174 us at 790 TFLOP/s; without asynchronous copies about half of
//           that rate is to be expected. Each tile of keys is read once for 64 rows: 34 operations
//           a byte from L2 with a group of 8
// launches  1
// source    Dao 2023, arXiv:2307.08691; PTX ISA, mma.m16n8k16 and ldmatrix
#include "cuda/attention.h"
#include "cuda/device/mma.cuh"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = 16 * kWarps, kKeys = 64;
constexpr int kBlocks = kKeys / 8;  // of 8 keys: columns of a product
constexpr int kPad = 8;             // elements, so that rows of a tile start in other banks

// What a lane keeps of its two rows, g and g + 8 of its warp's 16.
template <int kDim>
struct RowState {
  float sums[kDim / 8][4] = {};
  float best[2] = {-INFINITY, -INFINITY};
  float total[2] = {};
  int64_t low[2], high[2];  // the keys that a row sees
};

template <typename T, int kDim>
PYVT_DEVICE T* row_of(T* tile, int row) {
  return tile + row * (kDim + kPad);
}

PYVT_DEVICE void copy16(void* to, const void* from, bool is_in) {
  *static_cast<uint4*>(to) = is_in ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

template <typename T, int kDim>
PYVT_DEVICE void load_queries(T* tile, const Heads& q, const Tile& rows, int64_t kv_head,
                              int group) {
  constexpr int kPieces = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool is_in = row < rows.num_rows;
    const int64_t at =
        !is_in ? 0
               : q.at(rows.token(row, group), kv_head * group + rows.head(row, group), 8 * piece);
    copy16(row_of<T, kDim>(tile, row) + 8 * piece, static_cast<const T*>(q.data) + at, is_in);
  }
}

template <typename T, int kDim>
PYVT_DEVICE void load_keys(T* tile, const Cache& cache, const int32_t* table, int64_t head,
                           int first, int low, int stop) {
  constexpr int kPieces = kDim / 8;
  const int size = static_cast<int>(cache.block_size);
  for (int i = threadIdx.x; i < kKeys * kPieces; i += kThreads) {
    const int key = i / kPieces, piece = i % kPieces, place = first + key;
    // The block table may hold anything before the window.
    const bool is_in = place >= low && place < stop;
    const int64_t at = is_in ? cache.at(table[place / size], place % size, head) + 8 * piece : 0;
    copy16(row_of<T, kDim>(tile, key) + 8 * piece, static_cast<const T*>(cache.data) + at, is_in);
  }
}

// scores = queries of this warp · keysᵀ.
template <typename T, int kDim>
PYVT_DEVICE void multiply_keys(float (&scores)[kBlocks][4], T* queries, T* keys) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[b][i] = 0.0f;
  }
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    uint32_t a[4];
    ldmatrix_x4<false>(a, row_of<T, kDim>(queries, 16 * warp + lane % 16) + d + lane / 16 * 8);
#pragma unroll
    for (int b = 0; b < kBlocks; b += 2) {
      const int key = 8 * b + lane / 16 * 8 + lane % 8;
      uint32_t right[4];
      ldmatrix_x4<false>(right, row_of<T, kDim>(keys, key) + d + lane / 8 % 2 * 8);
      mma_16x8x16<T>(scores[b], a, right);
      mma_16x8x16<T>(scores[b + 1], a, right + 2);
    }
  }
}

// Scores become weights; the sums so far are scaled to the new maximum.
template <int kDim>
PYVT_DEVICE void softmax_step(float (&scores)[kBlocks][4], RowState<kDim>* state,
                              const Settings& settings, int first) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = state->best[half];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = first + 8 * b + 2 * t + i;
        float& score = scores[b][2 * half + i];
        const bool is_seen = key >= state->low[half] && key <= state->high[half];
        score = is_seen ? settings.score(score) : -INFINITY;
        best = fmaxf(best, score);
      }
    }
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    const float before = state->best[half];
    const float factor = before == -INFINITY ? 0.0f : expf(before - best);
    float total = 0.0f;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[b][2 * half + i];
        score = score == -INFINITY ? 0.0f : expf(score - best);
        total += score;
      }
    }
    state->best[half] = best;
    state->total[half] = state->total[half] * factor + total;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      state->sums[n][2 * half] *= factor;
      state->sums[n][2 * half + 1] *= factor;
    }
  }
}

// sums += weights · values.
template <typename T, int kDim>
PYVT_DEVICE void multiply_values(RowState<kDim>* state, const float (&weights)[kBlocks][4],
                                 T* values) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int b = 0; b < kBlocks; b += 2) {
    const uint32_t a[4] = {pack<T>(weights[b][0], weights[b][1]),
                           pack<T>(weights[b][2], weights[b][3]),
                           pack<T>(weights[b + 1][0], weights[b + 1][1]),
                           pack<T>(weights[b + 1][2], weights[b + 1][3])};
    const int key = 8 * b + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t right[4];
      ldmatrix_x4<true>(right, row_of<T, kDim>(values, key) + 8 * n + lane / 16 * 8);
      mma_16x8x16<T>(state->sums[n], a, right);
      mma_16x8x16<T>(state->sums[n + 1], a, right + 2);
    }
  }
}

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
  PYVT_DYNAMIC_SHARED(T, queries);
  T* keys = queries + kRows * (kDim + kPad);
  T* values = keys + kKeys * (kDim + kPad);
  const int64_t kv_head = blockIdx.y;
  const int group = a.settings.group, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Tile tile = find_tile(a.tables, blockIdx.x, group, kRows);
  if (tile.num_rows <= 0) return;
  load_queries<T, kDim>(queries, a.q, tile, kv_head, group);
  RowState<kDim> state;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + 8 * half + lane / 4;
    state.high[half] = row < tile.num_rows ? tile.position(row, group) : -1;
    state.low[half] = row < tile.num_rows ? a.settings.first_key(state.high[half]) : 0;
  }
  const int low = static_cast<int>(a.settings.first_key(tile.position(0, group)));
  const int stop = static_cast<int>(tile.position(tile.num_rows - 1, group)) + 1;
  const int32_t* table = a.tables.block_table(tile.request);
  for (int first = low / kKeys * kKeys; first < stop; first += kKeys) {
    __syncthreads();
    load_keys<T, kDim>(keys, a.k, table, kv_head, first, low, stop);
    load_keys<T, kDim>(values, a.v, table, kv_head, first, low, stop);
    __syncthreads();
    float scores[kBlocks][4];
    multiply_keys<T, kDim>(scores, queries, keys);
    softmax_step(scores, &state, a.settings, first);
    multiply_values<T, kDim>(&state, scores, values);
  }
  write_rows<T, kDim>(a, &state, tile, kv_head);
}

template <typename T, int kDim>
void run(Context& context, const AttentionArguments& a) {
  constexpr size_t kShared = sizeof(T) * (kRows + 2 * kKeys) * (kDim + kPad);
  const int64_t tiles = a.tables.num_tokens / (kRows / a.settings.group) + a.tables.num_reqs;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(a.k.num_heads));
  context.launch("paged_attention", &prefill_kernel<T, kDim>, grid, dim3(kThreads), kShared, a);
}

bool is_aligned(const void* data, std::initializer_list<int64_t> strides) {
  bool is_whole = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (const int64_t stride : strides) is_whole = is_whole && stride % 8 == 0;
  return is_whole;
}

}  // namespace

bool prefill_on_tensor_cores(Context& context, const AttentionArguments& a) {
  const DType dtype = a.q.dtype;
  const int64_t dims = a.q.head_dim;
  if (dtype != DType::kBF16 && dtype != DType::kF16) return false;
  if (a.k.dtype != dtype || a.out_dtype != dtype || (dims != 64 && dims != 128)) return false;
  if (a.settings.group > kRows || a.tables.num_tokens <= a.tables.num_reqs) return false;
  if (a.q.stride != 1 || a.k.stride != 1 || a.v.stride != 1) return false;
  if (!is_aligned(a.q.data, {a.q.token_stride, a.q.head_stride}) ||
      !is_aligned(a.k.data, {a.k.block_stride, a.k.token_stride, a.k.head_stride}) ||
      !is_aligned(a.v.data, {a.v.block_stride, a.v.token_stride, a.v.head_stride}) ||
      !is_aligned(a.out, {a.out_token_stride, a.out_head_stride})) {
    return false;
  }
  const bool is_bf16 = dtype == DType::kBF16;
  if (dims == 64) {
    is_bf16 ? run<bf16, 64>(context, a) : run<f16, 64>(context, a);
  } else {
    is_bf16 ? run<bf16, 128>(context, a) : run<f16, 128>(context, a);
  }
  return true;
}

}  // namespace pyvt::cuda
