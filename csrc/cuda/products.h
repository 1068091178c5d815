// Products of rows with matrices of a stack, of any float or block format: what quantised linear
// layers and experts are made of.
//
// A product row r is x row r / per_x_row times one matrix; rows of one matrix make tiles, which a
// schedule lists.
#pragma once

#include "cuda/context.h"
#include "cuda/device/rows.cuh"
#include "cuda/weights.h"

namespace pyvt::cuda {

// Every format of whole-number codes.
#define PYVT_CODE_FORMATS(X) \
  X(kQ8_0)                   \
  X(kQ4_0)                   \
  X(kQ4_1)                   \
  X(kQ5_0)                   \
  X(kQ5_1)                   \
  X(kQ2_K)                   \
  X(kQ3_K)                   \
  X(kQ4_K)                   \
  X(kQ5_K)                   \
  X(kQ6_K)                   \
  X(kIQ2_XXS)                \
  X(kIQ2_XS)                 \
  X(kIQ2_S)                  \
  X(kIQ3_XXS)                \
  X(kIQ3_S)                  \
  X(kIQ4_NL)                 \
  X(kIQ4_XS)                 \
  X(kMXFP4)                  \
  X(kNVFP4)                  \
  X(kINT4_G128)              \
  X(kINT4_G32)               \
  X(kINT8_G128)              \
  X(kINT8_G32)               \
  X(kNVFP4_G128)             \
  X(kNVFP4_G32)
#define PYVT_PRODUCT_FORMATS(X) \
  PYVT_CODE_FORMATS(X)          \
  X(kFP8_G128)                  \
  X(kFP8_G32)                   \
  X(kF32)                       \
  X(kBF16)                      \
  X(kF16)

// Matrices [N, K] one after the other.
struct Matrices {
  const uint8_t* data = nullptr;
  DType dtype = DType::kF32;
  int64_t matrix_stride = 0, row_stride = 0;  // bytes
  int num_matrices = 1, num_rows = 0, num_cols = 0;
  bool is_wide = false;  // plain: every row may be read 16 bytes at a time

  PYVT_DEVICE const uint8_t* row(int matrix, int64_t row) const {
    return data + matrix * matrix_stride + row * row_stride;
  }
};

// Matrices of experts by product row: ids [T, K].
struct ExpertIds {
  const void* data = nullptr;
  int64_t token_stride = 0, stride = 0;
  int top_k = 1;
  bool is_wide = false;

  PYVT_DEVICE int operator[](int row) const {
    const int64_t at = row / top_k * token_stride + row % top_k * stride;
    return is_wide ? static_cast<int>(static_cast<const int64_t*>(data)[at])
                   : static_cast<const int32_t*>(data)[at];
  }
};

struct TileRows {
  int matrix, first, count;
};

// Which rows and which matrix a tile has. Without `pairs` and `tiles` rows are as they come, all of
// matrix 0, or each of its own expert: then a tile has one.
struct Schedule {
  const int32_t* pairs = nullptr;  // product rows sorted by matrix
  const int32_t* tiles = nullptr;  // matrix, first place in pairs, number of rows; 0 for no tile
  ExpertIds ids;
  int num_rows = 0, height = 1, num_tiles = 0, per_x_row = 1;

  PYVT_DEVICE TileRows tile(int index) const {
    if (tiles != nullptr) return {tiles[3 * index], tiles[3 * index + 1], tiles[3 * index + 2]};
    const int first = index * height, rest = num_rows - first;
    return {ids.data == nullptr ? 0 : ids[first], first, rest < height ? rest : height};
  }
  PYVT_DEVICE int row(int place) const { return pairs == nullptr ? place : pairs[place]; }
};

struct Bias {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;

