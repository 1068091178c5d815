// Products of many rows with matrices of any format, computed in f32: multiply_tiles.
//
// contract  f32 products of decoded values, one rounding
// layout    tiles of 64 rows of one matrix by 64 columns; the weight is never expanded to memory
// work      256 threads, 4 × 4 outputs each; 64 columns of the weight decoded to shared memory
// estimate  2·M·N·K operations at the 60 TFLOP/s of f32: 4096³ take 2.3 ms. Kernels on tensor cores
//           take halves and int8; what is left here is f32, 201 MB, 47 us
// launches  1
#include "cuda/device/blocks.cuh"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kThreads = 256, kOwn = 4, kColumns = kTileColumns;
constexpr int kDepth = 2 * kGroup, kStride = kTileRows + 1;
constexpr int kStep = kTileRows / kOwn;

// kDepth columns from `start` of the rows of a tile.
PYVT_DEVICE void stage_x(const MatrixProduct& p, const TileRows& tile, int start,
                         float (&to)[kDepth][kStride]) {
  for (int i = threadIdx.x; i < kTileRows * kDepth; i += kThreads) {
    const int k = i % kDepth, r = i / kDepth;
    const bool is_in = r < tile.count && start + k < p.weight.num_cols;
    to[k][r] =
        is_in ? p.x.at(p.schedule.row(tile.first + r) / p.schedule.per_x_row).get(start + k) : 0.0f;
  }
}

template <DType kFormat>
PYVT_DEVICE void stage_weight(const MatrixProduct& p, int matrix, int first, int start,
                              float (&to)[kDepth][kStride]) {
  if constexpr (Block<kFormat>::kIsPlain) {
    for (int i = threadIdx.x; i < kColumns * kDepth; i += kThreads) {
      const int k = i % kDepth, n = i / kDepth;
      const bool is_in = first + n < p.weight.num_rows && start + k < p.weight.num_cols;
      to[k][n] = is_in ? load_any(p.weight.row(matrix, first + n), kFormat, start + k) : 0.0f;
    }
  } else {
    for (int i = threadIdx.x; i < kColumns * (kDepth / kGroup); i += kThreads) {
      const int n = i % kColumns, g = i / kColumns;
      const bool is_in = first + n < p.weight.num_rows && start + g * kGroup < p.weight.num_cols;
      Group group;
      if (is_in) decode_row<kFormat>(p.weight.row(matrix, first + n), start / kGroup + g, &group);
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        to[g * kGroup + k][n] = is_in ? value_of_group<kFormat>(group, k) : 0.0f;
      }
    }
  }
}

template <DType kFormat>
__global__ void __launch_bounds__(kThreads) tile_kernel(MatrixProduct p) {
  PYVT_SHARED(a, float[kDepth][kStride]);
  PYVT_SHARED(b, float[kDepth][kStride]);
  const TileRows tile = p.schedule.tile(blockIdx.y);
  if (tile.count == 0) return;
  const int first = blockIdx.x * kColumns;
  const int own_row = threadIdx.x / kStep, own_column = threadIdx.x % kStep;
  float sums[kOwn][kOwn] = {};
  for (int start = 0; start < p.weight.num_cols; start += kDepth) {
    stage_x(p, tile, start, a);
    stage_weight<kFormat>(p, tile.matrix, first, start, b);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kDepth; ++k) {
      float right[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) right[j] = b[k][own_column + j * kStep];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float left = a[k][own_row + i * kStep];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] += left * right[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int r = own_row + i * kStep;
    if (r >= tile.count) continue;
    const int row = p.schedule.row(tile.first + r);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int column = first + own_column + j * kStep;
      if (column < p.weight.num_rows) p.write(row, column, sums[i][j]);
    }
  }
}

}  // namespace

void multiply_tiles(Context& context, const char* op, const MatrixProduct& product) {
  const auto run = [&](auto kernel) { launch_tiles(context, op, kernel, kThreads, product); };
  switch (product.weight.dtype) {
#define PYVT_RUN(name) \
  case DType::name:    \
    return run(&tile_kernel<DType::name>);
    PYVT_PRODUCT_FORMATS(PYVT_RUN)
#undef PYVT_RUN
    default:
      detail::fail(op, "weight: no kernel for ", dtype_name(product.weight.dtype));
  }
}

}  // namespace pyvt::cuda
