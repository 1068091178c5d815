// Products of many rows of halves with matrices of any format, on tensor cores:
// multiply_half_tiles.
//
// contract  act=none: codes are whole numbers, so bf16 holds them, and x where it is bf16; products
//           and sums in f32, scales after each group of 32 or 16 columns. f16 is split exactly into
//           two bf16, f32 to 2^-18 (only where the caller allows it); one rounding at the end
// layout    tiles of 64 rows of one matrix by 64 columns; rows of any stride, blocks as stored
// work      four warps, 16 rows each; 64 columns of x and of the weight, decoded, in shared memory
// estimate  2·M·N·K operations, twice that for a split x. A mma of 4,096 products has 2
//           instructions of scaling for each 8 of its own: 4096³ take about 0.3 ms, 450 TFLOP/s,
//           against 0.17 ms at 790. The weight is read once for 64 rows,
//           from L2; in Q4_K weight, x and result are 77 MB, 18 us
// launches  1
// source    Frantar et al. 2024, arXiv:2408.11743, for dequantising between load and product
#include "cuda/device/blocks.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kThreads = 128, kColumns = kTileColumns, kGroups = 2;
constexpr int kRowsOfWarp = 16, kTiles = kColumns / 8;
constexpr int kPairs = kGroup / 2;  // words of a group: two neighbours each
// Words of a row; rows are four banks apart from a multiple of 32.
constexpr int kRowWords = kGroups * kPairs, kStride = kRowWords + 4;

struct Staged {
  uint32_t x[2][kTileRows][kStride];  // and what the first lacks, where x is split
  uint32_t w[kColumns][kStride];
  float x_sums[kTileRows][kGroups][2];
  float w_scales[kColumns][kGroups][2];
  float w_mins[kColumns][kGroups][2];
};

// What a half lacks of a value; nothing of an infinity.
template <typename T>
PYVT_DEVICE float rest(float value, T half) {
  const float found = value - load(half);
  return isnan(found) ? 0.0f : found;
}