  PYVT_DEVICE float get(int64_t i) const {
    return data == nullptr ? 0.0f : load_any(data, dtype, i * stride);
  }
};

// out = product + bias, or silu(gate) · product where a gate is given. In int8 x is multiplied as
// codes [rows of x][K] with scales [rows of x][K / 32]; tiles of one row make them by themselves.
struct MatrixProduct {
  Rows out, x, gate;
  Matrices weight;
  Schedule schedule;
  Bias bias;
  bool is_q8 = false;
  bool may_split = false;  // an f32 x may be rounded to 17 bits
  bool is_split = false;   // x as a sum of two halves
  const int8_t* codes = nullptr;
  const float* scales = nullptr;

  PYVT_DEVICE void write(int row, int column, float sum) const {
    sum += bias.get(column);
    if (gate.data != nullptr) {
      const float g = gate.at(row).get(column);
      sum *= g * inverse(1.0f + expf(-g));
    }
    out.at(row).set(column, sum);
  }
};

// Rows of x of a tile that kernels for few rows take.
constexpr int kFewRows = 4;
// Rows of x of a tile of products of many, and its columns of out.
constexpr int kTileRows = 64, kTileColumns = 64;

// Blocks of 128 threads of a multiprocessor at least. Where none is asked for, the compiler spills
// a few registers to have more.
constexpr int kBlocksOfProduct = 4;

using TileSums = float[kTileRows][kTileColumns];

// Writes a tile whose warps have fragments of tensor cores, 16 rows from `first_row` each; called
// by all threads of a block. `sums` is shared, so that neighbours write neighbours.
template <int kCount>
PYVT_DEVICE void write_fragments(const MatrixProduct& p, const TileRows& tile, int first_row,
                                 int first_column, const float (&own)[kCount][4], TileSums& sums) {
  const int row = first_row + threadIdx.x % kWarp / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[row + i / 2 * 8][n * 8 + column + i % 2] = own[n][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.count * kTileColumns; i += blockDim.x) {
    const int r = i / kTileColumns, at = i % kTileColumns;
    if (first_column + at >= p.weight.num_rows) continue;
    p.write(p.schedule.row(tile.first + r), first_column + at, sums[r][at]);
  }
}

// A block for each tile of 64 by 64.
inline void launch_tiles(Context& context, const char* op, void (*kernel)(MatrixProduct),
                         unsigned threads, const MatrixProduct& product) {
  const dim3 grid(blocks_for(product.weight.num_rows, kTileColumns),
                  static_cast<unsigned>(product.schedule.num_tiles));
  context.launch(op, kernel, grid, dim3(threads), 0, product);
}

// Launches of one product; the height of the schedule is 1 or kFewRows, or kTileRows.
void multiply_few_rows(Context& context, const char* op, const MatrixProduct& product);
void multiply_tiles(Context& context, const char* op, const MatrixProduct& product);
void multiply_int8_tiles(Context& context, const char* op, const MatrixProduct& product);
void multiply_half_tiles(Context& context, const char* op, MatrixProduct product);
// Whether kernels for halves give the product of x and the weight.
bool takes_half_tiles(const MatrixProduct& product);

inline void multiply(Context& context, const char* op, const MatrixProduct& product) {
  if (product.schedule.num_tiles == 0 || product.weight.num_rows == 0) return;
  if (product.schedule.height <= kFewRows) return multiply_few_rows(context, op, product);
  if (product.codes != nullptr) return multiply_int8_tiles(context, op, product);
  if (takes_half_tiles(product)) return multiply_half_tiles(context, op, product);
  multiply_tiles(context, op, product);
}

// Rows as int8 with a scale for each 32 columns; codes side by side.
void quantize_rows(Context& context, const char* op, int8_t* codes, float* scales, const Rows& x);

// Whether products with codes of a format are of whole numbers.
bool has_codes(DType dtype);

// The matrices of a weight [N, K] or a stack [E, N, K]. Throws Error.
Matrices matrices_of(const char* op, const char* name, const BlockMatrix& weight);
Matrices matrices_of(const char* op, const char* name, const ExpertStack& stack);

}  // namespace pyvt::cuda
