// The gated delta rule by chunks of 64 tokens on tensor cores, for long requests.
//
// contract  that of gated_delta.cu; products of f32 by way of tf32, where q, k are f32 split in
// two;
//           sums and states in f32. A log decay below −80 counts as −80
// layout    that of gated_delta.cu; q and k of one dtype
// work      first, for each chunk and head, what does not depend on a state: with G the running sum
//           of log decays, L = tril(β_i · exp(G_i − G_j) · k_i·k_j, −1), the inverse of I + L times
//           diag(β), and A = tril(exp(G_i − G_j) · q_i·k_j). Diagonal blocks of 16 are inverted by
//           substitution, a thread a column; a warp goes down a column of blocks. Then a block
//           walks over the chunks of a request with 32 columns of a head's state S in fragments:
//             D = V − diag(exp G)·K·S,  U = inverse · D,  O = diag(exp G)·Q·S + A·U,
//             S = exp(G_last)·S + Kᵀ·diag(exp(G_last − G))·U
//           A token inside of a chunk whose state is kept costs one more product of the last kind
// estimate  a chunk of a head of 128 × 128: first 1.1 MFLOP and 35 kB written, then 8.4 MFLOP and
//           260 kB, mostly from L2. 8,192 tokens of 32 heads: 39 GFLOP, 0.1 ms at 395 TFLOP/s of
//           tf32, and 140 MB twice, 65 us at 4.3 TB/s. 128 chunks of 128 blocks go one after the
//           other: about 2.5 us each by the loads of a block, 0.32 ms, where the scan takes 1 ms
// launches  2
// source    Yang et al. 2024, arXiv:2412.06464, section 3.3; pyvt/testing/delta_chunks.py
#include <algorithm>
#include <type_traits>

#include "cuda/device/mma_tf32.cuh"
#include "cuda/gated_delta.h"

