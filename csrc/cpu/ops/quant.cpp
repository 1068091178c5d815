// Launcher of quantize_q8_rows: rows over threads.
#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/rows.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kGrainElements = 8192;

}  // namespace

void quantize_q8_rows(TensorView codes, TensorView scales, TensorView x) {
  const char* op = "quantize_q8_rows";
  const Rows from = rows_of(op, "x", x), to = rows_of(op, "codes", codes);
  const Rows steps = rows_of(op, "scales", scales);
  PYVT_CHECK(op, codes.dtype == DType::kI8, "codes: expected i8, got ", dtype_name(codes.dtype));
  PYVT_CHECK(op, scales.dtype == DType::kF32, "scales: expected f32, got ",
             dtype_name(scales.dtype));
  PYVT_CHECK(op, from.length % kGroup == 0, "x: expected a multiple of 32 columns, got ",
             from.length);
  PYVT_CHECK(op, to.num_rows == from.num_rows && to.length == from.length, "codes: wrong shape");
  PYVT_CHECK(op, steps.num_rows == from.num_rows && steps.length == from.length / kGroup,
             "scales: wrong shape");
  const auto kernel = kernels().quantize_row[float_index(op, x.dtype)];
  const int64_t grain = kGrainElements / (from.length > 0 ? from.length : 1) + 1;
  parallel_for(from.num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernel(from.row(i), static_cast<int8_t*>(to.row(i)), static_cast<float*>(steps.row(i)),
             nullptr, from.length);
    }
  });
}

}  // namespace pyvt::cpu
