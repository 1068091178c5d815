// Launchers of the penalties family: single tokens of the logits, masks and penalties.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/logits.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Named tokens that are worth waking a thread for.
constexpr int64_t kGrainTokens = 8192;

// The pairs of a row and a token that an op names.
struct Pairs {
  Indices row_ids;
  Indices token_ids;

  int64_t size() const { return row_ids.size; }
  float* at(const Rows& rows, int64_t m) const { return f32_row(rows, row_ids[m]) + token_ids[m]; }
};

Pairs pairs_of(const char* op, const TensorView& row_ids, const TensorView& token_ids,
               const Rows& logits) {
  const Pairs pairs = {indices_of(op, "row_ids", row_ids), indices_of(op, "token_ids", token_ids)};
  PYVT_CHECK(op, pairs.row_ids.size == pairs.token_ids.size, "token_ids: expected dims [M]");
  check_range(op, "row_ids", pairs.row_ids, 0, logits.num_rows);
  check_range(op, "token_ids", pairs.token_ids, 0, logits.length);
  return pairs;
}

struct Penalties {
  double repetition;
  double presence;
  double frequency;

  bool is_on() const { return repetition != 1 || presence != 0 || frequency != 0; }
};

// A token of a row, and whether it is of the output.
struct Named {
  int64_t token;
  bool is_output;
};

// What is named of each row: that of row r at [starts[r], starts[r + 1]).
struct ByRow {
  std::vector<int64_t> starts;
  std::vector<Named> named;

  ByRow(const Pairs& pairs, const TensorView& is_output, int64_t num_rows)
      : starts(static_cast<size_t>(num_rows + 1)), named(static_cast<size_t>(pairs.size())) {
    for (int64_t m = 0; m < pairs.size(); ++m) ++starts[static_cast<size_t>(pairs.row_ids[m] + 1)];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    const bool* of_output = static_cast<const bool*>(is_output.data);
    for (int64_t m = 0; m < pairs.size(); ++m) {
      int64_t& at = next[static_cast<size_t>(pairs.row_ids[m])];
      named[static_cast<size_t>(at++)] = {pairs.token_ids[m], of_output[m * is_output.stride[0]]};
    }
  }
};

// A is the dtype that all is computed in: f64 where a parameter is. Only what is named is read.
template <typename A>
void penalise(float* row, int64_t length, const Named* begin, const Named* end,
              const Penalties& penalties) {
  // 1 more than how often a token occurs in the output, 0 for one that is not named; zeros are
  // left behind.
  thread_local std::vector<int32_t> counts;
  if (counts.size() < static_cast<size_t>(length)) counts.resize(static_cast<size_t>(length));
  const A repetition = static_cast<A>(penalties.repetition);
  const A presence = static_cast<A>(penalties.presence);
  const A frequency = static_cast<A>(penalties.frequency);
  for (const Named* at = begin; at != end; ++at) {
    int32_t& count = counts[static_cast<size_t>(at->token)];
    count = std::max(count, 1) + at->is_output;
  }
  for (const Named* at = begin; at != end; ++at) {
    const int32_t count = std::exchange(counts[static_cast<size_t>(at->token)], 0);
    if (count == 0) continue;
    A x = row[at->token];
    if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
    if (count > 1) x -= frequency * static_cast<A>(count - 1) + presence;
    row[at->token] = static_cast<float>(x);
  }
}

}  // namespace

void apply_logit_bias(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids,
                      TensorView bias) {
  const char* op = "apply_logit_bias";
  const Rows from = logit_rows(op, "logits", logits);
  const Pairs pairs = pairs_of(op, row_ids, token_ids, from);
  const Parameter added = parameter_of(op, "bias", bias, pairs.size());
  const Rows to = copied_rows(op, out, from);
  for (int64_t m = 0; m < pairs.size(); ++m) {
    float* x = pairs.at(to, m);
    *x = added.is_wide ? static_cast<float>(*x + added[m]) : *x + static_cast<float>(added[m]);
  }
}

