// Products of many rows in int8 with matrices of codes, on tensor cores: multiply_int8_tiles.
//
// contract  whole-number dots of 32 or 16 columns, each times the scales of both sides, f32 sums in
//           the order of columns: the reference of act=q8, one rounding
// layout    tiles of 64 rows of one matrix by 64 columns; codes of x side by side, blocks as stored
// work      four warps, 16 rows each; codes of 128 columns decoded to shared memory, then for each
//           group of 32 an mma for 16 × 8 outputs and its scales
// estimate  2·M·N·K operations: 16 instructions of scaling for each mma of 8,192 bind first, at
//           about 475 TOP/s on 132 SMs; 4096³ take 0.3 ms. The weight is read once for 64
//           rows, from L2; in Q4_K weight, codes and result are 60 MB, 14 us
// launches  1
// source    ggml mmq
#include "cuda/device/blocks.cuh"
#include "cuda/device/mma_int8.cuh"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kThreads = 128, kColumns = kTileColumns, kGroups = 4;
constexpr int kRowsOfWarp = 16, kTiles = kColumns / 8;
// Words of a row of codes; rows are four banks apart from a multiple of 32.
constexpr int kStride = kGroups * kWords + 4;

struct Staged {
  uint32_t x[kTileRows][kStride];
  uint32_t w[kColumns][kStride];
  float x_scales[kTileRows][kGroups];
  float x_sums[kTileRows][kGroups][2];
  float w_scales[kColumns][kGroups][2];
  float w_mins[kColumns][kGroups][2];
};

// The sum of the codes of 16 columns.
PYVT_DEVICE int sum_of(const uint32_t* words) {
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kWords / 2; ++i) {
    sum = __dp4a(static_cast<int>(words[i]), 0x01010101, sum);
  }
  return sum;
}

// Groups from `start` of the rows of a tile; those that are not there have scale 0.
template <bool kHasMin>
PYVT_DEVICE void stage_x(const MatrixProduct& p, const TileRows& tile, int start, int of_row,
                         Staged* to) {
  for (int i = threadIdx.x; i < kTileRows * kGroups; i += kThreads) {
    const int g = i % kGroups, r = i / kGroups;
    const bool is_in = r < tile.count && start + g < of_row;
    uint32_t words[kWords] = {};
    float scale = 0.0f;
    if (is_in) {
      const int64_t row = p.schedule.row(tile.first + r) / p.schedule.per_x_row;
      const int64_t group = row * of_row + start + g;
      load_words<16>(reinterpret_cast<const uint8_t*>(p.codes) + group * kGroup, words);
      scale = p.scales[group];
    }
#pragma unroll
    for (int j = 0; j < kWords; ++j) to->x[r][g * kWords + j] = words[j];
    to->x_scales[r][g] = scale;
    if constexpr (kHasMin) {
      to->x_sums[r][g][0] = scale * static_cast<float>(sum_of(words));
      to->x_sums[r][g][1] = scale * static_cast<float>(sum_of(words + kWords / 2));
    }
  }
}

template <DType kFormat>
PYVT_DEVICE void stage_weight(const MatrixProduct& p, int matrix, int first, int start, int of_row,
                              Staged* to) {
  for (int i = threadIdx.x; i < kColumns * kGroups; i += kThreads) {
    const int g = i / kColumns, n = i % kColumns;
    Group group = {};
    if (first + n < p.weight.num_rows && start + g < of_row) {
      decode_row<kFormat>(p.weight.row(matrix, first + n), start + g, &group);
    }
#pragma unroll
    for (int j = 0; j < kWords; ++j) to->w[n][g * kWords + j] = group.words[j];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to->w_scales[n][g][h] = group.scale[h];
      if constexpr (Block<kFormat>::kHasMin) to->w_mins[n][g][h] = group.min[h];
    }
  }
}

// Adds the products of group g: 16 rows of a warp by all columns.
template <DType kFormat>
PYVT_DEVICE void add_group(const Staged& staged, int g, int first_row, float (&sums)[kTiles][4]) {
  constexpr int kParts = Block<kFormat>::kHasHalves ? 2 : 1, kDepth = kGroup / kParts;
  const int lane = threadIdx.x % kWarp, row = first_row + lane / 4, t = lane % 4;
  uint32_t a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = staged.x[row + i % 2 * 8][g * kWords + i / 2 * 4 + t];
  const float scales[2] = {staged.x_scales[row][g], staged.x_scales[row + 8][g]};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t* codes = &staged.w[tile * 8 + lane / 4][g * kWords];
    const uint32_t b[2] = {codes[t], codes[4 + t]};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      int dots[4] = {};
      mma_int8<kDepth>(dots, a + 2 * part, b + part);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = staged.w_scales[tile * 8 + 2 * t + i % 2][g][part];
        sums[tile][i] += static_cast<float>(dots[i]) * (scale * scales[i / 2]);
      }
    }
    if constexpr (Block<kFormat>::kHasMin) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* mins = staged.w_mins[tile * 8 + 2 * t + i % 2][g];
        const float* of_x = staged.x_sums[row + i / 2 * 8][g];
        sums[tile][i] += mins[0] * of_x[0] + mins[1] * of_x[1];
      }
    }
  }
}

template <DType kFormat>
__global__ void __launch_bounds__(kThreads, kBlocksOfProduct) int8_tile_kernel(MatrixProduct p) {
  PYVT_SHARED(staged, Staged);
  const TileRows tile = p.schedule.tile(blockIdx.y);
  if (tile.count == 0) return;
  const int first = blockIdx.x * kColumns, of_row = p.weight.num_cols / kGroup;
  const int first_row = threadIdx.x / kWarp * kRowsOfWarp;
  float sums[kTiles][4] = {};
  for (int start = 0; start < of_row; start += kGroups) {
    stage_x<Block<kFormat>::kHasMin>(p, tile, start, of_row, &staged);
    stage_weight<kFormat>(p, tile.matrix, first, start, of_row, &staged);
    __syncthreads();
    if (first_row < tile.count) {
      const int count = of_row - start < kGroups ? of_row - start : kGroups;
      for (int g = 0; g < count; ++g) add_group<kFormat>(staged, g, first_row, sums);
    }
    __syncthreads();
  }
  static_assert(sizeof(Staged) >= sizeof(TileSums), "sums lie where columns were staged");
  write_fragments(p, tile, first_row, first, sums, *reinterpret_cast<TileSums*>(&staged));
}

}  // namespace

void multiply_int8_tiles(Context& context, const char* op, const MatrixProduct& product) {
  const auto run = [&](auto kernel) { launch_tiles(context, op, kernel, kThreads, product); };
  switch (product.weight.dtype) {
#define PYVT_RUN(name) \
  case DType::name:    \
    return run(&int8_tile_kernel<DType::name>);
    PYVT_CODE_FORMATS(PYVT_RUN)
#undef PYVT_RUN
    default:
      detail::fail(op, "weight: no kernel for ", dtype_name(product.weight.dtype));
  }
}

}  // namespace pyvt::cuda
