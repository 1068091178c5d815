// Norms over the last axis: rms_norm, fused_add_rms_norm, rms_norm_gated, l2_norm.
//
// contract  the references of pyvt/ops/norm.py; sums in f32, one rounding at the end
// layout    rows of any stride; out may be x, residual is apart from the rest
// work      a block per row, 8 elements a thread and more; the row is read twice, the second time
//           from L1
// estimate  bf16 row of H: 4·H bytes, 4 operations an element; at 4.3 TB/s H = 4096 takes 3.8 ns a
//           row, so a launch of few rows is latency: 2 to 3 us. Fused with the addition 8·H bytes
//           with a bf16 residual, 12·H with one in f32
// launches  1 each; a decode step has two for each layer and one for the last norm
// source    Zhang & Sennrich 2019, arXiv:1910.07467
#include "cuda/device/reduce.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kPerThread = 8;

enum class Norm { kRms, kAddRms, kGated, kL2 };

PYVT_DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// `other` is the residual of kAddRms and the gate of kGated.
template <typename T, Norm kNorm>
__global__ void __launch_bounds__(kMaxThreads)
    norm_kernel(Rows out, Rows x, Rows other, const void* weight, DType weight_type, float eps) {
  PYVT_SHARED(parts, float[kMaxThreads / kWarp]);
  const int64_t row = blockIdx.x;
  const T* from = static_cast<const T*>(x.data) + x.row(row);
  const Row to = out.at(row), second = other.at(row);
  float square = 0.0f;
  for (int64_t i = threadIdx.x; i < x.length; i += blockDim.x) {
    float value = load(from[i * x.stride]);
    if constexpr (kNorm == Norm::kAddRms) {
      second.set(i, value + second.get(i));
      value = second.get(i);
    }
    square += value * value;
  }
  square = block_sum(square, parts);
  const float mean = kNorm == Norm::kL2 ? square : square / static_cast<float>(x.length);
  const float factor = 1.0f / sqrtf(mean + eps);
  for (int64_t i = threadIdx.x; i < x.length; i += blockDim.x) {
    float value = kNorm == Norm::kAddRms ? second.get(i) : load(from[i * x.stride]);
    value *= factor;
    if constexpr (kNorm != Norm::kL2) value *= load_any(weight, weight_type, i);
    if constexpr (kNorm == Norm::kGated) value *= silu(second.get(i));
    to.set(i, value);
  }
}

template <Norm kNorm>
void run(const char* op, Context& context, const Rows& out, const Rows& x, const Rows& other,
         const TensorView& weight, double eps) {
  if constexpr (kNorm != Norm::kL2) {
    PYVT_CHECK(op, weight.rank == 1 && weight.shape[0] == x.length && weight.is_dense(),
               "weight: expected ", x.length, " values side by side");
    PYVT_CHECK(op, is_float(weight.dtype), "weight: expected a float");
  }
  if (x.length == 0) return;
  const unsigned threads = threads_for(x.length, kPerThread, kMaxThreads);
  with_float(x.dtype, [&](auto type) {
    context.launch(op, &norm_kernel<decltype(type), kNorm>, dim3(blocks_for(x.num_rows, 1)),
                   dim3(threads), 0, out, x, other, static_cast<const void*>(weight.data),
                   weight.dtype, static_cast<float>(eps));
  });
}

}  // namespace

void rms_norm(Context& context, TensorView out, TensorView x, TensorView weight, double eps) {
  const char* op = "rms_norm";
  const Rows from = rows_of(op, "x", x);
  run<Norm::kRms>(op, context, rows_like(op, "out", out, from), from, {}, weight, eps);
}

void fused_add_rms_norm(Context& context, TensorView out, TensorView residual, TensorView x,
                        TensorView weight, double eps) {
  const char* op = "fused_add_rms_norm";
  const Rows from = rows_of(op, "x", x);
  const Rows sums = rows_like(op, "residual", residual, from);
  run<Norm::kAddRms>(op, context, rows_like(op, "out", out, from), from, sums, weight, eps);
}

void rms_norm_gated(Context& context, TensorView out, TensorView x, TensorView gate,
                    TensorView weight, double eps) {
  const char* op = "rms_norm_gated";
  const Rows from = rows_of(op, "x", x);
  const Rows gates = rows_like(op, "gate", gate, from);
  run<Norm::kGated>(op, context, rows_like(op, "out", out, from), from, gates, weight, eps);
}

void l2_norm(Context& context, TensorView out, TensorView x, double eps) {
  const char* op = "l2_norm";
  const Rows from = rows_of(op, "x", x);
  run<Norm::kL2>(op, context, rows_like(op, "out", out, from), from, {}, {}, eps);
}

}  // namespace pyvt::cuda