void apply_banned_ids(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids) {
  const char* op = "apply_banned_ids";
  const Rows from = logit_rows(op, "logits", logits);
  const Pairs pairs = pairs_of(op, row_ids, token_ids, from);
  const Rows to = copied_rows(op, out, from);
  for (int64_t m = 0; m < pairs.size(); ++m) *pairs.at(to, m) = -kInfinity;
}

void apply_allowed_ids(TensorView out, TensorView logits, TensorView row_ids,
                       TensorView token_ids) {
  const char* op = "apply_allowed_ids";
  const Rows from = logit_rows(op, "logits", logits);
  const Pairs pairs = pairs_of(op, row_ids, token_ids, from);
  std::vector<float> kept(static_cast<size_t>(pairs.size()));
  std::vector<char> is_named(static_cast<size_t>(from.num_rows));
  for (int64_t m = 0; m < pairs.size(); ++m) {
    kept[static_cast<size_t>(m)] = *pairs.at(from, m);
    is_named[static_cast<size_t>(pairs.row_ids[m])] = 1;
  }
  const Rows to = copied_rows(op, out, from);
  for_each_row_piece(to.num_rows, to.length, [&](int64_t row, int64_t, int64_t first, int64_t n) {
    float* at = f32_row(to, row) + first;
    if (is_named[static_cast<size_t>(row)]) std::fill(at, at + n, -kInfinity);
  });
  for (int64_t m = 0; m < pairs.size(); ++m) *pairs.at(to, m) = kept[static_cast<size_t>(m)];
}

void apply_token_mask(TensorView out, TensorView logits, TensorView mask) {
  const char* op = "apply_token_mask";
  const Rows from = logit_rows(op, "logits", logits), allowed = rows_of(op, "mask", mask);
  PYVT_CHECK(op,
             mask.rank == 2 && mask.dtype == DType::kBool && allowed.num_rows == from.num_rows &&
                 allowed.length == from.length,
             "mask: expected dims [R, V] of bool");
  const Rows to = copied_rows(op, out, from);
  for_each_row_piece(to.num_rows, to.length, [&](int64_t row, int64_t, int64_t first, int64_t n) {
    float* at = f32_row(to, row) + first;
    const bool* is_allowed = static_cast<const bool*>(allowed.row(row)) + first;
    for (int64_t i = 0; i < n; ++i) at[i] = is_allowed[i] ? at[i] : -kInfinity;
  });
}

void apply_penalties(TensorView out, TensorView logits, TensorView row_ids, TensorView token_ids,
                     TensorView is_output, TensorView repetition, TensorView presence,
                     TensorView frequency) {
  const char* op = "apply_penalties";
  const Rows from = logit_rows(op, "logits", logits);
  const Pairs pairs = pairs_of(op, row_ids, token_ids, from);
  PYVT_CHECK(
      op,
      is_output.rank == 1 && is_output.dtype == DType::kBool && is_output.shape[0] == pairs.size(),
      "is_output: expected dims [M] of bool");
  const Parameter repetitions = parameter_of(op, "repetition", repetition, from.num_rows);
  const Parameter presences = parameter_of(op, "presence", presence, from.num_rows);
  const Parameter frequencies = parameter_of(op, "frequency", frequency, from.num_rows);
  const bool is_wide = repetitions.is_wide || presences.is_wide || frequencies.is_wide;
  const Rows to = copied_rows(op, out, from);
  const ByRow by_row(pairs, is_output, from.num_rows);
  const int64_t grain = kGrainTokens * from.num_rows / (pairs.size() + 1) + 1;
  parallel_for(to.num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Penalties penalties = {repetitions[row], presences[row], frequencies[row]};
      if (!penalties.is_on()) continue;
      const auto kernel = is_wide ? &penalise<double> : &penalise<float>;
      const Named* named = by_row.named.data();
      const auto r = static_cast<size_t>(row);
      kernel(f32_row(to, row), to.length, named + by_row.starts[r], named + by_row.starts[r + 1],
             penalties);
    }
  });
}

}  // namespace pyvt::cpu