namespace pyvt::cuda {
namespace {

constexpr int kChunk = 64, kTile = 16, kTiles = kChunk / kTile;
constexpr int kPrepareThreads = kTiles * kWarp;
constexpr int kWalkWarps = 8, kWalkThreads = kWalkWarps * kWarp;
constexpr int kColumns = 32;  // of a state, that a block walks with
constexpr float kLeastDecay = -80.0f;
// Whether operands are split: tf32 alone is enough for bf16.
template <typename T>
constexpr bool kSplits = !std::is_same_v<T, bf16>;
// Rows of left operands are 8 banks apart from a multiple of 32 (4 in halves), of right ones 4.
constexpr int kLeftPad = 8, kLeft = kChunk + kLeftPad, kRight = kColumns + 4, kSmallRight = 20;

// What a chunk of a head leaves for the walk.
struct Prepared {
  float inverse[kChunk][kChunk];  // tiles above the diagonal hold anything
  float scores[kChunk][kChunk];
  double sums[kChunk];     // G
  float of_key[kChunk];    // what makes a key a unit
  float of_query[kChunk];  // and scales a query
};

struct ChunkCall {
  DeltaCall c;
  Prepared* prepared;  // [chunks][Hv]
  bool is_wide;        // rows of q and k may be read 16 bytes at a time
};

struct Chunk {
  int first, count;
};

PYVT_DEVICE int chunks_of(const Slots& slots, int request) {
  const int count = slots.cu_seqlens_q[request + 1] - slots.cu_seqlens_q[request];
  return count < kLeastOfChunks ? 0 : (count + kChunk - 1) / kChunk;
}

// The chunk with that number, request by request.
PYVT_DEVICE Chunk find_chunk(const Slots& slots, int index) {
  for (int r = 0; r < slots.num_requests; ++r) {
    const int count = chunks_of(slots, r);
    if (index < count) {
      const int first = slots.cu_seqlens_q[r] + index * kChunk;
      const int rest = slots.cu_seqlens_q[r + 1] - first;
      return {first, rest < kChunk ? rest : kChunk};
    }
    index -= count;
  }
  return {0, 0};
}

// Sums are f64, since what counts is the difference of large ones.
PYVT_DEVICE float exp_of(double x) { return expf(static_cast<float>(x)); }

// Two neighbours.
template <typename T>
PYVT_DEVICE void load_pair(const T* from, float& first, float& second) {
  if constexpr (sizeof(T) == 2) {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(from);
    first = load(T{static_cast<uint16_t>(both & 0xffff)});
    second = load(T{static_cast<uint16_t>(both >> 16)});
  } else {
    const float2 both = *reinterpret_cast<const float2*>(from);
    first = both.x;
    second = both.y;
  }
}

// The lane's part of 16 rows by 8 columns; `from` is the first, `stride` of a row.
template <typename T>
PYVT_DEVICE void load_left(const T* from, int stride, float (&a)[4]) {
  const int lane = threadIdx.x % kWarp;
  const T* own = from + lane / 4 * stride + lane % 4 * 2;
  load_pair(own, a[0], a[2]);
  load_pair(own + 8 * stride, a[1], a[3]);
}

// Of 8 rows by 8 columns.
PYVT_DEVICE void load_right(const float* from, int stride, float (&b)[2]) {
  const int lane = threadIdx.x % kWarp;
  const float* own = from + lane % 4 * 2 * stride + lane / 4;
  b[0] = own[0];
  b[1] = own[stride];
}

// Where entry i of a lane's four lies in 16 rows by 8 columns.
PYVT_DEVICE int row_of(int i) { return static_cast<int>(threadIdx.x) % kWarp / 4 + i / 2 * 8; }
PYVT_DEVICE int column_of(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

// Rows of a head as they are; dims and tokens that are not there are zero.
template <typename T, int kKeys>
PYVT_DEVICE void stage_rows(const Heads& heads, const Chunk& chunk, int head, bool is_wide, T* to) {
  constexpr int kStride = kKeys + kLeftPad, kPiece = 16 / sizeof(T), kPieces = kKeys / kPiece;
  const T* data = static_cast<const T*>(heads.data);
  const int size = static_cast<int>(heads.head_dim);
  if (is_wide) {
    for (int i = threadIdx.x; i < kChunk * kPieces; i += blockDim.x) {
      const int t = i / kPieces, dim = i % kPieces * kPiece;
      uint4 piece = {0, 0, 0, 0};
      if (t < chunk.count) {
        piece = *reinterpret_cast<const uint4*>(data + heads.at(chunk.first + t, head, dim));
      }
      *reinterpret_cast<uint4*>(to + t * kStride + dim) = piece;
    }
    return;
  }
  for (int i = threadIdx.x; i < kChunk * kKeys; i += blockDim.x) {
    const int t = i / kKeys, dim = i % kKeys;
    const bool is_in = t < chunk.count && dim < size;
    to[t * kStride + dim] = is_in ? data[heads.at(chunk.first + t, head, dim)] : T{};
  }
}

// What a row is multiplied by: a pair of threads a row would be idle half of the time.
template <typename T, int kKeys>
PYVT_DEVICE float norm_of(const T* row, bool is_normed, float scale) {
  if (!is_normed) return scale;
  float square = 0.0f;
  for (int i = 0; i < kKeys; i += 2) {
    float first, second;
    load_pair(row + i, first, second);
    square += first * first + second * second;
  }
  return scale / sqrtf(square + kL2Eps);
}

template <typename T, int kKeys>
struct PrepareShared {
  T k[kChunk * (kKeys + kLeftPad)], q[kChunk * (kKeys + kLeftPad)];
  float lower[kChunk][kLeft];  // L
  float inverse[kChunk][kLeft];
  float small[kTiles][kTile][kSmallRight];
  double sums[kChunk];
  float decay[kChunk], beta[kChunk], of_key[kChunk], of_query[kChunk];
};

// Decays, norms and running sums of a chunk; ends with a barrier.
template <typename T, int kKeys>
PYVT_DEVICE void stage_chunk(const ChunkCall& call, const Chunk& chunk, int head,
                             PrepareShared<T, kKeys>* to, Prepared* out) {
  const DeltaCall& c = call.c;
  const int key_head = c.key_head(head);
  stage_rows<T, kKeys>(c.k, chunk, key_head, call.is_wide, to->k);
  stage_rows<T, kKeys>(c.q, chunk, key_head, call.is_wide, to->q);
  for (int t = threadIdx.x; t < kChunk; t += blockDim.x) {
    float decay = 0.0f, beta = 0.0f;
    if (t < chunk.count) {
      const float a = c.a.get(chunk.first + t, head), b = c.b.get(chunk.first + t, head);
      decay = c.is_net ? log_decay(a, c.decay_rate.get(head), c.dt_bias.get(head)) : a;
      beta = c.is_net ? step_size(b) : b;
    }
    to->decay[t] = decay < kLeastDecay ? kLeastDecay : decay;
    to->beta[t] = beta;
  }
  __syncthreads();
  const int t = threadIdx.x % kChunk;
  if (threadIdx.x < kChunk) {
    double sum = 0.0;
    for (int i = 0; i <= t; ++i) sum += to->decay[i];
    to->sums[t] = out->sums[t] = sum;
    to->of_key[t] = out->of_key[t] =
        norm_of<T, kKeys>(to->k + t * (kKeys + kLeftPad), c.is_net, 1.0f);
  } else {
    to->of_query[t] = out->of_query[t] =
        norm_of<T, kKeys>(to->q + t * (kKeys + kLeftPad), c.is_net, c.scale);
  }
  __syncthreads();
}

// L to shared memory, A to `out`; a warp has 16 rows.
template <typename T, int kKeys>
PYVT_DEVICE void multiply_keys(PrepareShared<T, kKeys>* s, Prepared* out) {
  constexpr int kStride = kKeys + kLeftPad, kBlocks = kChunk / 8;
  constexpr bool kIsSplit = kSplits<T>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float of_keys[kBlocks][4] = {}, of_queries[kBlocks][4] = {};
  for (int d = 0; d < kKeys; d += 8) {
    float k[4], q[4];
    load_left(s->k + warp * kTile * kStride + d, kStride, k);
    load_left(s->q + warp * kTile * kStride + d, kStride, q);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if (n > 2 * warp + 1) continue;
      float b[2];
      load_pair(s->k + (8 * n + lane / 4) * kStride + d + lane % 4 * 2, b[0], b[1]);
      mma_f32<kIsSplit>(of_keys[n], k, b);
      mma_f32<kIsSplit>(of_queries[n], q, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    if (n > 2 * warp + 1) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * kTile + row_of(i), column = 8 * n + column_of(i);
      const float decay = row < column ? 0.0f : exp_of(s->sums[row] - s->sums[column]);
      const float common = decay * s->of_key[column];
      s->lower[row][column] =
          row == column ? 0.0f : common * s->beta[row] * s->of_key[row] * of_keys[n][i];
      out->scores[row][column] = common * s->of_query[row] * of_queries[n][i];
    }
  }
  __syncthreads();
}

// 16 × 16 of f32: to += left · right.
template <bool kIsSplit>
PYVT_DEVICE void multiply_tile(float (&to)[2][4], const float* left, int left_stride,
                               const float* right, int right_stride) {
#pragma unroll
  for (int k = 0; k < kTile; k += 8) {
    float a[4], b[2];
    load_left(left + k, left_stride, a);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_right(right + k * right_stride + 8 * n, right_stride, b);
      mma_f32<kIsSplit>(to[n], a, b);
    }
  }
}

PYVT_DEVICE void store_tile(float* to, int stride, const float (&from)[2][4], float factor) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[row_of(i) * stride + 8 * n + column_of(i)] = factor * from[n][i];
  }
}

