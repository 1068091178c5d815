// What attention kernels share: query heads, the requests of a step, settings, tiles of rows.
#pragma once

#include "cuda/device/cache.cuh"
#include "cuda/device/rows.cuh"

namespace pyvt::cuda {

// [T, heads, D] of any stride.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_heads = 0, head_dim = 0;
  int64_t token_stride = 0, head_stride = 0, stride = 1;

  PYVT_DEVICE int64_t at(int64_t token, int64_t head, int64_t dim) const {
    return token * token_stride + head * head_stride + dim * stride;
  }
  PYVT_DEVICE float get(int64_t token, int64_t head, int64_t dim) const {
    return load_any(data, dtype, at(token, head, dim));
  }
  PYVT_DEVICE void set(int64_t token, int64_t head, int64_t dim, float value) const {
    store_any(data, dtype, at(token, head, dim), value);
  }
};

inline Heads heads_of(const char* op, const char* name, const TensorView& x) {
  PYVT_CHECK(op, x.rank == 3 && is_float(x.dtype), name, ": expected floats [T, heads, D]");
  return {x.data, x.dtype, x.shape[1], x.shape[2], x.stride[0], x.stride[1], x.stride[2]};
}

// Where each request's tokens lie, in the step and in the cache.
struct Tables {
  const int32_t* block_tables = nullptr;
  const int32_t* seq_lens = nullptr;
  const int32_t* cu_seqlens_q = nullptr;
  int64_t num_reqs = 0, num_tokens = 0, max_blocks = 0, table_stride = 0;

  PYVT_DEVICE const int32_t* block_table(int64_t request) const {
    return block_tables + request * table_stride;
  }
};

inline Tables tables_of(const char* op, const TensorView& block_tables, const TensorView& seq_lens,
                        const TensorView& cu_seqlens_q, int64_t num_tokens) {
  const auto is_i32 = [](const TensorView& view, int rank) {
    return view.rank == rank && view.dtype == DType::kI32 &&
           (view.shape[rank - 1] <= 1 || view.stride[rank - 1] == 1);
  };
  PYVT_CHECK(op, is_i32(block_tables, 2) && is_i32(seq_lens, 1) && is_i32(cu_seqlens_q, 1),
             "block_tables, seq_lens, cu_seqlens_q: expected i32, side by side");
  const int64_t num_reqs = seq_lens.shape[0];
  PYVT_CHECK(op, block_tables.shape[0] == num_reqs && cu_seqlens_q.shape[0] == num_reqs + 1,
             "block_tables, cu_seqlens_q: expected rows for ", num_reqs, " requests");
  return {block_tables.as<int32_t>(),
          seq_lens.as<int32_t>(),
          cu_seqlens_q.as<int32_t>(),
          num_reqs,
          num_tokens,
          block_tables.shape[1],
          block_tables.stride[0]};
}

struct Settings {
  int group;  // query heads of a KV head
  float scale;
  int64_t window;  // 0 is none
  float soft_cap;  // 0 is none

  PYVT_DEVICE float score(float dot) const {
    const float x = dot * scale;
    return soft_cap > 0.0f ? tanhf(x / soft_cap) * soft_cap : x;
  }
  PYVT_DEVICE int64_t first_key(int64_t position) const {
    const int64_t first = position - window + 1;
    return window > 0 && first > 0 ? first : 0;
  }
};

// Rows of one request that a block has: query tokens side by side, all heads of a group each.
struct Tile {
  int64_t request = 0;
  int64_t first_token = 0;
  int64_t offset = 0;  // position of a token less its place in the step
  int num_rows = 0;    // 0 where the block has none

  PYVT_DEVICE int64_t token(int row, int group) const { return first_token + row / group; }
  PYVT_DEVICE int head(int row, int group) const { return row % group; }
  PYVT_DEVICE int64_t position(int row, int group) const { return token(row, group) + offset; }
};

// The tile with that number, tiles counted request by request.
PYVT_DEVICE Tile find_tile(const Tables& tables, int64_t index, int group, int max_rows) {
  const int64_t per_tile = max_rows / group;
  for (int64_t r = 0; r < tables.num_reqs; ++r) {
    const int64_t start = tables.cu_seqlens_q[r], stop = tables.cu_seqlens_q[r + 1];
    const int64_t count = (stop - start + per_tile - 1) / per_tile;
    if (index < count) {
      const int64_t first = start + index * per_tile;
      const int64_t tokens = stop - first < per_tile ? stop - first : per_tile;
      return {r, first, tables.seq_lens[r] - stop, static_cast<int>(tokens * group)};
    }
    index -= count;
  }
  return {};
}

struct Span {
  int64_t first, stop;
};

// Part `index` of `count` of a range.
PYVT_DEVICE Span part_of(int64_t first, int64_t stop, int64_t index, int64_t count) {
  const int64_t size = (stop - first + count - 1) / count;
  const int64_t from = first + index * size, to = from + size;
  return {from < stop ? from : stop, to < stop ? to : stop};
}

}  // namespace pyvt::cuda
