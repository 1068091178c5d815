// PackedMatrix and the formats of its tiles: what the kernels of linear layers read.
//
// A weight [N, K] is cut into tiles of 16 rows, the last one filled up with rows of zero bytes; a
// tile is one contiguous stream in which a SIMD lane owns one output row. The bytes of a tile are
// those of pyvt/ops/packed_layouts.py: layout "tile16".
#pragma once

#include <cstdint>

#include "pyvt/dtype.h"

namespace pyvt::cpu {

constexpr int64_t kTileRows = 16;

struct PackedMatrix {
  const uint8_t* data;  // tiles, one after the other
  DType dtype;
  int64_t num_rows, num_cols;
};

// Rows of activations quantised to int8 by groups of 32 columns.
struct Q8Rows {
  const int8_t* q;      // [M][ldq]
  const float* scales;  // [M][lds]: max|x| / 127 of a group
  const float* sums;    // [M][lds]: scale · sum(q) of a group
  int64_t ldq, lds;
};

// One block format. `out` is [rows][ldo] f32, 16 outputs a row. Every kernel gives an output the
// same bits: blocks in order of columns, an exact integer dot, then fma into one f32 sum.
struct Int8Format {
  int64_t block_cols;        // columns of a block
  int64_t tile_block_bytes;  // bytes of one block of all 16 rows in a tile
  int64_t file_block_bytes;  // bytes of one block of one row in a file

  // Lays 16 rows of file blocks as one tile.
  void (*pack_tile)(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile);

  // Products of 1, 2, 4 rows of activations from m0 on with a packed tile.
  void (*direct[3])(const uint8_t* tile, int64_t num_cols, const Q8Rows& a, int64_t m0, float* out,
                    int64_t ldo);

  // A tile unpacked for many rows: its size, the unpacking, and products of 1, 4 rows.
  int64_t (*panel_bytes)(int64_t num_cols);
  void (*unpack_panel)(const uint8_t* tile, int64_t num_cols, uint8_t* panel);
  void (*panel[2])(const uint8_t* panel, int64_t num_cols, const Q8Rows& a, int64_t m0, float* out,
                   int64_t ldo);

  // Columns [k0, k1), multiples of block_cols, as f32 [k1 - k0][16].
  void (*decode_tile)(const uint8_t* tile, int64_t k0, int64_t k1, float* panel);
};

constexpr int kNumInt8Formats = 8;

// Index of a block format in KernelTable::int8, -1 for a dtype that has none.
inline int int8_index(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return 0;
    case DType::kQ4_0:
      return 1;
    case DType::kQ4_1:
      return 2;
    case DType::kQ5_0:
      return 3;
    case DType::kQ5_1:
      return 4;
    case DType::kQ4_K:
      return 5;
    case DType::kQ5_K:
      return 6;
    case DType::kQ6_K:
      return 7;
    default:
      return -1;
  }
}

// One plain float format: a tile is [K / words][16 rows] of 32-bit words, and a word holds one
// column of f32 or two of bf16 or f16; an odd K ends in a half word of zero.
struct FloatFormat {
  int64_t word_cols;

  void (*pack_tile)(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile);

  // Products of 1, 2, 4, 6 rows x [rows][ldx] with a tile; unless `is_first`, `out` holds the sums
  // of earlier columns.
  void (*direct[4])(const uint8_t* tile, int64_t num_cols, const float* x, int64_t ldx, float* out,
                    int64_t ldo, bool is_first);

  // The tile as f32 [num_cols][16]; null for f32, whose tile is that already.
  void (*unpack_panel)(const uint8_t* tile, int64_t num_cols, float* panel);
};

}  // namespace pyvt::cpu