// The inverse of I + L on and below the diagonal of tiles; ends with a barrier.
template <typename T, int kKeys>
PYVT_DEVICE void invert(PrepareShared<T, kKeys>* s) {
  constexpr bool kIsSplit = kSplits<T>;
  if (threadIdx.x < kChunk) {
    const int first = static_cast<int>(threadIdx.x) / kTile * kTile;
    const int column = static_cast<int>(threadIdx.x) % kTile;
    float x[kTile];
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      x[r] = r == column ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < r; ++j) x[r] -= s->lower[first + r][first + j] * x[j];
      s->inverse[first + r][first + column] = x[r];
    }
  }
  __syncthreads();
  const int j = threadIdx.x / kWarp;
  for (int i = j + 1; i < kTiles; ++i) {
    float sum[2][4] = {}, done[2][4] = {};
    for (int k = j; k < i; ++k) {
      multiply_tile<kIsSplit>(sum, &s->lower[i * kTile][k * kTile], kLeft,
                              &s->inverse[k * kTile][j * kTile], kLeft);
    }
    store_tile(&s->small[j][0][0], kSmallRight, sum, 1.0f);
    __syncwarp(kAllLanes);
    multiply_tile<kIsSplit>(done, &s->inverse[i * kTile][i * kTile], kLeft, &s->small[j][0][0],
                            kSmallRight);
    store_tile(&s->inverse[i * kTile][j * kTile], kLeft, done, -1.0f);
    __syncwarp(kAllLanes);
  }
  __syncthreads();
}

