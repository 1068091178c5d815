// Arithmetic and activations on each element, gated products, columns in another order.
//
// contract  the references of pyvt/ops/elementwise.py and activation.py; f32, one rounding
// layout    rows of any stride; tensors without gaps are one long row; out may be an input
// work      a thread has 8 elements of a row, a block apart, so that a warp reads side by side
// estimate  bf16: 2 bytes read for each input and 2 written; silu_and_mul of [T, 2·I] moves 6·T·I
//           bytes, I = 9728 and T = 4096 take 56 us at 4.3 TB/s; a decode step is latency, 2 us;
//           up to 20 operations an element, 0.8 GFLOP there, 13 us at the 60 TFLOP/s of f32
// launches  1 each
// source    Shazeer 2020, arXiv:2002.05202; Hendrycks & Gimpel 2016, arXiv:1606.08415
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPerThread = 8;

PYVT_DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
PYVT_DEVICE float silu_of(float x) { return x / (1.0f + expf(-x)); }
PYVT_DEVICE float gelu_of(float x) {
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * inner));  // (1 + tanh(y)) / 2 without its cancellation
}

// What is computed of x, y and a number.
struct Add {
  PYVT_DEVICE static float of(float x, float y, float) { return x + y; }
};
struct Mul {
  PYVT_DEVICE static float of(float x, float y, float) { return x * y; }
};
struct Scale {
  PYVT_DEVICE static float of(float x, float, float factor) { return x * factor; }
};
struct Copy {
  PYVT_DEVICE static float of(float x, float, float) { return x; }
};
struct SoftCap {
  PYVT_DEVICE static float of(float x, float, float cap) { return tanhf(x / cap) * cap; }
};
struct Relu {
  // NaN stays NaN.
  PYVT_DEVICE static float of(float x, float, float) { return x < 0.0f ? 0.0f : x; }
};
struct Sigmoid {
  PYVT_DEVICE static float of(float x, float, float) { return sigmoid_of(x); }
};
struct Silu {
  PYVT_DEVICE static float of(float x, float, float) { return silu_of(x); }
};
struct Gelu {
  PYVT_DEVICE static float of(float x, float, float) { return gelu_of(x); }
};
struct SiluMul {
  PYVT_DEVICE static float of(float x, float y, float) { return silu_of(x) * y; }
};
struct GeluMul {
  PYVT_DEVICE static float of(float x, float y, float) { return gelu_of(x) * y; }
};
struct SigmoidGate {
  PYVT_DEVICE static float of(float x, float y, float) { return x * sigmoid_of(y); }
};

template <typename F, bool kHasY>
__global__ void __launch_bounds__(kMaxThreads)
    map_kernel(Rows out, Rows x, Rows y, float number, unsigned chunks) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t first = int64_t{blockIdx.x % chunks} * blockDim.x * kPerThread + threadIdx.x;
  const Row to = out.at(row), from = x.at(row), other = y.at(row);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t column = first + int64_t{i} * blockDim.x;
    if (column >= x.length) break;
    to.set(column, F::of(from.get(column), kHasY ? other.get(column) : 0.0f, number));
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    take_columns_kernel(Rows out, Rows x, const void* columns, int64_t stride, bool is_wide) {
  const Row to = out.at(blockIdx.x), from = x.at(blockIdx.x);
  for (int64_t i = threadIdx.x; i < out.length; i += blockDim.x) {
    const int64_t column = is_wide ? static_cast<const int64_t*>(columns)[i * stride]
                                   : static_cast<const int32_t*>(columns)[i * stride];
    to.set(i, from.get(column));
  }
}

// A tensor without gaps as one row.
bool is_gapless(const Rows& rows) {
  return rows.stride == 1 && rows.outer_stride == 0 &&
         (rows.num_rows == 1 ||
          (rows.num_inner == rows.num_rows && rows.inner_stride == rows.length));
}

