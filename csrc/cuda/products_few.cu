// Products of a few rows with matrices of any format: multiply_few_rows, quantize_rows.
//
// contract  act=none: f32 products of decoded values; act=q8: rows of x as int8 with a scale for 32
//           columns, whole-number dots, f32 sums; one rounding at the end
// layout    rows of the weight as in a file, read once; x and out rows of any stride
// work      8 to 32 lanes an output, each 32 columns at a time (8 of a plain weight); 2,048 columns
//           of x, or their int8 codes, in shared memory at a time. A block quantises a single row
//           of x by itself; several come as codes
// estimate  the weight's bytes: Q4_K has 4.5 bits, so 4096 × 4096 are 9.4 MB and take 2.2 us at
//           4.3 TB/s, bf16 33.6 MB and 7.8 us. Decoding a weight and an f32 product take about 3
//           operations, and 7.6e12 weights/s are to be had: 80 % of the issue slots of 132 SMs; an
//           int8 dot of four is one operation
// launches  1
// source    ggml ggml_vec_dot_*_q8_*
#include "cuda/device/blocks.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kQuantizeThreads = 128;
constexpr int kChunkGroups = 64, kChunk = kChunkGroups * kGroup;
// Padding keeps lanes that read a group each out of each other's banks.
constexpr int kFloats = kGroup + 4, kCodeBytes = kGroup + 16;
constexpr float kTiny = 0x1p-100f;

template <bool kIsQ8, int kRows>
struct Staged;

template <int kRows>
struct Staged<false, kRows> {
  float x[kRows][kChunkGroups][kFloats];
  float sums[kRows][kChunkGroups][2];
};
template <int kRows>
struct Staged<true, kRows> {
  int8_t codes[kRows][kChunkGroups][kCodeBytes];
  float scales[kRows][kChunkGroups];
  float sums[kRows][kChunkGroups][2];
};

// The sum over the 16 lanes of a half of a warp.
PYVT_DEVICE float half_sum(float value) {
#pragma unroll
  for (int bits = 8; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

struct Code {
  int code;
  float scale;
};

// The code of the lane's value among the 32 of a group, in every lane of the warp.
PYVT_DEVICE Code quantize(float value) {
  const bool is_finite = !__any_sync(kAllLanes, !isfinite(value));
  const float largest = warp_max(fabsf(value));
  if (!is_finite) return {0, NAN};
  if (!(largest >= kTiny)) return {0, 0.0f};
  return {static_cast<int>(rintf(value * (127.0f / largest))), largest / 127.0f};
}

// A warp per group.
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_kernel(int8_t* codes, float* scales, Rows x, uint32_t num_groups) {
  const uint32_t index = blockIdx.x * (kQuantizeThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= num_groups) return;
  const int lane = threadIdx.x % kWarp;
  const auto of_row = static_cast<uint32_t>(x.length / kGroup);
  const Code found = quantize(x.at(index / of_row).get(index % of_row * int64_t{kGroup} + lane));
  codes[index * int64_t{kGroup} + lane] = static_cast<int8_t>(found.code);
  if (lane == 0) scales[index] = found.scale;
}

// Columns from `start` of the rows of a tile; those that are not there are zero.
template <bool kIsQ8, bool kHasSums, int kRows>
PYVT_DEVICE void stage(const MatrixProduct& p, const TileRows& tile, int start, int num_groups,
                       Staged<kIsQ8, kRows>* to) {
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < kRows * num_groups; i += kWarps) {
    const int r = i / num_groups, g = i % num_groups, column = start + g * kGroup + lane;
    const bool is_in = r < tile.count && column < p.weight.num_cols;
    const int64_t row = is_in ? p.schedule.row(tile.first + r) / p.schedule.per_x_row : 0;
    float value = 0.0f, scale = 1.0f;
    if (is_in && (!kIsQ8 || kRows == 1)) value = p.x.at(row).get(column);
    if constexpr (kIsQ8) {
      Code found = {0, 0.0f};
      if constexpr (kRows == 1) {
        found = quantize(value);
      } else if (is_in) {
        const int64_t at = row * p.weight.num_cols + column;
        found = {p.codes[at], p.scales[at / kGroup]};
      }
      to->codes[r][g][lane] = static_cast<int8_t>(found.code);
      if (lane == 0) to->scales[r][g] = found.scale;
      value = static_cast<float>(found.code);
      scale = found.scale;
    } else {
      to->x[r][g][lane] = value;
    }
    if constexpr (kHasSums) {
      const float sum = half_sum(value);
      if (lane % (kWarp / 2) == 0) to->sums[r][g][lane / (kWarp / 2)] = scale * sum;
    }
  }
}

// Adds the products of one group; halves of 16 columns where they have scales of their own.
template <DType kFormat, int kRows>
PYVT_DEVICE void add_group(const Group& group, const Staged<false, kRows>& x, int g,
                           float (&sums)[kRows]) {
  constexpr int kParts = Block<kFormat>::kHasHalves ? 2 : 1;
  float dots[kRows][kParts] = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    float codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = code_of<kFormat>(group.words[i], j);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 of_x = *reinterpret_cast<const float4*>(&x.x[r][g][4 * i]);
      float* dot = &dots[r][i * kParts / kWords];
      *dot += codes[0] * of_x.x + codes[1] * of_x.y + codes[2] * of_x.z + codes[3] * of_x.w;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) sums[r] += dots[r][part] * group.scale[part];
    if constexpr (Block<kFormat>::kHasMin) {
      sums[r] += group.min[0] * x.sums[r][g][0] + group.min[1] * x.sums[r][g][1];
    }
  }
}

