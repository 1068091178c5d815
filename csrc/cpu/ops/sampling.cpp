// Launchers of the sampling family: counts, temperature, min-p, the greedy choice, the draw, and
// drafts that are verified.
#include <atomic>

#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/logits.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kNoToken = -1;
constexpr double kMinTemperature = 1e-5;

// SplitMix64, as pyvt/ops/splitmix.py has it.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t splitmix64(uint64_t state, uint64_t index) { return mix(state + (index + 1) * kGolden); }

int64_t* id_at(const TensorView& ids, int64_t row) {
  return ids.as<int64_t>() + row * ids.stride[0];
}

void check_ids(const char* op, const TensorView& ids, int64_t num_rows) {
  PYVT_CHECK(op, ids.rank == 1 && ids.dtype == DType::kI64 && ids.shape[0] == num_rows,
             "out: expected dims [R] of i64");
}

// A token and its score: the logit plus Gumbel noise.
struct Draw {
  double score;
  int64_t id;

  // Ties go to the lowest id.
  bool is_before(const Draw& other) const {
    return score > other.score || (score == other.score && id < other.id);
  }
};

Draw draw_of(float logit, uint64_t bits, int64_t id) {
  const double u = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  return {static_cast<double>(logit) - std::log(-std::log(u)), id};
}

// A bound of the noise: −log(−log u) ≤ −log(1 − u), and 1 − u ≥ 2^−(1 + leading ones of u).
double most_noise(uint64_t bits) {
  const uint64_t rest = ~bits | 0xfff;  // its upper bits are those of 1 − u
  return 0.6931471805599454 * (__builtin_clzll(rest) + 1);
}

// The best draw of a piece, or `best` where none beats it. Most tokens fall to the bound.
Draw best_draw(const float* logits, int64_t first, int64_t n, uint64_t state, Draw best) {
  constexpr double kMostNoise = 0.6931471805599454 * 53;
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] + kMostNoise < best.score) continue;
    const int64_t id = first + i;
    const uint64_t bits = splitmix64(state, static_cast<uint64_t>(id));
    if (logits[i] + most_noise(bits) < best.score) continue;
    const Draw draw = draw_of(logits[i], bits, id);
    if (draw.is_before(best)) best = draw;
  }
  return best;
}

void divide_row(float* row, int64_t n, double divisor, bool is_wide) {
  if (is_wide) {
    for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(row[i] / divisor);
  } else {
    const float narrow = static_cast<float>(divisor);
    for (int64_t i = 0; i < n; ++i) row[i] /= narrow;
  }
}

// The smallest f32 that is not below x; so y < x in f64 is y < result in f32.
float not_below(double x) {
  const float near = static_cast<float>(x);
  return static_cast<double>(near) < x ? std::nextafter(near, kInfinity) : near;
}

}  // namespace

void count_nonfinite(TensorView out, TensorView logits) {
  const char* op = "count_nonfinite";
  PYVT_CHECK(op, logits.rank == 2, "logits: expected dims [R, V]");
  const Rows rows = rows_of(op, "logits", logits);
  check_ids(op, out, rows.num_rows);
  const auto kernel = kernels().count_nonfinite[float_index(op, logits.dtype)];
  const int64_t item = item_bytes(logits.dtype);
  std::vector<std::atomic<int64_t>> counts(static_cast<size_t>(rows.num_rows));
  for_each_row_piece(rows.num_rows, rows.length,
                     [&](int64_t row, int64_t, int64_t first, int64_t n) {
                       const char* at = static_cast<const char*>(rows.row(row)) + first * item;
                       counts[static_cast<size_t>(row)] += kernel(at, n);
                     });
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    *id_at(out, row) = counts[static_cast<size_t>(row)];
  }
}

void apply_temperature(TensorView out, TensorView logits, TensorView temperature) {
  const char* op = "apply_temperature";
  const Rows from = logit_rows(op, "logits", logits);
  const Parameter divisors = parameter_of(op, "temperature", temperature, from.num_rows);
  const Rows to = copied_rows(op, out, from);
  const double least = divisors.is_wide ? kMinTemperature : static_cast<float>(kMinTemperature);
  for_each_row_piece(to.num_rows, to.length, [&](int64_t row, int64_t, int64_t first, int64_t n) {
    const double divisor = divisors[row];
    if (divisor >= least && divisor != 1) {
      divide_row(f32_row(to, row) + first, n, divisor, divisors.is_wide);
    }
  });
}

