// Launchers of the logprobs family.
#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/logits.h"
#include "cpu/ops/selection.h"

namespace pyvt::cpu {
namespace {

void check_dims(const char* op, const char* name, const TensorView& view, DType dtype,
                int64_t num_rows, int64_t num_columns) {
  const bool is_matrix = num_columns >= 0;
  PYVT_CHECK(op,
             view.dtype == dtype && view.rank == (is_matrix ? 2 : 1) && view.shape[0] == num_rows &&
                 (!is_matrix || view.shape[1] == num_columns),
             name, ": expected dims ", is_matrix ? "[R, n]" : "[R]", " of ", dtype_name(dtype));
}

// The place of a token in the order of a row, from 1.
int64_t rank_of(const float* row, int64_t n, int64_t id) {
  const float value = row[id];
  int64_t num_before = 0;
  for (int64_t i = 0; i < id; ++i) num_before += row[i] >= value;
  for (int64_t i = id; i < n; ++i) num_before += row[i] > value;
  return num_before + 1;
}

}  // namespace

void log_softmax(TensorView out, TensorView logits) {
  const char* op = "log_softmax";
  const Rows rows = logit_rows(op, "logits", logits), to = logit_rows(op, "out", out);
  PYVT_CHECK(op, to.num_rows == rows.num_rows && to.length == rows.length,
             "out: expected the shape of logits");
  const std::vector<Normaliser> found = normalisers(rows);
  for_each_row_piece(rows.num_rows, rows.length,
                     [&](int64_t row, int64_t, int64_t first, int64_t n) {
                       const Normaliser& of_row = found[static_cast<size_t>(row)];
                       kernels().shift_row(f32_row(to, row) + first, f32_row(rows, row) + first,
                                           of_row.top, of_row.log_total, n);
                     });
}

void top_logprobs(TensorView top_ids, TensorView top_values, TensorView token_values,
                  TensorView token_ranks, TensorView logits, TensorView token_ids) {
  const char* op = "top_logprobs";
  const Rows rows = logit_rows(op, "logits", logits);
  PYVT_CHECK(op, top_ids.rank == 2, "out[0]: expected dims [R, n]");
  const int64_t num_top = top_ids.shape[1];
  PYVT_CHECK(op, num_top <= rows.length, "out[0]: expected at most V=", rows.length, " columns");
  check_dims(op, "out[0]", top_ids, DType::kI64, rows.num_rows, num_top);
  check_dims(op, "out[1]", top_values, DType::kF32, rows.num_rows, num_top);
  check_dims(op, "out[2]", token_values, DType::kF32, rows.num_rows, -1);
  check_dims(op, "out[3]", token_ranks, DType::kI64, rows.num_rows, -1);
  const Indices ids = indices_of(op, "token_ids", token_ids);
  PYVT_CHECK(op, ids.size == rows.num_rows, "token_ids: expected dims [R]");
  check_range(op, "token_ids", ids, 0, rows.length);
  const std::vector<Normaliser> found = normalisers(rows);
  parallel_for(rows.num_rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<Candidate> best;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = f32_row(rows, r);
      const Normaliser& of_row = found[static_cast<size_t>(r)];
      token_ranks.as<int64_t>()[r * token_ranks.stride[0]] = rank_of(row, rows.length, ids[r]);
      token_values.as<float>()[r * token_values.stride[0]] = of_row.log_prob(row[ids[r]]);
      largest(row, rows.length, num_top, &best);
      for (int64_t i = 0; i < num_top; ++i) {
        const int64_t id = best[static_cast<size_t>(i)].id;
        top_ids.as<int64_t>()[r * top_ids.stride[0] + i * top_ids.stride[1]] = id;
        top_values.as<float>()[r * top_values.stride[0] + i * top_values.stride[1]] =
            of_row.log_prob(row[id]);
      }
    }
  });
}

}  // namespace pyvt::cpu