template <DType kFormat, int kRows>
PYVT_DEVICE void add_group(const Group& group, const Staged<true, kRows>& x, int g,
                           float (&sums)[kRows]) {
  constexpr int kParts = Block<kFormat>::kHasHalves ? 2 : 1;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    int dots[kParts] = {};
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 codes = *reinterpret_cast<const uint4*>(&x.codes[r][g][4 * i]);
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        int* dot = &dots[i * kParts / kWords];
        *dot = __dp4a(static_cast<int>(group.words[i + j]), static_cast<int>(words[j]), *dot);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sums[r] += static_cast<float>(dots[part]) * (group.scale[part] * x.scales[r][g]);
    }
    if constexpr (Block<kFormat>::kHasMin) {
      sums[r] += group.min[0] * x.sums[r][g][0] + group.min[1] * x.sums[r][g][1];
    }
  }
}

// Eight columns of a plain weight at `k` of its row; beyond the last one zero.
template <typename T>
PYVT_DEVICE void load_plain(const T* row, int k, int num_cols, bool is_wide, float (&values)[8]) {
  if (is_wide) {
    if constexpr (sizeof(T) == 2) {
      const uint4 raw = *reinterpret_cast<const uint4*>(row + k);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        values[i] = load(T{static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2))});
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 raw = *reinterpret_cast<const float4*>(row + k + i);
        values[i] = raw.x;
        values[i + 1] = raw.y;
        values[i + 2] = raw.z;
        values[i + 3] = raw.w;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = k + i < num_cols ? load(row[k + i]) : 0.0f;
}

template <typename T, int kRows>
PYVT_DEVICE void add_plain(const MatrixProduct& p, const uint8_t* row, int start, int stop, int sub,
                           int lanes, const Staged<false, kRows>& x, float (&sums)[kRows]) {
  const int num_cols = p.weight.num_cols;
  for (int k = start + 8 * sub; k < stop && k < num_cols; k += 8 * lanes) {
    float values[8];
    load_plain(reinterpret_cast<const T*>(row), k, num_cols, p.weight.is_wide, values);
    const int g = (k - start) / kGroup, first = (k - start) % kGroup;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += values[i] * x.x[r][g][first + i];
    }
  }
}

