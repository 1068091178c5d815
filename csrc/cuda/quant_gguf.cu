// Weights in packed blocks: quant_linear, quant_embedding, quantize_q8_rows.
//
// contract  the references of pyvt/ops/quant_gguf.py; act=none: f32 products of decoded values;
//           act=q8: rows of x as int8 with a scale for 32 columns, whole-number dots of 16
// layout    rows of blocks as in a file, at any address; x and out rows of any stride
// work      up to 4 rows of x: a warp per output, a lane per 32 columns, four rows of x to one
//           decoded group. More rows: tiles of 64 × 64, the weight decoded once for 64 rows
// estimate  few rows: the weight is read once. Q4_K has 4.5 bits: 4096 × 4096 are 9.4 MB, 2.2 us at
//           4.3 TB/s; decoding takes about 4 operations a weight, so f32 products come near the
//           limit of 30 Tops/s, int8 dots are a third of it. Many rows: 2·M·N·K operations at
//           60 TFLOP/s; tensor cores would take a tenth
// launches  1; 2 with act=q8
// source    ggml ggml_mul_mat, ggml_get_rows
#include "cuda/block_matrix.h"
#include "cuda/device/index.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kWarps = 4, kFewRows = 4;
constexpr int kTile = 64, kThreads = 256, kOwn = 4;
constexpr float kTiny = 0x1p-100f;

// Rows of activations, as they are or in int8.
struct Activations {
  Rows rows;
  const int8_t* codes = nullptr;  // [M][K]
  const float* scales = nullptr;  // [M][K / 32]

  PYVT_DEVICE float get(int64_t row, int column) const {
    if (codes == nullptr) return rows.at(row).get(column);
    const int64_t at = row * rows.length + column;
    return static_cast<float>(codes[at]) * scales[at / kGroup];
  }
};

struct Bias {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;

  PYVT_DEVICE float get(int64_t i) const {
    return data == nullptr ? 0.0f : load_any(data, dtype, i * stride);
  }
};

// A thread per group of 32 columns.
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(int8_t* codes, float* scales, Rows x, int64_t num_groups) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t of_row = x.length / kGroup;
  if (index >= num_groups) return;
  const Row row = x.at(static_cast<uint32_t>(index) / static_cast<uint32_t>(of_row));
  const int64_t first = static_cast<uint32_t>(index) % static_cast<uint32_t>(of_row) * kGroup;
  float largest = 0.0f;
  bool is_finite = true;
  for (int i = 0; i < kGroup; ++i) {
    const float value = fabsf(row.get(first + i));
    is_finite = is_finite && isfinite(value);
    largest = fmaxf(largest, value);
  }
  const bool is_used = is_finite && largest >= kTiny;
  const float inverse = is_used ? 127.0f / largest : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float step = is_used ? row.get(first + i) * inverse : 0.0f;
    codes[index * kGroup + i] = static_cast<int8_t>(rintf(step));
  }
  scales[index] = !is_finite ? NAN : is_used ? largest / 127.0f : 0.0f;
}

// Adds the products of one group of int8 codes with kFewRows rows.
PYVT_DEVICE void add_dots(const Group& group, const Activations& x, int g, float* sums) {
  const int64_t of_row = x.rows.length / kGroup;
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    if (r >= x.rows.num_rows) break;
    const int64_t at = r * of_row + g;
    const int* codes = reinterpret_cast<const int*>(x.codes + at * kGroup);
    const float scale = x.scales[at];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int dot = 0, total = 0;
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) {
        const int word = codes[h * kWords / 2 + i];
        dot = __dp4a(group.words[h * kWords / 2 + i], word, dot);
        total = __dp4a(0x01010101, word, total);
      }
      sums[r] += static_cast<float>(dot) * (group.scale[h] * scale);
      sums[r] += group.min[h] * (scale * static_cast<float>(total));
    }
  }
}

// kFormat of kF32 decodes any format.
template <DType kFormat>
__global__ void __launch_bounds__(kWarps* kWarp)
    few_rows_kernel(Rows out, Activations x, Blocks weight, Bias bias) {
  const int64_t column = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (column >= weight.num_rows) return;
  if constexpr (kFormat != DType::kF32) weight.dtype = kFormat;
  const int lane = threadIdx.x % kWarp;
  float sums[kFewRows] = {};
  for (int g = lane; g < weight.num_groups(); g += kWarp) {
    if (x.codes != nullptr) {
      Group group;
      weight.codes(column, g, &group);
      add_dots(group, x, g, sums);
      continue;
    }
    float values[kGroup];
    weight.values(column, g, values);
#pragma unroll
    for (int r = 0; r < kFewRows; ++r) {
      if (r >= x.rows.num_rows) break;
      const Row row = x.rows.at(r);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) sums[r] += values[i] * row.get(g * kGroup + i);
    }
  }
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    if (r >= out.num_rows) break;
    const float sum = warp_sum(sums[r]);
    if (lane == r) out.at(r).set(column, sum + bias.get(column));
  }
}

