// Launcher of apply_top_k_top_p: a row at a time, rows over threads.
//
// Top-p needs few tokens of most rows, so the best ones are put in order a few hundred at a time
// until their weights suffice. Weights are summed in f64, in the order of ids.
#include <atomic>

#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/logits.h"
#include "cpu/ops/selection.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kFirstCandidates = 256;

// What one thread needs for a row.
struct Filter {
  std::vector<Candidate> kept;

  // Keeps every token that ties with the k-th best.
  void keep_top_k(const float* row, int64_t n, int64_t k) {
    std::vector<float> values(row, row + n);
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
    const float least = values[static_cast<size_t>(k - 1)];
    kept.clear();
    for (int64_t i = 0; i < n; ++i) {
      if (row[i] >= least) kept.push_back({row[i], i});
    }
  }

  void keep_possible(const float* row, int64_t n) {
    kept.clear();
    for (int64_t i = 0; i < n; ++i) {
      if (row[i] > -kInfinity) kept.push_back({row[i], i});
    }
  }

  // Of the kept tokens, in order, those before which the weights sum to less than the share.
  void keep_top_p(double share, float top) {
    const auto weight = [&](const Candidate& c) {
      return std::exp(static_cast<double>(c.value - top));
    };
    double total = 0;
    for (const Candidate& candidate : kept) total += weight(candidate);
    const double needed = share * total;
    const size_t num_kept = kept.size();
    size_t num_sorted = 0, num = 0;
    double sum = 0;
    for (size_t next = kFirstCandidates; num_sorted < num_kept; next *= 8) {
      const size_t end = std::min(next, num_kept);
      std::nth_element(kept.begin() + static_cast<int64_t>(num_sorted),
                       kept.begin() + static_cast<int64_t>(end - 1), kept.end());
      std::sort(kept.begin() + static_cast<int64_t>(num_sorted),
                kept.begin() + static_cast<int64_t>(end));
      num_sorted = end;
      while (num < num_sorted) {
        sum += weight(kept[num++]);
        if (sum >= needed) {
          kept.resize(num);
          return;
        }
      }
    }
  }
};

}  // namespace

void apply_top_k_top_p(TensorView out, TensorView logits, TensorView top_k, TensorView top_p) {
  const char* op = "apply_top_k_top_p";
  const Rows from = logit_rows(op, "logits", logits);
  const Indices ks = indices_of(op, "top_k", top_k);
  PYVT_CHECK(op, ks.size == from.num_rows, "top_k: expected dims [R]");
  const Parameter shares = parameter_of(op, "top_p", top_p, from.num_rows);
  const Rows to = copied_rows(op, out, from);
  const std::vector<Best> best = best_tokens(to);
  parallel_for(to.num_rows, 1, [&](int64_t begin, int64_t end) {
    Filter filter;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t k = ks[r], n = to.length;
      const bool has_top_k = k > 0 && k < n, has_top_p = shares[r] < 1;
      const Best& likely = best[static_cast<size_t>(r)];
      if (!(has_top_k || has_top_p) || !likely.is_token()) continue;
      float* row = f32_row(to, r);
      if (has_top_k && k == 1) {
        filter.kept.assign(1, {likely.value, likely.id});
      } else if (has_top_k) {
        filter.keep_top_k(row, n, k);
      } else {
        filter.keep_possible(row, n);
      }
      if (has_top_p) filter.keep_top_p(shares[r], likely.value);
      std::fill(row, row + n, -kInfinity);
      for (const Candidate& candidate : filter.kept) row[candidate.id] = candidate.value;
    }
  });
}

}  // namespace pyvt::cpu