// grid: chunks, value heads.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(ChunkCall call) {
  using Shared = PrepareShared<T, kKeys>;
  PYVT_DYNAMIC_SHARED(Shared, s);
  const Chunk chunk = find_chunk(call.c.slots, blockIdx.x);
  if (chunk.count == 0) return;
  const int head = blockIdx.y;
  Prepared* out = call.prepared + int64_t{blockIdx.x} * gridDim.y + head;
  stage_chunk<T, kKeys>(call, chunk, head, s, out);
  multiply_keys<T, kKeys>(s, out);
  invert<T, kKeys>(s);
  for (int i = threadIdx.x; i < kChunk * kChunk; i += blockDim.x) {
    const int row = i / kChunk, column = i % kChunk;
    if (row / kTile < column / kTile) continue;
    out->inverse[row][column] = s->inverse[row][column] * s->beta[column];
  }
}

template <typename T, int kKeys>
struct WalkShared {
  T k[kChunk * (kKeys + kLeftPad)], q[kChunk * (kKeys + kLeftPad)];
  float state[kKeys][kRight];
  float wanted[kChunk][kRight];       // D
  float corrections[kChunk][kRight];  // U
  double sums[kChunk];
  float of_key[kChunk], of_query[kChunk], to_end[kChunk];
  uint32_t kept[2];  // tokens whose states are kept, but the last
};

// A block's columns of a head of a request.
struct Walk {
  int request, head, column;  // the first
};

// Fragments of a state that a warp has: 16 rows by 8 columns each, by number.
template <int kKeys>
struct Owned {
  static constexpr int kCount = kKeys / kTile * (kColumns / 8) / kWalkWarps;
  static_assert(kCount * kWalkWarps * 8 * kTile == kKeys * kColumns, "expected whole fragments");

  PYVT_DEVICE static int number(int i) {
    return static_cast<int>(threadIdx.x) / kWarp * kCount + i;
  }
  PYVT_DEVICE static int row(int i) { return number(i) / (kColumns / 8) * kTile; }
  PYVT_DEVICE static int column(int i) { return number(i) % (kColumns / 8) * 8; }
};