void apply_min_p(TensorView out, TensorView logits, TensorView min_p) {
  const char* op = "apply_min_p";
  const Rows from = logit_rows(op, "logits", logits);
  const Parameter shares = parameter_of(op, "min_p", min_p, from.num_rows);
  const Rows to = copied_rows(op, out, from);
  const std::vector<float> maxima = piece_maxima(to);
  const int64_t pieces = num_pieces(to.length);
  for_each_row_piece(to.num_rows, to.length, [&](int64_t row, int64_t, int64_t first, int64_t n) {
    if (!(shares[row] > 0)) return;
    const float top = max_of(maxima.data() + row * pieces, pieces);
    const float least = shares.is_wide ? not_below(static_cast<double>(top) + std::log(shares[row]))
                                       : top + std::log(static_cast<float>(shares[row]));
    float* at = f32_row(to, row) + first;
    for (int64_t i = 0; i < n; ++i) at[i] = at[i] < least ? -kInfinity : at[i];
  });
}

void argmax(TensorView out, TensorView logits) {
  const char* op = "argmax";
  const Rows rows = logit_rows(op, "logits", logits);
  check_ids(op, out, rows.num_rows);
  const std::vector<Best> best = best_tokens(rows);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const Best& found = best[static_cast<size_t>(row)];
    *id_at(out, row) = found.is_token() ? found.id : kNoToken;
  }
}

void random_sample(TensorView out, TensorView logits, TensorView seeds, TensorView positions) {
  const char* op = "random_sample";
  const Rows rows = logit_rows(op, "logits", logits);
  check_ids(op, out, rows.num_rows);
  PYVT_CHECK(op, seeds.rank == 1 && seeds.dtype == DType::kU64 && seeds.shape[0] == rows.num_rows,
             "seeds: expected dims [R] of u64");
  const Indices where = indices_of(op, "positions", positions);
  PYVT_CHECK(op, where.size == rows.num_rows, "positions: expected dims [R]");
  const std::vector<Best> best = best_tokens(rows);
  const int64_t pieces = num_pieces(rows.length);
  const auto state_of = [&](int64_t row) {
    const uint64_t seed = seeds.as<uint64_t>()[row * seeds.stride[0]];
    return splitmix64(mix(seed), static_cast<uint64_t>(where[row]));
  };
  std::vector<Draw> draws(static_cast<size_t>(rows.num_rows * pieces));
  for_each_row_piece(
      rows.num_rows, rows.length, [&](int64_t row, int64_t piece, int64_t first, int64_t n) {
        const Best& likely = best[static_cast<size_t>(row)];
        if (!likely.is_token()) return;
        const uint64_t state = state_of(row);
        // The draw of the most likely token is a good first bar in every piece.
        const uint64_t bits = splitmix64(state, static_cast<uint64_t>(likely.id));
        draws[static_cast<size_t>(row * pieces + piece)] = best_draw(
            f32_row(rows, row) + first, first, n, state, draw_of(likely.value, bits, likely.id));
      });
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    if (!best[static_cast<size_t>(row)].is_token()) {
      *id_at(out, row) = kNoToken;
      continue;
    }
    const Draw* of_row = draws.data() + row * pieces;
    *id_at(out, row) = std::min_element(of_row, of_row + pieces, [](const Draw& a, const Draw& b) {
                         return a.is_before(b);
                       })->id;
  }
}

void rejection_sample(TensorView out, TensorView num_tokens, TensorView token_ids,
                      TensorView draft_ids, TensorView cu_num_drafts) {
  const char* op = "rejection_sample";
  const Indices tokens = indices_of(op, "token_ids", token_ids);
  const Indices drafts = indices_of(op, "draft_ids", draft_ids);
  const Indices sums = indices_of(op, "cu_num_drafts", cu_num_drafts);
  const int64_t num_reqs = sums.size - 1;
  PYVT_CHECK(op, num_reqs >= 0 && tokens.size == num_reqs + drafts.size,
             "token_ids: expected a row for each draft and each request");
  PYVT_CHECK(op, out.rank == 2 && out.dtype == DType::kI64 && out.shape[0] == num_reqs,
             "out: expected dims [R, K + 1] of i64");
  check_ids(op, num_tokens, num_reqs);
  for (int64_t r = 0; r < num_reqs; ++r) {
    const int64_t start = sums[r], end = sums[r + 1], first = start + r;
    PYVT_CHECK(op, start >= 0 && start <= end && end <= drafts.size && end - start < out.shape[1],
               "cu_num_drafts: expected sums that rise to the number of drafts");
    int64_t* row = out.as<int64_t>() + r * out.stride[0];
    int64_t num = 0;
    do {
      row[num * out.stride[1]] = tokens[first + num];
      ++num;
    } while (start + num <= end && tokens[first + num - 1] == drafts[start + num - 1]);
    *id_at(num_tokens, r) = num;
    for (int64_t i = num; i < out.shape[1]; ++i) row[i * out.stride[1]] = kNoToken;
  }
}

}  // namespace pyvt::cpu
