// Launcher of merge_attn_states: rows of heads over threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/rows.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGrainElements = 8192;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float* place(const TensorView& lse, int64_t row) {
  const int64_t num_heads = lse.shape[1];
  return lse.as<float>() + row / num_heads * lse.stride[0] + row % num_heads * lse.stride[1];
}

}  // namespace

void merge_attn_states(TensorView out, TensorView lse, TensorView out_a, TensorView lse_a,
                       TensorView out_b, TensorView lse_b) {
  const char* op = "merge_attn_states";
  const Rows to = rows_of(op, "out", out);
  const Rows a = rows_of(op, "out_a", out_a), b = rows_of(op, "out_b", out_b);
  for (const TensorView* part : {&out, &out_a, &out_b}) {
    PYVT_CHECK(op,
               part->rank == 3 && part->dtype == out.dtype &&
                   std::equal(out.shape, out.shape + 3, part->shape),
               "out_a, out_b: expected the shape and dtype of out");
  }
  for (const TensorView* part : {&lse, &lse_a, &lse_b}) {
    PYVT_CHECK(op,
               (part == &lse && !lse.has_value()) ||
                   (part->rank == 2 && part->dtype == DType::kF32 &&
                    part->shape[0] == out.shape[0] && part->shape[1] == out.shape[1]),
               "lse: expected dims [T, N] of f32");
  }
  const auto kernel = kernels().merge_row[float_index(op, out.dtype)];
  parallel_for(to.num_rows, kGrainElements / (to.length + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // +inf stands for an empty set too.
      const float of_a = *place(lse_a, i) == kInfinity ? -kInfinity : *place(lse_a, i);
      const float of_b = *place(lse_b, i) == kInfinity ? -kInfinity : *place(lse_b, i);
      const float top = std::isnan(of_a) || of_a > of_b ? of_a : of_b;
      const float shift = top == -kInfinity ? 0.0f : top;
      const float weight_a = std::exp(of_a - shift), weight_b = std::exp(of_b - shift);
      const float total = weight_a + weight_b;
      const bool is_empty = total == 0;
      const float divisor = is_empty ? 1.0f : total;
      kernel(to.row(i), a.row(i), b.row(i), weight_a / divisor, weight_b / divisor, to.length);
      if (lse.has_value()) *place(lse, i) = is_empty ? -kInfinity : shift + std::log(divisor);
    }
  });
}

}  // namespace pyvt::cpu