// Calls `run(i, e, place)` for each entry of the fragments that lies in a state.
template <int kKeys, typename Run>
PYVT_DEVICE void for_entries(const DeltaCall& c, const Walk& at, int slot, Run run) {
  const int num_rows = static_cast<int>(c.k.head_dim), size = static_cast<int>(c.v.head_dim);
#pragma unroll
  for (int i = 0; i < Owned<kKeys>::kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = Owned<kKeys>::row(i) + row_of(e);
      const int column = at.column + Owned<kKeys>::column(i) + column_of(e);
      if (row < num_rows && column < size) run(i, e, c.states.at(slot, at.head, row, column));
    }
  }
}

template <typename T, int kKeys>
using Fragments = float[Owned<kKeys>::kCount][4];

// Keys, queries, factors and the state of a chunk to shared memory.
template <typename T, int kKeys>
PYVT_DEVICE void stage_walk(const ChunkCall& call, const Walk& at, const Chunk& chunk,
                            const Prepared& prepared, const Fragments<T, kKeys>& state,
                            WalkShared<T, kKeys>* s) {
  const int key_head = call.c.key_head(at.head);
  stage_rows<T, kKeys>(call.c.k, chunk, key_head, call.is_wide, s->k);
  stage_rows<T, kKeys>(call.c.q, chunk, key_head, call.is_wide, s->q);
  const int t = threadIdx.x;
  if (t < kChunk) {
    s->sums[t] = prepared.sums[t];
    s->of_key[t] = prepared.of_key[t];
    s->of_query[t] = prepared.of_query[t];
    const bool is_kept = t + 1 < chunk.count && call.c.slots.state_slots[chunk.first + t] >= 0;
    const uint32_t kept = __ballot_sync(kAllLanes, is_kept);
    if (t % kWarp == 0) s->kept[t / kWarp] = kept;
  }
#pragma unroll
  for (int i = 0; i < Owned<kKeys>::kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s->state[Owned<kKeys>::row(i) + row_of(e)][Owned<kKeys>::column(i) + column_of(e)] =
          state[i][e];
    }
  }
}

// The state behind token `last` of the chunk, from that before it; all threads call it.
template <typename T, int kKeys>
PYVT_DEVICE void advance(int last, const Fragments<T, kKeys>& before, Fragments<T, kKeys>& after,
                         WalkShared<T, kKeys>* s) {
  constexpr int kStride = kKeys + kLeftPad;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4 * 2;
  __syncthreads();
  if (threadIdx.x < kChunk) {
    const int own = threadIdx.x;
    s->to_end[own] = own > last ? 0.0f : exp_of(s->sums[last] - s->sums[own]) * s->of_key[own];
  }
  __syncthreads();
  const float decay = exp_of(s->sums[last]);
#pragma unroll
  for (int i = 0; i < Owned<kKeys>::kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) after[i][e] = before[i][e] * decay;
  }
#pragma unroll 2
  for (int token = 0; token < kChunk; token += 8) {
    const T* keys = s->k + (token + t) * kStride + g;
    const float first = s->to_end[token + t], second = s->to_end[token + t + 1];
#pragma unroll
    for (int i = 0; i < Owned<kKeys>::kCount; ++i) {
      const T* own = keys + Owned<kKeys>::row(i);
      const float a[4] = {load(own[0]), load(own[8]), load(own[kStride]), load(own[kStride + 8])};
      float b[2];
      load_right(&s->corrections[token][Owned<kKeys>::column(i)], kRight, b);
      b[0] *= first;
      b[1] *= second;
      mma_f32<kSplits<T>>(after[i], a, b);
    }
  }
}

// K · S and Q · S: 16 tokens by 16 columns of a warp.
template <typename T, int kKeys>
PYVT_DEVICE void multiply_state(const WalkShared<T, kKeys>& s, int first, int column,
                                float (&of_keys)[2][4], float (&of_queries)[2][4]) {
  constexpr int kStride = kKeys + kLeftPad;
#pragma unroll 2
  for (int d = 0; d < kKeys; d += 8) {
    float k[4], q[4], b[2];
    load_left(s.k + first * kStride + d, kStride, k);
    load_left(s.q + first * kStride + d, kStride, q);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_right(&s.state[d][column + 8 * n], kRight, b);
      mma_f32<kSplits<T>>(of_keys[n], k, b);
      mma_f32<kSplits<T>>(of_queries[n], q, b);
    }
  }
}

