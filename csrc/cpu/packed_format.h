// PackedMatrix and the formats of its tiles: what the kernels of linear layers read.
//
// A weight [N, K] is cut into tiles of 16 rows, the last one filled up with rows of zero bytes; a
// tile is one contiguous stream in which a SIMD lane owns one output row. The bytes of a tile are
// those of pyvt/ops/packed_layouts.py: layout "tile16".
#pragma once

#include <cstdint>
#include <iterator>

#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

constexpr int64_t kTileRows = 16;

struct PackedMatrix {
  const uint8_t* data = nullptr;  // tiles, one after the other
  DType dtype = DType::kF32;
  int64_t num_rows = 0, num_cols = 0;
  int64_t num_bytes = 0;
};

// Rows of blocks as they lie in a file.
struct BlockMatrix {
  TensorView blocks;  // u8 [..., bytes of a row]
  DType dtype = DType::kF32;
  int64_t num_cols = 0;
};

// The matrices [N, K] of all experts of a layer: tiles, each matrix's behind the one before, rows
// of blocks u8 [E, N, bytes of a row], or floats [E, N, K]; one of the three.
struct ExpertStack {
  PackedMatrix tiles;  // of one matrix, but for num_bytes: of all
  BlockMatrix blocks;
  TensorView plain;
  int64_t num_experts = -1;  // below 0 where what was given is no stack
};

// Rows of activations quantised to int8 by groups of 32 columns.
struct Q8Rows {
  const int8_t* q;      // [M][ldq]
  const float* scales;  // [M][lds]: max|x| / 127 of a group
  const float* sums;    // [M][lds]: scale · sum(q) of a group
  int64_t ldq, lds;
};

// Tiles that lie apart and are read in turn by one row.
constexpr int kStreams = 4;

// Rows of activations that a kernel of floats takes at once, and the place of the number that is
// best taken of `num_rows`: 7 and 8 rows go in two parts of up to 4, which take a third less than 6
// and the rest.
constexpr int64_t kFloatSteps[] = {1, 2, 3, 4, 6};
constexpr size_t float_step(int64_t num_rows) {
  if (num_rows >= 6) return num_rows == 7 || num_rows == 8 ? 3 : 4;
  return num_rows >= 4 ? 3 : static_cast<size_t>(num_rows - 1);
}

// Rows of bf16 that a kernel of pairs takes at once.
constexpr int64_t kPairSteps[] = {1, 2, 4, 8};

// One block format. A format without integer codes has no `direct` and `panel`: its products are
// those of what `decode_tile` gives. `out` is [rows][ldo] f32, 16 outputs a row. Every kernel gives
// an output the same bits: blocks in order of columns, an exact integer dot, then fma into one f32
// sum.
struct Int8Format {
  int64_t block_cols;        // columns of a block
  int64_t tile_block_bytes;  // bytes of one block of all 16 rows in a tile
  int64_t file_block_bytes;  // bytes of one block of one row in a file
  int64_t max_direct_rows;   // up to so many rows a tile is read as it is packed

  // Lays 16 rows of file blocks as one tile.
  void (*pack_tile)(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile);

  // Products of 1, 2, 4 rows of activations from m0 on with a packed tile.
  void (*direct[3])(const uint8_t* tile, int64_t num_cols, const Q8Rows& a, int64_t m0, float* out,
                    int64_t ldo);

  // Products of row m0 with kStreams packed tiles that lie `apart` bytes from each other, written
  // to out [kStreams][16]; null where tiles are read one by one.
  void (*streams)(const uint8_t* tile, int64_t apart, int64_t num_cols, const Q8Rows& a, int64_t m0,
                  float* out);

  // Columns of a tile unpacked for many rows: their size, the unpacking, and products of 1, 4, 8
  // rows, the last one null where that many are no faster; unless `is_first`, `out` holds the sums
  // of earlier columns.
  int64_t (*panel_bytes)(int64_t num_cols);
  void (*unpack_panel)(const uint8_t* tile, int64_t num_cols, uint8_t* panel);
  void (*panel[3])(const uint8_t* panel, int64_t num_cols, const Q8Rows& a, int64_t m0, float* out,
                   int64_t ldo, bool is_first);

  // Products of kFloatSteps rows x [rows][ldx] of f32 with a packed tile; null where it is decoded
  // for them.
  void (*of_floats[std::size(kFloatSteps)])(const uint8_t* tile, int64_t num_cols, const float* x,
                                            int64_t ldx, float* out, int64_t ldo);

  // Columns [k0, k1), multiples of block_cols, as f32 [k1 - k0][16].
  void (*decode_tile)(const uint8_t* tile, int64_t k0, int64_t k1, float* panel);
};

// The block formats, in the order of KernelTable::int8. X(name of the DType).
// clang-format off
#define PYVT_INT8_FORMATS(X) \
  X(kQ8_0) X(kQ4_0) X(kQ4_1) X(kQ5_0) X(kQ5_1) X(kQ2_K) \
  X(kQ3_K) X(kQ4_K) X(kQ5_K) X(kQ6_K) X(kIQ2_XXS) X(kIQ2_XS) \
  X(kIQ2_S) X(kIQ3_XXS) X(kIQ3_S) X(kIQ4_NL) X(kIQ4_XS) X(kMXFP4) \
  X(kNVFP4) X(kINT4_G128) X(kINT4_G32) X(kINT8_G128) X(kINT8_G32) X(kNVFP4_G128) \
  X(kNVFP4_G32) X(kFP8_G128) X(kFP8_G32)
// clang-format on

namespace places {

enum Int8Place {
#define PYVT_PLACE(name) name##Place,
  PYVT_INT8_FORMATS(PYVT_PLACE)
#undef PYVT_PLACE
      kNumPlaces
};

}  // namespace places

constexpr int kNumInt8Formats = places::kNumPlaces;

// Index of a block format in KernelTable::int8, -1 for a dtype that has none.
inline int int8_index(DType dtype) {
  switch (dtype) {
#define PYVT_INDEX(name) \
  case DType::name:      \
    return places::name##Place;
    PYVT_INT8_FORMATS(PYVT_INDEX)
#undef PYVT_INDEX
    default:
      return -1;
  }
}

// One plain float format: a tile is [K / words][16 rows] of 32-bit words, and a word holds one
// column of f32 or two of bf16 or f16; an odd K ends in a half word of zero.
struct FloatFormat {
  int64_t word_cols;

  void (*pack_tile)(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile);

  // Products of kFloatSteps rows x [rows][ldx] with a tile; unless `is_first`, `out` holds the sums
  // of earlier columns.
  void (*direct[5])(const uint8_t* tile, int64_t num_cols, const float* x, int64_t ldx, float* out,
                    int64_t ldo, bool is_first);

  // The tile as f32 [num_cols][16]; null for f32, whose tile is that already.
  void (*unpack_panel)(const uint8_t* tile, int64_t num_cols, float* panel);

  // The same as `direct` of kPairSteps rows in the dtype of the weight, two columns at once; null
  // where the CPU has no such products.
  void (*pairs[std::size(kPairSteps)])(const uint8_t* tile, int64_t num_cols, const uint16_t* x,
                                       int64_t ldx, float* out, int64_t ldo, bool is_first);
};

}  // namespace pyvt::cpu