__global__ void __launch_bounds__(kThreads)
    tile_kernel(Rows out, Activations x, Blocks weight, Bias bias) {
  PYVT_SHARED(a, float[kGroup][kTile + 1]);
  PYVT_SHARED(b, float[kGroup][kTile + 1]);
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int own_row = threadIdx.x / (kTile / kOwn), own_column = threadIdx.x % (kTile / kOwn);
  float sums[kOwn][kOwn] = {};
  for (int g = 0; g < weight.num_groups(); ++g) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kTile * kGroup; i += kThreads) {
      const int k = i % kGroup, r = i / kGroup;
      a[k][r] = first_row + r < out.num_rows ? x.get(first_row + r, g * kGroup + k) : 0.0f;
    }
    if (threadIdx.x < kTile) {
      const int r = threadIdx.x;
      float values[kGroup] = {};
      if (first_column + r < weight.num_rows) weight.values(first_column + r, g, values);
#pragma unroll
      for (int k = 0; k < kGroup; ++k) b[k][r] = values[k];
    }
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kGroup; ++k) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float left = a[k][own_row + i * (kTile / kOwn)];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] += left * b[k][own_column + j * (kTile / kOwn)];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t row = first_row + own_row + i * (kTile / kOwn);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int64_t column = first_column + own_column + j * (kTile / kOwn);
      if (row < out.num_rows && column < weight.num_rows) {
        out.at(row).set(column, sums[i][j] + bias.get(column));
      }
    }
  }
}

// A block per token, a thread per group.
__global__ void __launch_bounds__(kThreads) embedding_kernel(Rows out, Index ids, Blocks weight) {
  const Row to = out.at(blockIdx.x);
  const int64_t row = ids[blockIdx.x];
  for (int g = threadIdx.x; g < weight.num_groups(); g += blockDim.x) {
    float values[kGroup];
    weight.values(row, g, values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) to.set(g * kGroup + i, values[i]);
  }
}

void quantize(const char* op, Context& context, int8_t* codes, float* scales, const Rows& x) {
  const int64_t count = x.num_rows * (x.length / kGroup);
  context.launch(op, &quantize_kernel, dim3(blocks_for(count, kThreads)), dim3(kThreads), 0, codes,
                 scales, x, count);
}

void multiply(Context& context, const Rows& out, const Activations& x, const Blocks& weight,
              const Bias& bias) {
  const char* op = "quant_linear";
  if (out.num_rows > kFewRows) {
    const dim3 grid(blocks_for(weight.num_rows, kTile), blocks_for(out.num_rows, kTile));
    context.launch(op, &tile_kernel, grid, dim3(kThreads), 0, out, x, weight, bias);
    return;
  }
  const auto run = [&](auto kernel) {
    context.launch(op, kernel, dim3(blocks_for(weight.num_rows, kWarps)), dim3(kWarps * kWarp), 0,
                   out, x, weight, bias);
  };
  switch (weight.dtype) {
    case DType::kQ8_0:
      return run(&few_rows_kernel<DType::kQ8_0>);
    case DType::kQ4_0:
      return run(&few_rows_kernel<DType::kQ4_0>);
    case DType::kQ4_K:
      return run(&few_rows_kernel<DType::kQ4_K>);
    case DType::kQ6_K:
      return run(&few_rows_kernel<DType::kQ6_K>);
    default:
      return run(&few_rows_kernel<DType::kF32>);
  }
}

}  // namespace

void quantize_q8_rows(Context& context, TensorView codes, TensorView scales, TensorView x) {
  const char* op = "quantize_q8_rows";
  const Rows rows = rows_of(op, "x", x);
  PYVT_CHECK(op, rows.length % kGroup == 0, "x: expected a multiple of 32 columns");
  PYVT_CHECK(op,
             codes.dtype == DType::kI8 && codes.is_dense() && codes.size() == x.size() &&
                 scales.dtype == DType::kF32 && scales.is_dense() &&
                 scales.size() * kGroup == x.size(),
             "codes, scales: expected i8 and f32, side by side");
  quantize(op, context, codes.as<int8_t>(), scales.as<float>(), rows);
}

void quant_linear(Context& context, TensorView out, TensorView x, BlockMatrix weight,
                  TensorView bias, std::string act) {
  const char* op = "quant_linear";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Blocks blocks = blocks_of(op, weight);
  PYVT_CHECK(op,
             blocks.num_rows == to.length && blocks.num_cols == from.length &&
                 to.num_rows == from.num_rows,
             "weight: expected [", to.length, ", ", from.length, "]");
  Bias added;
  if (bias.has_value()) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == to.length && is_float(bias.dtype),
               "bias: expected floats [", to.length, "]");
    added = {bias.data, bias.dtype, bias.stride[0]};
  }
  if (to.num_rows == 0 || to.length == 0) return;
  Activations activations;
  activations.rows = from;
  std::shared_ptr<Buffer> codes, scales;
  if (act == "q8") {
    const size_t size = static_cast<size_t>(from.num_rows * from.length);
    codes = context.take(size);
    scales = context.take(size / kGroup * sizeof(float));
    activations.codes = static_cast<int8_t*>(codes->data());
    activations.scales = static_cast<float*>(scales->data());
    quantize(op, context, static_cast<int8_t*>(codes->data()), static_cast<float*>(scales->data()),
             from);
  }
  multiply(context, to, activations, blocks, added);
}

void quant_embedding(Context& context, TensorView out, TensorView input_ids, BlockMatrix weight) {
  const char* op = "quant_embedding";
  const Rows to = rows_of(op, "out", out);
  const Blocks blocks = blocks_of(op, weight);
  PYVT_CHECK(op, blocks.num_cols == to.length, "weight: expected rows of ", to.length);
  const Index ids = index_of(op, "input_ids", input_ids, to.num_rows);
  context.launch(op, &embedding_kernel, dim3(blocks_for(to.num_rows, 1)),
                 dim3(threads_for(blocks.num_cols / kGroup, 1, kThreads)), 0, to, ids, blocks);
}

}  // namespace pyvt::cuda
