// Launchers of the embedding family: tokens over threads.
#include "cpu/block_formats.h"
#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGrainElements = 8192;
constexpr int kRowSlot = 0;

int64_t grain_of(int64_t length) { return kGrainElements / (length + 1) + 1; }

}  // namespace

void embedding(TensorView out, TensorView input_ids, TensorView weight) {
  const char* op = "embedding";
  const Rows to = rows_of(op, "out", out), table = rows_of(op, "weight", weight);
  const Indices ids = indices_of(op, "input_ids", input_ids);
  PYVT_CHECK(
      op, out.rank == 2 && weight.rank == 2 && to.num_rows == ids.size && to.length == table.length,
      "out: expected dims [T, H]");
  check_range(op, "input_ids", ids, 0, table.num_rows);
  const auto kernel = kernels().cast[float_index(op, weight.dtype)][float_index(op, out.dtype)];
  parallel_for(ids.size, grain_of(to.length), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernel(to.row(t), table.row(ids[t]), 0, to.length);
  });
}

void quant_embedding(TensorView out, TensorView input_ids, TensorView blocks, int64_t format,
                     int64_t num_columns) {
  const char* op = "quant_embedding";
  const DType dtype = static_cast<DType>(format);
  const auto decode = kernels().decode_blocks[format_index(op, dtype)];
  const BlockSize size = block_size(dtype);
  const Rows to = rows_of(op, "out", out), table = rows_of(op, "weight", blocks);
  const Indices ids = indices_of(op, "input_ids", input_ids);
  PYVT_CHECK(op,
             blocks.dtype == DType::kU8 && blocks.rank == 2 && num_columns % size.elements == 0 &&
                 table.length == num_columns / size.elements * size.bytes,
             "weight: expected whole blocks of ", num_columns, " columns");
  PYVT_CHECK(op, out.rank == 2 && to.num_rows == ids.size && to.length == num_columns,
             "out: expected dims [T, H]");
  check_range(op, "input_ids", ids, 0, table.num_rows);
  const int of_out = float_index(op, out.dtype);
  const auto cast = kernels().cast[0][of_out];
  parallel_for(ids.size, grain_of(to.length), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* packed = static_cast<const uint8_t*>(table.row(ids[t]));
      float* row =
          of_out == 0 ? static_cast<float*>(to.row(t)) : scratch<float>(kRowSlot, num_columns);
      decode(row, packed, num_columns / size.elements);
      if (of_out != 0) cast(to.row(t), row, 0, num_columns);
    }
  });
}

}  // namespace pyvt::cpu
