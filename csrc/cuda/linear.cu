// linear: products with a plain weight matrix, out [M, N] = x [M, K] · weightᵀ + bias.
//
// contract  sums in f32, one rounding; x, weight and bias each any float
// layout    rows of x, weight and out side by side, any distance apart
// work      up to 8 rows of x: a warp per output column, lanes over K in 16-byte pieces. More rows:
//           cuBLASLt where the dtypes are one; else tiles of 64 × 64 by 256 threads, 4 × 4 each
// estimate  few rows: the weight is read once, 2·N·K bytes in bf16; 4096 × 4096 takes 7.8 us at
//           4.3 TB/s. Many rows: 2·M·N·K operations, 4096³ in bf16 take 174 us at 790 TFLOP/s by
//           cuBLASLt; the tiles are for dtypes that nobody decodes in
// launches  1, and 1 behind cuBLASLt for a bias of another dtype
#include "cuda/cublas_lt.h"
#include "cuda/device/reduce.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxFewRows = 8;
constexpr int kWarps = 4;
constexpr int kTile = 64, kDepth = 16, kThreads = 256, kOwn = 4;

struct Vector {
  const void* data;
  DType dtype;
  int64_t stride;

  PYVT_DEVICE float get(int64_t i) const {
    return data == nullptr ? 0.0f : load_any(data, dtype, i * stride);
  }
};

// 8 elements side by side; `data` is 16-byte aligned where they are narrow.
template <typename T>
PYVT_DEVICE void load8(const T* data, float (&values)[8]) {
  if constexpr (sizeof(T) == 2) {
    const uint4 raw = *reinterpret_cast<const uint4*>(data);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = load(T{static_cast<uint16_t>(words[i] & 0xffff)});
      values[2 * i + 1] = load(T{static_cast<uint16_t>(words[i] >> 16)});
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 raw = *reinterpret_cast<const float4*>(data + i);
      values[i] = raw.x;
      values[i + 1] = raw.y;
      values[i + 2] = raw.z;
      values[i + 3] = raw.w;
    }
  }
}

// kRows rows of x by one column each warp. `is_wide`: K and addresses allow loads of 8 elements.
template <typename T, int kRows>
__global__ void __launch_bounds__(kWarps* kWarp)
    few_rows_kernel(Rows out, Rows x, Rows weight, Vector bias, bool is_wide) {
  const int64_t column = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (column >= out.length) return;
  const int lane = threadIdx.x % kWarp;
  const T* w = static_cast<const T*>(weight.data) + weight.row(column);
  float sums[kRows] = {};
  void* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = x.at(r).data;
  if (is_wide) {
    for (int64_t k = lane * 8; k < x.length; k += kWarp * 8) {
      float a[8];
      load8(w + k, a);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Row row{rows[r], x.dtype, x.stride};
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[r] += a[i] * row.get(k + i);
      }
    }
  } else {
    for (int64_t k = lane; k < x.length; k += kWarp) {
      const float a = load(w[k * weight.stride]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] += a * Row{rows[r], x.dtype, x.stride}.get(k);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == r) out.at(r).set(column, sum + bias.get(column));
  }
}

