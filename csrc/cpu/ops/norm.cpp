// Launchers of the norm family: rows over threads.
#include <cmath>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/rows.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// A row of this many elements is worth a thread's attention; shorter ones go together.
constexpr int64_t kGrainElements = 8192;
// Scratch: the caller's weight in f32, and a thread's row.
constexpr int kWeightSlot = 0, kRowSlot = 1;

int64_t grain_of(int64_t length) { return kGrainElements / (length > 0 ? length : 1) + 1; }

}  // namespace

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps) {
  const char* op = "rms_norm";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Rows scale = rows_of(op, "weight", weight);
  PYVT_CHECK(op, to.num_rows == from.num_rows && to.length == from.length, "out: wrong shape");
  PYVT_CHECK(op, scale.num_rows == 1 && scale.length == from.length, "weight: wrong shape");
  const auto kernel = kernels().rms_norm[float_index(op, x.dtype)][float_index(op, weight.dtype)]
                                        [float_index(op, out.dtype)];
  parallel_for(from.num_rows, grain_of(from.length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernel(to.row(i), from.row(i), scale.data, static_cast<float>(eps), from.length);
    }
  });
}

void fused_add_rms_norm(TensorView out, TensorView residual, TensorView x, TensorView weight,
                        double eps) {
  const char* op = "fused_add_rms_norm";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Rows sums = rows_of(op, "residual", residual), scale = rows_of(op, "weight", weight);
  PYVT_CHECK(op, to.num_rows == from.num_rows && to.length == from.length, "out: wrong shape");
  PYVT_CHECK(op, sums.num_rows == from.num_rows && sums.length == from.length,
             "residual: wrong shape");
  PYVT_CHECK(op, scale.num_rows == 1 && scale.length == from.length, "weight: wrong shape");
  const KernelTable& table = kernels();
  const int sum_type = float_index(op, residual.dtype);
  const auto add = table.add_rows[float_index(op, x.dtype)][sum_type];
  const auto norm =
      table.rms_norm[sum_type][float_index(op, weight.dtype)][float_index(op, out.dtype)];
  parallel_for(from.num_rows, grain_of(from.length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      add(sums.row(i), from.row(i), from.length);
      norm(to.row(i), sums.row(i), scale.data, static_cast<float>(eps), from.length);
    }
  });
}

void rms_norm_gated(TensorView out, TensorView x, TensorView gate, TensorView weight, double eps) {
  const char* op = "rms_norm_gated";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Rows gates = rows_of(op, "gate", gate), scale = rows_of(op, "weight", weight);
  for (const Rows* rows : {&to, &gates}) {
    PYVT_CHECK(op, rows->num_rows == from.num_rows && rows->length == from.length,
               "x, gate, out: expected one shape");
  }
  PYVT_CHECK(op, scale.num_rows == 1 && scale.length == from.length, "weight: wrong shape");
  const KernelTable& table = kernels();
  const auto widen = table.cast[float_index(op, x.dtype)][0];
  const auto kernel = table.norm_gated[float_index(op, gate.dtype)][float_index(op, out.dtype)];
  float* weights = scratch<float>(kWeightSlot, from.length);
  table.cast[float_index(op, weight.dtype)][0](weights, scale.data, 0, from.length);
  parallel_for(from.num_rows, grain_of(from.length), [&](int64_t begin, int64_t end) {
    float* row = scratch<float>(kRowSlot, from.length);
    for (int64_t i = begin; i < end; ++i) {
      widen(row, from.row(i), 0, from.length);
      kernel(to.row(i), row, gates.row(i), weights, static_cast<float>(eps), from.length);
    }
  });
}

void l2_norm(TensorView out, TensorView x, double eps) {
  const char* op = "l2_norm";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  PYVT_CHECK(op, to.num_rows == from.num_rows && to.length == from.length, "out: wrong shape");
  const KernelTable& table = kernels();
  const auto widen = table.cast[float_index(op, x.dtype)][0];
  const auto round = table.cast[0][float_index(op, out.dtype)];
  parallel_for(from.num_rows, grain_of(from.length), [&](int64_t begin, int64_t end) {
    float* row = scratch<float>(kRowSlot, from.length);
    for (int64_t i = begin; i < end; ++i) {
      widen(row, from.row(i), 0, from.length);
      const float square = table.dot(row, row, from.length);
      table.scale[0](row, row, 1.0f / std::sqrt(square + static_cast<float>(eps)), from.length);
      round(to.row(i), row, 0, from.length);
    }
  });
}

}  // namespace pyvt::cpu
