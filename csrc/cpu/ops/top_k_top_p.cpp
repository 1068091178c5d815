// Launcher of apply_top_k_top_p: a row at a time, rows over threads.
//
// The tokens that stay are those up to a last one in the order of the row (value falling, ties by
// the lowest id), so a filter is that last token. Both filters look for it with a histogram over
// the leading bits of the logits: it names the few tokens that need to be put in order.
#include <cstring>

#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/logits.h"
#include "cpu/ops/selection.h"
#include "cpu/scratch.h"

namespace pyvt::cpu {
namespace {

// Sign, exponent and three bits of the mantissa.
constexpr int kKeyBits = 12;
constexpr int kNumBuckets = 1 << kKeyBits;
constexpr int kWeightSlot = 0;
constexpr int64_t kSmallPiece = 512;

// The bucket of a logit; buckets rise with the value.
int bucket_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t key = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<int>(key >> (32 - kKeyBits));
}

// The smallest value of a bucket.
float bucket_floor(int bucket) {
  const uint32_t key = static_cast<uint32_t>(bucket) << (32 - kKeyBits);
  const uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// What one thread needs for a row, whose logits are at most `top` and no NaN.
class Filter {
 public:
  // The last token of top-k: every token that ties with the k-th best stays.
  Candidate top_k(const float* row, int64_t n, int64_t k) {
    counts_.assign(kNumBuckets, 0);
    for (int64_t i = 0; i < n; ++i) ++counts_[static_cast<size_t>(bucket_of(row[i]))];
    int bucket = kNumBuckets;
    for (int64_t num = 0; num < k;) num += counts_[static_cast<size_t>(--bucket)];
    gather(row, n, bucket_floor(bucket));
    // Without k tokens above −inf nothing is cut.
    if (static_cast<int64_t>(candidates_.size()) < k) return {-kInfinity, n};
    const auto kth = candidates_.begin() + (k - 1);
    std::nth_element(candidates_.begin(), kth, candidates_.end());
    return {kth->value, n};
  }

  // The last token of top-p, among those up to `last`: the first before which and with which the
  // weights sum to the share. Weights are summed in f64, their total in the order of ids.
  Candidate top_p(const float* row, int64_t n, double share, float top, const Candidate& last) {
    const bool is_all = last.value == -kInfinity;
    double needed = 0;
    if (is_all) {
      needed = gather_share(row, n, share, top);
    } else {
      gather(row, n, last.value);
      for_each_weight(top, [&](int64_t, double weight) { needed += weight; });
      needed *= share;
    }
    std::sort(candidates_.begin(), candidates_.end());
    double sum = 0;
    int64_t found = -1;
    for_each_weight(top, [&](int64_t i, double weight) {
      sum += weight;
      if (found < 0 && sum >= needed) found = i;
    });
    return found < 0 ? last : candidates_[static_cast<size_t>(found)];
  }

 private:
  // Collects the tokens from a value on, without those of −inf, in the order of ids.
  void gather(const float* row, int64_t n, float least) {
    candidates_.clear();
    for (int64_t i = 0; i < n; ++i) {
      if (row[i] >= least && row[i] > -kInfinity) candidates_.push_back({row[i], i});
    }
  }

  // Collects the best tokens of a row that hold a share of its weight; returns that weight.
  double gather_share(const float* row, int64_t n, double share, float top) {
    weights_.assign(kNumBuckets, 0);
    double total = 0;
    double* weights = scratch<double>(kWeightSlot, kPiece);
    for (int64_t first = 0; first < n; first += kPiece) {
      const int64_t count = std::min(kPiece, n - first);
      kernels().exp_wide(weights, row + first, top, count);
      for (int64_t i = 0; i < count; ++i) {
        total += weights[i];
        weights_[static_cast<size_t>(bucket_of(row[first + i]))] += weights[i];
      }
    }
    const double needed = share * total;
    // A little more than needed, since the buckets are summed in another order.
    int bucket = kNumBuckets;
    for (double sum = 0; bucket > 0 && sum <= needed * (1 + 1e-9);) {
      sum += weights_[static_cast<size_t>(--bucket)];
    }
    gather(row, n, bucket_floor(bucket));
    return needed;
  }

  // Calls f(i, weight) for every candidate.
  template <typename F>
  void for_each_weight(float top, F&& f) {
    float values[kSmallPiece];
    double weights[kSmallPiece];
    const int64_t num = static_cast<int64_t>(candidates_.size());
    for (int64_t first = 0; first < num; first += kSmallPiece) {
      const int64_t count = std::min(kSmallPiece, num - first);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = candidates_[static_cast<size_t>(first + i)].value;
      }
      kernels().exp_wide(weights, values, top, count);
      for (int64_t i = 0; i < count; ++i) f(first + i, weights[i]);
    }
  }

  std::vector<int64_t> counts_;
  std::vector<double> weights_;
  std::vector<Candidate> candidates_;
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
      Candidate last = {-kInfinity, n};
      if (has_top_k && k == 1) {
        last = {likely.value, likely.id};
      } else if (has_top_k) {
        last = filter.top_k(row, n, k);
      }
      if (has_top_p && k != 1) last = filter.top_p(row, n, shares[r], likely.value, last);
      for (int64_t i = 0; i < n; ++i) {
        const bool stays = row[i] > last.value || (row[i] == last.value && i <= last.id);
        row[i] = stays ? row[i] : -kInfinity;
      }
    }
  });
}

}  // namespace pyvt::cpu
