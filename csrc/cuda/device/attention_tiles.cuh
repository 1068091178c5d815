// Attention on tensor cores: tiles of keys in shared memory, scores and sums in fragments of a
// warp, which has 16 rows; a row is a query token and a head of the group.
#pragma once

#include "cuda/attention.h"
#include "cuda/device/mma.cuh"

namespace pyvt::cuda {

constexpr int kTilePad = 8;  // elements, so that rows of a tile start in other banks

// What a lane keeps of its two rows, g and g + 8 of its warp's 16.
template <int kDim>
struct RowState {
  float sums[kDim / 8][4] = {};
  float best[2] = {-INFINITY, -INFINITY};
  float total[2] = {};
  int64_t low[2], high[2];  // the keys that a row sees

  // Of the warp's rows from `first` of a tile on.
  PYVT_DEVICE void see(const Tile& tile, const Settings& settings, int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + static_cast<int>(threadIdx.x) % kWarp / 4;
      const bool is_in = row < tile.num_rows;
      high[half] = is_in ? tile.position(row, settings.group) : -1;
      low[half] = is_in ? settings.first_key(high[half]) : 0;
    }
  }
};

template <typename T, int kDim>
PYVT_DEVICE T* row_of(T* tile, int row) {
  return tile + row * (kDim + kTilePad);
}

template <typename T, int kDim, int kRows>
PYVT_DEVICE void load_queries(T* tile, const Heads& q, const Tile& rows, int64_t kv_head,
                              int group) {
  constexpr int kPieces = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += blockDim.x) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool is_in = row < rows.num_rows;
    uint4 found = {0, 0, 0, 0};
    if (is_in) {
      const int64_t at =
          q.at(rows.token(row, group), kv_head * group + rows.head(row, group), 8 * piece);
      found = *reinterpret_cast<const uint4*>(static_cast<const T*>(q.data) + at);
    }
    *reinterpret_cast<uint4*>(row_of<T, kDim>(tile, row) + 8 * piece) = found;
  }
}

// Eight elements of a cache, fp8 widened, which loses nothing.
template <typename T>
PYVT_DEVICE uint4 load_piece(const Cache& cache, int64_t at) {
  if (cache.dtype != DType::kFP8) {
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(cache.data) + at);
  }
  const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const fp8*>(cache.data) + at);
  const auto widen = [](uint32_t word, int byte) {
    return pack<T>(load(fp8{static_cast<uint8_t>(word >> 8 * byte)}),
                   load(fp8{static_cast<uint8_t>(word >> (8 * byte + 8))}));
  };
  return {widen(raw.x, 0), widen(raw.x, 2), widen(raw.y, 0), widen(raw.y, 2)};
}

// Keys `first` … of a request; thread `index` of `count` has its share.
template <typename T, int kDim, int kKeys>
PYVT_DEVICE void load_keys(T* tile, const Cache& cache, const int32_t* table, int64_t head,
                           int first, int low, int stop, int index, int count) {
  constexpr int kPieces = kDim / 8;
  const int size = static_cast<int>(cache.block_size);
  for (int i = index; i < kKeys * kPieces; i += count) {
    const int key = i / kPieces, piece = i % kPieces, place = first + key;
    uint4 found = {0, 0, 0, 0};
    // The block table may hold anything before the window.
    if (place >= low && place < stop) {
      found = load_piece<T>(cache, cache.at(table[place / size], place % size, head) + 8 * piece);
    }
    *reinterpret_cast<uint4*>(row_of<T, kDim>(tile, key) + 8 * piece) = found;
  }
}

// scores = 16 queries · keysᵀ, in blocks of 8 keys.
template <typename T, int kDim, int kBlocks>
PYVT_DEVICE void multiply_keys(float (&scores)[kBlocks][4], T* queries, T* keys) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[b][i] = 0.0f;
  }
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    uint32_t a[4];
    ldmatrix_x4<false>(a, row_of<T, kDim>(queries, lane % 16) + d + lane / 16 * 8);
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
template <int kDim, int kBlocks>
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
template <typename T, int kDim, int kBlocks>
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

// Calls `run` with the element type of the queries and, as a constant, their head dim.
template <typename Run>
void with_tensor_type(const AttentionArguments& a, Run run) {
  const auto with_dim = [&](auto type) {
    switch (a.q.head_dim) {
      case 64:
        return run(type, std::integral_constant<int, 64>{});
      case 128:
        return run(type, std::integral_constant<int, 128>{});
      default:
        return run(type, std::integral_constant<int, 256>{});
    }
  };
  a.q.dtype == DType::kBF16 ? with_dim(bf16{}) : with_dim(f16{});
}

}  // namespace pyvt::cuda