template <typename F, bool kHasY>
void map(const char* op, Context& context, Rows out, Rows x, Rows y, double number) {
  if (is_gapless(out) && is_gapless(x) && (!kHasY || is_gapless(y))) {
    for (Rows* rows : {&out, &x, &y}) {
      rows->length *= rows->num_rows;
      rows->num_rows = rows->num_inner = 1;
    }
  }
  if (x.length == 0) return;
  const unsigned threads = threads_for(x.length, kPerThread, kMaxThreads);
  const unsigned chunks = blocks_for(x.length, int64_t{threads} * kPerThread);
  context.launch(op, &map_kernel<F, kHasY>, dim3(static_cast<unsigned>(x.num_rows) * chunks),
                 dim3(threads), 0, out, x, y, static_cast<float>(number), chunks);
}

template <typename F>
void map_one(const char* op, Context& context, const TensorView& out, const TensorView& x,
             double number = 0.0) {
  const Rows from = rows_of(op, "x", x);
  map<F, false>(op, context, rows_like(op, "out", out, from), from, {}, number);
}

template <typename F>
void map_two(const char* op, Context& context, const TensorView& out, const TensorView& x,
             const TensorView& y) {
  const Rows from = rows_of(op, "x", x);
  map<F, true>(op, context, rows_like(op, "out", out, from), from, rows_like(op, "y", y, from), 0);
}

// The halves of the last axis, gate and up.
template <typename F>
void map_halves(const char* op, Context& context, const TensorView& out, const TensorView& x) {
  Rows gate = rows_of(op, "x", x);
  PYVT_CHECK(op, gate.length % 2 == 0, "x: expected an even last dim");
  gate.length /= 2;
  Rows up = gate;
  const int64_t item = x.dtype == DType::kF32 ? 4 : 2;
  up.data = static_cast<char*>(up.data) + gate.length * gate.stride * item;
  map<F, true>(op, context, rows_like(op, "out", out, gate), gate, up, 0);
}

}  // namespace

void add(Context& context, TensorView out, TensorView x, TensorView y) {
  map_two<Add>("add", context, out, x, y);
}
void mul(Context& context, TensorView out, TensorView x, TensorView y) {
  map_two<Mul>("mul", context, out, x, y);
}
void scale(Context& context, TensorView out, TensorView x, double factor) {
  map_one<Scale>("scale", context, out, x, factor);
}
void cast(Context& context, TensorView out, TensorView x) {
  map_one<Copy>("cast", context, out, x);
}
void soft_cap(Context& context, TensorView out, TensorView x, double cap) {
  map_one<SoftCap>("soft_cap", context, out, x, cap);
}
void relu(Context& context, TensorView out, TensorView x) {
  map_one<Relu>("relu", context, out, x);
}
void sigmoid(Context& context, TensorView out, TensorView x) {
  map_one<Sigmoid>("sigmoid", context, out, x);
}
void silu(Context& context, TensorView out, TensorView x) {
  map_one<Silu>("silu", context, out, x);
}
void gelu(Context& context, TensorView out, TensorView x) {
  map_one<Gelu>("gelu", context, out, x);
}
void silu_and_mul(Context& context, TensorView out, TensorView x) {
  map_halves<SiluMul>("silu_and_mul", context, out, x);
}
void gelu_and_mul(Context& context, TensorView out, TensorView x) {
  map_halves<GeluMul>("gelu_and_mul", context, out, x);
}
void sigmoid_gate(Context& context, TensorView out, TensorView x, TensorView gate) {
  map_two<SigmoidGate>("sigmoid_gate", context, out, x, gate);
}

void take_columns(Context& context, TensorView out, TensorView x, TensorView columns) {
  const char* op = "take_columns";
  const Rows from = rows_of(op, "x", x), to = rows_of(op, "out", out);
  PYVT_CHECK(op, from.num_rows == to.num_rows && columns.rank == 1 && columns.shape[0] == to.length,
             "columns: expected one for each of out");
  PYVT_CHECK(op, columns.dtype == DType::kI64 || columns.dtype == DType::kI32,
             "columns: expected i32 or i64");
  if (to.length == 0) return;
  context.launch(op, &take_columns_kernel, dim3(blocks_for(to.num_rows, 1)),
                 dim3(threads_for(to.length, kPerThread, kMaxThreads)), 0, to, from,
                 static_cast<const void*>(columns.data), columns.stride[0],
                 columns.dtype == DType::kI64);
}

}  // namespace pyvt::cuda