// to += rows of a lower triangle · right.
template <bool kIsSplit>
PYVT_DEVICE void multiply_lower(const float (&left)[kChunk][kChunk],
                                const float (&right)[kChunk][kRight], int first, int column,
                                float (&to)[2][4]) {
  for (int k = 0; k < first + kTile; k += kTile) {
    multiply_tile<kIsSplit>(to, &left[first][k], kChunk, &right[k][column], kRight);
  }
}

// Outputs of a chunk, and its corrections in shared memory.
template <typename T, int kKeys>
PYVT_DEVICE void walk_chunk(const DeltaCall& c, const Walk& at, const Chunk& chunk,
                            const Prepared& prepared, WalkShared<T, kKeys>* s) {
  constexpr bool kIsSplit = kSplits<T>;
  const int warp = threadIdx.x / kWarp, first = warp / 2 * kTile, column = warp % 2 * kTile;
  const int size = static_cast<int>(c.v.head_dim);
  float sums[2][4] = {}, out[2][4] = {};
  multiply_state<T, kKeys>(*s, first, column, sums, out);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int t = first + row_of(e), own = column + 8 * n + column_of(e);
      const bool is_in = t < chunk.count && at.column + own < size;
      const float v = is_in ? c.v.get(chunk.first + t, at.head, at.column + own) : 0.0f;
      const float decay = exp_of(s->sums[t]);
      s->wanted[t][own] = v - decay * s->of_key[t] * sums[n][e];
      out[n][e] *= decay * s->of_query[t];
      sums[n][e] = 0.0f;
    }
  }
  __syncthreads();
  multiply_lower<kIsSplit>(prepared.inverse, s->wanted, first, column, sums);
  store_tile(&s->corrections[first][column], kRight, sums, 1.0f);
  __syncthreads();
  multiply_lower<kIsSplit>(prepared.scores, s->corrections, first, column, out);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int t = first + row_of(e), own = at.column + column + 8 * n + column_of(e);
      if (t < chunk.count && own < size) c.out.set(chunk.first + t, at.head, own, out[n][e]);
    }
  }
}

// Writes the states of tokens inside of the chunk that are kept.
template <typename T, int kKeys>
PYVT_DEVICE void keep_states(const DeltaCall& c, const Walk& at, const Chunk& chunk,
                             const Fragments<T, kKeys>& state, WalkShared<T, kKeys>* s) {
  for (int half = 0; half < 2; ++half) {
    for (uint32_t kept = s->kept[half]; kept != 0; kept &= kept - 1) {
      const int t = half * kWarp + __ffs(static_cast<int>(kept)) - 1;
      Fragments<T, kKeys> behind;
      advance<T, kKeys>(t, state, behind, s);
      for_entries<kKeys>(c, at, c.slots.state_slots[chunk.first + t],
                         [&](int i, int e, float* place) { *place = behind[i][e]; });
    }
  }
}