__global__ void __launch_bounds__(kThreads)
    tile_kernel(Rows out, Rows x, Rows weight, Vector bias) {
  PYVT_SHARED(a, float[kDepth][kTile + 1]);
  PYVT_SHARED(b, float[kDepth][kTile + 1]);
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int own_row = threadIdx.x / (kTile / kOwn), own_column = threadIdx.x % (kTile / kOwn);
  float sums[kOwn][kOwn] = {};
  for (int64_t k0 = 0; k0 < x.length; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int k = i % kDepth, r = i / kDepth;
      const bool is_in = k0 + k < x.length;
      const bool has_row = is_in && first_row + r < x.num_rows;
      const bool has_column = is_in && first_column + r < weight.num_rows;
      a[k][r] = has_row ? x.at(first_row + r).get(k0 + k) : 0.0f;
      b[k][r] = has_column ? weight.at(first_column + r).get(k0 + k) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
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
      if (row < out.num_rows && column < out.length) {
        out.at(row).set(column, sums[i][j] + bias.get(column));
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) bias_kernel(Rows out, Vector bias) {
  const Row row = out.at(blockIdx.x);
  for (int64_t i = threadIdx.x; i < out.length; i += blockDim.x)
    row.set(i, row.get(i) + bias.get(i));
}

bool is_aligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

template <typename T>
void few_rows(Context& context, const Rows& out, const Rows& x, const Rows& weight,
              const Vector& bias) {
  const int64_t item = sizeof(T);
  const bool is_wide = weight.stride == 1 && x.length % 8 == 0 &&
                       is_aligned(weight.data, weight.inner_stride * item) &&
                       is_aligned(nullptr, weight.outer_stride * item);
  const dim3 grid(blocks_for(out.length, kWarps)), threads(kWarps * kWarp);
  const auto run = [&](auto kernel) {
    context.launch("linear", kernel, grid, threads, 0, out, x, weight, bias, is_wide);
  };
  switch (x.num_rows) {
    case 1:
      return run(&few_rows_kernel<T, 1>);
    case 2:
      return run(&few_rows_kernel<T, 2>);
    case 3:
      return run(&few_rows_kernel<T, 3>);
    case 4:
      return run(&few_rows_kernel<T, 4>);
    default: {
      // Four rows, then the rest.
      Rows first_out = out, first_x = x, rest_out = out, rest_x = x;
      first_out.num_rows = first_x.num_rows = 4;
      rest_out.num_rows = rest_x.num_rows = x.num_rows - 4;
      const auto skip = [](Rows* rows) {
        const int64_t bytes = rows->dtype == DType::kF32 ? 4 : 2;
        rows->data = static_cast<char*>(rows->data) + 4 * rows->inner_stride * bytes;
      };
      skip(&rest_out);
      skip(&rest_x);
      few_rows<T>(context, first_out, first_x, weight, bias);
      few_rows<T>(context, rest_out, rest_x, weight, bias);
    }
  }
}

// Rows a constant distance apart, elements side by side.
bool is_plain(const Rows& rows) {
  return rows.stride == 1 && rows.outer_stride == 0 &&
         (rows.num_rows == 1 || rows.inner_stride >= rows.length);
}

bool by_cublas(Context& context, const Rows& out, const Rows& x, const Rows& weight,
               const Vector& bias) {
  if (x.dtype != weight.dtype || x.dtype != out.dtype) return false;
  if (!is_plain(out) || !is_plain(x) || !is_plain(weight)) return false;
  const auto stride = [](const Rows& rows) {
    return rows.num_rows == 1 ? rows.length : rows.inner_stride;
  };
  const bool is_fused = bias.data != nullptr && bias.dtype == out.dtype && bias.stride == 1;
  const Product product{out.data,   x.data,         weight.data, is_fused ? bias.data : nullptr,
                        x.num_rows, out.length,     x.length,    stride(out),
                        stride(x),  stride(weight), x.dtype};
  if (!cublas_product(context, product)) return false;
  if (bias.data != nullptr && !is_fused) {
    context.launch("linear", &bias_kernel, dim3(blocks_for(out.num_rows, 1)), dim3(kThreads), 0,
                   out, bias);
  }
  return true;
}

}  // namespace

void linear(Context& context, TensorView out, TensorView x, TensorView weight, TensorView bias) {
  const char* op = "linear";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Rows w = rows_of(op, "weight", weight);
  PYVT_CHECK(op, weight.rank == 2 && w.length == from.length && w.num_rows == to.length,
             "weight: expected [", to.length, ", ", from.length, "]");
  PYVT_CHECK(op, to.num_rows == from.num_rows, "out: expected the rows of x");
  Vector added{nullptr, DType::kF32, 0};
  if (bias.has_value()) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == to.length && is_float(bias.dtype),
               "bias: expected floats [", to.length, "]");
    added = {bias.data, bias.dtype, bias.stride[0]};
  }
  if (to.num_rows == 0 || to.length == 0) return;
  if (to.num_rows <= kMaxFewRows && from.outer_stride == 0 && to.outer_stride == 0) {
    with_float(w.dtype, [&](auto type) { few_rows<decltype(type)>(context, to, from, w, added); });
    return;
  }
  if (from.length > 0 && by_cublas(context, to, from, w, added)) return;
  context.launch(op, &tile_kernel,
                 dim3(blocks_for(to.length, kTile), blocks_for(to.num_rows, kTile)), dim3(kThreads),
                 0, to, from, w, added);
}

}  // namespace pyvt::cuda