// Columns from `start` of the rows of a tile, a warp for a row; what is not there is zero.
template <typename T, bool kHasMin>
PYVT_DEVICE void stage_x(const MatrixProduct& p, const TileRows& tile, int start, Staged* to) {
  const int lane = threadIdx.x % kWarp, column = start + 2 * lane;
  for (int r = threadIdx.x / kWarp; r < kTileRows; r += kThreads / kWarp) {
    float first = 0.0f, second = 0.0f;
    if (r < tile.count) {
      const Row row = p.x.at(p.schedule.row(tile.first + r) / p.schedule.per_x_row);
      if (column < p.weight.num_cols) first = row.get(column);
      if (column + 1 < p.weight.num_cols) second = row.get(column + 1);
    }
    const T high[2] = {store<T>(first), store<T>(second)};
    to->x[0][r][lane] = high[0].bits | static_cast<uint32_t>(high[1].bits) << 16;
    if (p.is_split) to->x[1][r][lane] = pack<T>(rest(first, high[0]), rest(second, high[1]));
    if constexpr (kHasMin) {
      float sum = first + second;  // of 16 columns, over 8 lanes
#pragma unroll
      for (int bits = 1; bits < 8; bits *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
      if (lane % 8 == 0) to->x_sums[r][lane / 16][lane / 8 % 2] = sum;
    }
  }
}

template <DType kFormat, typename T>
PYVT_DEVICE void stage_weight(const MatrixProduct& p, int matrix, int first, int start,
                              Staged* to) {
  if constexpr (Block<kFormat>::kIsPlain) {
    const int lane = threadIdx.x % kWarp, column = start + 2 * lane;
    for (int n = threadIdx.x / kWarp; n < kColumns; n += kThreads / kWarp) {
      uint32_t word = 0;
      if (first + n < p.weight.num_rows) {
        const T* row = reinterpret_cast<const T*>(p.weight.row(matrix, first + n));
        if (column < p.weight.num_cols) word = row[column].bits;
        if (column + 1 < p.weight.num_cols) {
          word |= static_cast<uint32_t>(row[column + 1].bits) << 16;
        }
      }
      to->w[n][lane] = word;
    }
  } else {
    static_assert(kColumns * kGroups == kThreads, "a thread decodes a group");
    const int g = threadIdx.x / kColumns, n = threadIdx.x % kColumns;
    Group group = {};
    if (first + n < p.weight.num_rows && start + g * kGroup < p.weight.num_cols) {
      decode_row<kFormat>(p.weight.row(matrix, first + n), start / kGroup + g, &group);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t codes = group.words[i];
      uint32_t* pair = &to->w[n][g * kPairs + 2 * i];
      pair[0] = pack<T>(code_of<kFormat>(codes, 0), code_of<kFormat>(codes, 1));
      pair[1] = pack<T>(code_of<kFormat>(codes, 2), code_of<kFormat>(codes, 3));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to->w_scales[n][g][h] = group.scale[h];
      if constexpr (Block<kFormat>::kHasMin) to->w_mins[n][g][h] = group.min[h];
    }
  }
}

// A fragment of 16 rows by 16 columns, `at` the word of the first.
PYVT_DEVICE void load_x(const uint32_t (&x)[kTileRows][kStride], int row, int at,
                        uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = x[row + i % 2 * 8][at + i / 2 * 4];
}

// Adds the products of group g: 16 rows of a warp by all columns.
template <DType kFormat, typename T>
PYVT_DEVICE void add_group(const Staged& staged, int g, int first_row, bool is_split,
                           float (&sums)[kTiles][4]) {
  constexpr bool kIsPlain = Block<kFormat>::kIsPlain;
  const int lane = threadIdx.x % kWarp, row = first_row + lane / 4, t = lane % 4;
  const int at = g * kPairs + t;
  uint32_t high[2][4], low[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load_x(staged.x[0], row, at + 8 * half, high[half]);
    if (is_split) load_x(staged.x[1], row, at + 8 * half, low[half]);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t* codes = &staged.w[tile * 8 + lane / 4][at];
    float dots[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t b[2] = {codes[8 * half], codes[8 * half + 4]};
      float (&to)[4] = kIsPlain ? sums[tile] : dots;
      if (is_split) mma_16x8x16<T>(to, low[half], b);
      mma_16x8x16<T>(to, high[half], b);
      if constexpr (!kIsPlain) {
        if (half == 0 && !Block<kFormat>::kHasHalves) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[tile][i] += dots[i] * staged.w_scales[tile * 8 + 2 * t + i % 2][g][half];
          dots[i] = 0.0f;
        }
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

template <DType kFormat, typename T>
__global__ void __launch_bounds__(kThreads, kBlocksOfProduct) half_tile_kernel(MatrixProduct p) {
  PYVT_SHARED(staged, Staged);
  const TileRows tile = p.schedule.tile(blockIdx.y);
  if (tile.count == 0) return;
  const int first = blockIdx.x * kColumns;
  const int first_row = threadIdx.x / kWarp * kRowsOfWarp;
  float sums[kTiles][4] = {};
  for (int start = 0; start < p.weight.num_cols; start += 2 * kRowWords) {
    stage_x<T, Block<kFormat>::kHasMin>(p, tile, start, &staged);
    stage_weight<kFormat, T>(p, tile.matrix, first, start, &staged);
    __syncthreads();
    if (first_row < tile.count) {
      for (int g = 0; g < kGroups && start + g * kGroup < p.weight.num_cols; ++g) {
        add_group<kFormat, T>(staged, g, first_row, p.is_split, sums);
      }
    }
    __syncthreads();
  }
  static_assert(sizeof(Staged) >= sizeof(TileSums), "sums lie where columns were staged");
  write_fragments(p, tile, first_row, first, sums, *reinterpret_cast<TileSums*>(&staged));
}

}  // namespace

bool takes_half_tiles(const MatrixProduct& product) {
  const DType of_x = product.x.dtype;
  if (product.weight.dtype == DType::kF32) return false;
  if (product.weight.dtype == DType::kF16) return of_x == DType::kF16;
  return of_x != DType::kF32 || product.may_split;
}

void multiply_half_tiles(Context& context, const char* op, MatrixProduct product) {
  product.is_split = product.x.dtype != DType::kBF16 && product.weight.dtype != DType::kF16;
  const auto run = [&](auto kernel) { launch_tiles(context, op, kernel, kThreads, product); };
  switch (product.weight.dtype) {
#define PYVT_RUN(name) \
  case DType::name:    \
    return run(&half_tile_kernel<DType::name, bf16>);
    PYVT_CODE_FORMATS(PYVT_RUN)
    PYVT_RUN(kFP8_G128)
    PYVT_RUN(kFP8_G32)
    PYVT_RUN(kBF16)
#undef PYVT_RUN
    case DType::kF16:
      return run(&half_tile_kernel<DType::kF16, f16>);
    default:
      detail::fail(op, "weight: no kernel for ", dtype_name(product.weight.dtype));
  }
}

}  // namespace pyvt::cuda