template <DType kFormat>
struct PlainType {
  using Type = float;
};
template <>
struct PlainType<DType::kBF16> {
  using Type = bf16;
};
template <>
struct PlainType<DType::kF16> {
  using Type = f16;
};

// `lanes` of a warp have an output, a power of two.
template <DType kFormat, bool kIsQ8, int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOfProduct)
    few_rows_kernel(MatrixProduct p, int lanes) {
  using Format = Block<kFormat>;
  PYVT_SHARED(staged, Staged<kIsQ8, kRows>);
  const TileRows tile = p.schedule.tile(blockIdx.y);
  if (tile.count == 0) return;
  const int sub = threadIdx.x % lanes, num_cols = p.weight.num_cols;
  const int column = blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  const bool has_column = column < p.weight.num_rows;
  const uint8_t* row = p.weight.row(tile.matrix, has_column ? column : 0);
  float sums[kRows] = {};
  for (int start = 0; start < num_cols; start += kChunk) {
    const int stop = num_cols - start < kChunk ? num_cols : start + kChunk;
    const int num_groups = (stop - start + kGroup - 1) / kGroup;
    if (start > 0) __syncthreads();
    stage<kIsQ8, Format::kHasMin>(p, tile, start, num_groups, &staged);
    __syncthreads();
    if (!has_column) continue;
    if constexpr (Format::kIsPlain) {
      using T = typename PlainType<kFormat>::Type;
      add_plain<T>(p, row, start, stop, sub, lanes, staged, sums);
    } else {
      for (int g = sub; g < num_groups; g += lanes) {
        Group group;
        decode_row<kFormat>(row, start / kGroup + g, &group);
        add_group<kFormat>(group, staged, g, sums);
      }
    }
  }
  float own = 0.0f;  // of the row that the lane writes
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = sums[r];
    for (int bits = lanes / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    own = sub == r ? sum : own;
  }
  if (has_column && sub < tile.count) p.write(p.schedule.row(tile.first + sub), column, own);
}

template <DType kFormat, bool kIsQ8>
void run(Context& context, const char* op, const MatrixProduct& product) {
  // Lanes that all have a part of a row.
  const int pieces = product.weight.num_cols / (Block<kFormat>::kIsPlain ? 8 : kGroup);
  const int lanes = pieces > 16 ? 32 : pieces > 8 ? 16 : 8;
  const dim3 grid(blocks_for(product.weight.num_rows, kThreads / lanes),
                  static_cast<unsigned>(product.schedule.num_tiles));
  const auto launch = [&](auto kernel) {
    context.launch(op, kernel, grid, dim3(kThreads), 0, product, lanes);
  };
  if (product.schedule.height == 1) return launch(&few_rows_kernel<kFormat, kIsQ8, 1>);
  launch(&few_rows_kernel<kFormat, kIsQ8, kFewRows>);
}

}  // namespace

void quantize_rows(Context& context, const char* op, int8_t* codes, float* scales, const Rows& x) {
  const int64_t count = x.num_rows * (x.length / kGroup);
  PYVT_CHECK(op, count < int64_t{1} << 32, "x: expected fewer than 2^37 values");
  context.launch(op, &quantize_kernel, dim3(blocks_for(count, kQuantizeThreads / kWarp)),
                 dim3(kQuantizeThreads), 0, codes, scales, x, static_cast<uint32_t>(count));
}

void multiply_few_rows(Context& context, const char* op, const MatrixProduct& product) {
  switch (product.weight.dtype) {
#define PYVT_RUN(name)                                \
  case DType::name:                                   \
    if constexpr (Block<DType::name>::kHasCodes) {    \
      if (product.is_q8) {                            \
        run<DType::name, true>(context, op, product); \
        return;                                       \
      }                                               \
    }                                                 \
    run<DType::name, false>(context, op, product);    \
    return;
    PYVT_PRODUCT_FORMATS(PYVT_RUN)
#undef PYVT_RUN
    default:
      detail::fail(op, "weight: no kernel for ", dtype_name(product.weight.dtype));
  }
}

}  // namespace pyvt::cuda