// grid: columns of a state, value heads, requests.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kWalkThreads, 1) walk_kernel(ChunkCall call) {
  using Shared = WalkShared<T, kKeys>;
  PYVT_DYNAMIC_SHARED(Shared, s);
  const DeltaCall& c = call.c;
  const Walk at = {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                   static_cast<int>(blockIdx.x) * kColumns};
  const int num_chunks = chunks_of(c.slots, at.request);
  if (num_chunks == 0) return;
  int number = 0;
  for (int r = 0; r < at.request; ++r) number += chunks_of(c.slots, r);
  const Prepared* prepared = call.prepared + int64_t{number} * gridDim.y + at.head;
  Fragments<T, kKeys> state = {};
  const int from = c.slots.initial_slots[at.request];
  if (from >= 0) {
    for_entries<kKeys>(c, at, from, [&](int i, int e, float* place) { state[i][e] = *place; });
  }
  const int begin = c.slots.cu_seqlens_q[at.request];
  const int end = c.slots.cu_seqlens_q[at.request + 1];
  for (int first = begin; first < end; first += kChunk, prepared += gridDim.y) {
    const Chunk chunk = {first, end - first < kChunk ? end - first : kChunk};
    __syncthreads();
    stage_walk<T, kKeys>(call, at, chunk, *prepared, state, s);
    __syncthreads();
    walk_chunk<T, kKeys>(c, at, chunk, *prepared, s);
    keep_states<T, kKeys>(c, at, chunk, state, s);
    advance<T, kKeys>(chunk.count - 1, state, state, s);
    const int slot = c.slots.state_slots[first + chunk.count - 1];
    if (slot >= 0) {
      for_entries<kKeys>(c, at, slot, [&](int i, int e, float* place) { *place = state[i][e]; });
    }
  }
}

// Shared memory of a block, at most.
size_t most_shared(const Context& context) {
  constexpr size_t kKiB = 1024;
  const int arch = context.arch();
  if (arch == 0 || (arch >= 90 && arch < 120)) return 227 * kKiB;
  return arch == 80 || arch == 87 ? 163 * kKiB : 99 * kKiB;
}

bool is_wide(const Heads& heads, int keys) {
  const int64_t piece = 16 / item_bytes(heads.dtype);
  return heads.head_dim == keys && heads.stride == 1 && heads.token_stride % piece == 0 &&
         heads.head_stride % piece == 0 && reinterpret_cast<uintptr_t>(heads.data) % 16 == 0;
}

template <typename T, int kKeys>
void run(Context& context, const char* op, const DeltaCall& c) {
  // A request has a chunk more than its tokens fill, and 32 tokens for each.
  const int64_t tokens = c.slots.num_tokens, filled = tokens / kChunk + c.slots.num_requests;
  const int64_t most = std::min(filled, tokens / kLeastOfChunks);
  const auto num_heads = static_cast<unsigned>(c.v.num_heads);
  const auto made = context.take(static_cast<size_t>(most) * num_heads * sizeof(Prepared));
  const ChunkCall call = {c, static_cast<Prepared*>(made->data()),
                          is_wide(c.q, kKeys) && is_wide(c.k, kKeys)};
  context.launch(op, &prepare_kernel<T, kKeys>, dim3(static_cast<unsigned>(most), num_heads),
                 dim3(kPrepareThreads), sizeof(PrepareShared<T, kKeys>), call);
  const dim3 grid(blocks_for(c.v.head_dim, kColumns), num_heads,
                  static_cast<unsigned>(c.slots.num_requests));
  context.launch(op, &walk_kernel<T, kKeys>, grid, dim3(kWalkThreads), sizeof(WalkShared<T, kKeys>),
                 call);
}

template <typename T>
void run(Context& context, const char* op, const DeltaCall& c) {
  if (c.k.head_dim <= 32) return run<T, 32>(context, op, c);
  run<T, 128>(context, op, c);
}

}  // namespace

bool takes_chunks(const Context& context, const DeltaCall& c) {
  if (c.k.head_dim > 128 || c.q.dtype != c.k.dtype || c.slots.num_tokens < kLeastOfChunks) {
    return false;
  }
  return c.k.dtype != DType::kF32 || c.k.head_dim <= 32 ||
         sizeof(PrepareShared<float, 128>) <= most_shared(context);
}

void launch_chunks(Context& context, const char* op, const DeltaCall& c) {
  with_float(c.k.dtype, [&](auto type) { run<decltype(type)>(context, op, c); });
}

}  // namespace pyvt::cuda
