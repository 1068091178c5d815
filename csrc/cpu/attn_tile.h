// AttnTile: one tile of keys against the query rows that share a KV head.
#pragma once

#include <cstdint>

namespace pyvt::cpu {

// Keys of a tile. A tile starts at a multiple of this position, whoever asks.
constexpr int kAttnTile = 64;
// Keys are read in groups, so pointers up to the next multiple of this must be readable.
constexpr int kAttnKeyGroup = 4;
constexpr int kAttnKeyVectors = 2;
constexpr int kAttnValueVectors = 4;

// Memory that is read later.
struct AttnRun {
  const char* data;
  int num_lines;  // of the cache
};

struct AttnTile {
  int64_t head_dim;
  int num_rows;
  float scale;
  float soft_cap;  // 0 is none

  const float* q;      // [num_rows, row_stride]; a row is filled up with zeros
  int64_t row_stride;  // of q and sums: head_dim rounded up to whole vectors
  const int* first;    // [num_rows] keys that a row sees: [first, last), at least one
  const int* last;
  // Keys by columns for many rows: groups of kAttnKeyVectors vectors of keys, each [row_stride][the
  // keys of the group]; null where keys are read as they lie.
  const float* key_columns;
  const void* const* keys;    // [kAttnTile] where each key lies
  const void* const* values;  // [kAttnTile]
  // Values for many rows: [row_stride / value_width][kAttnTile][value_width]; null where values are
  // read as they lie.
  const float* value_columns;
  int64_t value_width;

  // What is read some way ahead of the arithmetic, keys before values, and after this tile.
  const AttnRun* ahead;
  int num_ahead;

  float* scores;  // [num_rows, kAttnTile] scratch
  float* sums;    // [num_rows, row_stride] out: Σ exp(score − top) · value
  float* tops;    // [num_rows] out: the largest score
  float* totals;  // [num_rows] out: Σ exp(score − top)
};

// The softmax of rows over the tiles that have been folded in so far.
struct AttnState {
  float* sums;    // [num_rows, row_stride]
  float* tops;    // [num_rows]
  float* totals;  // [num_rows]
};

}  // namespace pyvt::cpu
