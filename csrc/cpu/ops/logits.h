// Logits: rows [R, V] of f32, and passes over them that all threads share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/ops/rows.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Elements of a piece of a row. Rows are cut here whatever the threads are, so that sums over
// pieces have one value.
constexpr int64_t kPiece = 8192;
constexpr int64_t kPiecesPerGrain = 2;

inline int64_t num_pieces(int64_t length) { return (length + kPiece - 1) / kPiece; }

// Throws unless the view is [R, V] of f32 with a dense last dim.
inline Rows logit_rows(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, view.rank == 2 && view.dtype == DType::kF32, name,
             ": expected dims [R, V] of f32");
  return rows_of(op, name, view);
}

inline float* f32_row(const Rows& rows, int64_t row) { return static_cast<float*>(rows.row(row)); }

// Calls f(row, piece, first element, number of elements) for every piece, on all threads.
template <typename F>
void for_each_row_piece(int64_t num_rows, int64_t length, F&& f) {
  const int64_t pieces = num_pieces(length);
  parallel_for(num_rows * pieces, kPiecesPerGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t piece = i % pieces, first = piece * kPiece;
      f(i / pieces, piece, first, length - first < kPiece ? length - first : kPiece);
    }
  });
}

// The largest element of each piece of each row, [R, pieces]; NaN where a piece holds one.
inline std::vector<float> piece_maxima(const Rows& logits) {
  const int64_t pieces = num_pieces(logits.length);
  std::vector<float> maxima(static_cast<size_t>(logits.num_rows * pieces));
  for_each_row_piece(logits.num_rows, logits.length,
                     [&](int64_t row, int64_t piece, int64_t first, int64_t n) {
                       maxima[static_cast<size_t>(row * pieces + piece)] =
                           kernels().row_max(f32_row(logits, row) + first, n);
                     });
  return maxima;
}

// The largest of some maxima; NaN where one is.
inline float max_of(const float* maxima, int64_t n) {
  float top = -kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(maxima[i])) return maxima[i];
    top = maxima[i] > top ? maxima[i] : top;
  }
  return top;
}

// The best token of a row: its value and its lowest id. The value is NaN where a logit is.
struct Best {
  float value;
  int64_t id;

  bool is_token() const { return std::isfinite(value); }
};

inline std::vector<Best> best_tokens(const Rows& logits) {
  const int64_t pieces = num_pieces(logits.length);
  const std::vector<float> maxima = piece_maxima(logits);
  std::vector<Best> best(static_cast<size_t>(logits.num_rows));
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    const float* of_row = maxima.data() + row * pieces;
    Best& found = best[static_cast<size_t>(row)];
    found = {max_of(of_row, pieces), -1};
    if (!found.is_token()) continue;
    int64_t piece = 0;
    while (of_row[piece] != found.value) ++piece;
    const int64_t first = piece * kPiece;
    found.id = first + kernels().find_first(f32_row(logits, row) + first,
                                            std::min(kPiece, logits.length - first), found.value);
  }
  return best;
}

// Maximum and log Σ exp(x − maximum) of each row.
struct Normaliser {
  float top;
  float log_total;

  float log_prob(float logit) const { return (logit - top) - log_total; }
};

inline std::vector<Normaliser> normalisers(const Rows& logits) {
  const int64_t pieces = num_pieces(logits.length);
  std::vector<float> parts = piece_maxima(logits);
  std::vector<Normaliser> found(static_cast<size_t>(logits.num_rows));
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    found[static_cast<size_t>(row)].top = max_of(parts.data() + row * pieces, pieces);
  }
  for_each_row_piece(
      logits.num_rows, logits.length, [&](int64_t row, int64_t piece, int64_t first, int64_t n) {
        parts[static_cast<size_t>(row * pieces + piece)] =
            kernels().sum_exp(f32_row(logits, row) + first, found[static_cast<size_t>(row)].top, n);
      });
  for (int64_t row = 0; row < logits.num_rows; ++row) {
    double total = 0;
    for (int64_t i = 0; i < pieces; ++i) total += parts[static_cast<size_t>(row * pieces + i)];
    found[static_cast<size_t>(row)].log_total = std::log(static_cast<float>(total));
  }
  return found;
}

// One parameter of every row, f32 or f64.
struct Parameter {
  const char* data;
  int64_t stride_bytes;
  bool is_wide;

  double operator[](int64_t row) const {
    const char* at = data + row * stride_bytes;
    return is_wide ? *reinterpret_cast<const double*>(at) : *reinterpret_cast<const float*>(at);
  }
};

inline Parameter parameter_of(const char* op, const char* name, const TensorView& view,
                              int64_t num_rows) {
  const bool is_wide = view.dtype == DType::kF64;
  PYVT_CHECK(op,
             view.rank == 1 && view.shape[0] == num_rows && (is_wide || view.dtype == DType::kF32),
             name, ": expected dims [R] of f32|f64");
  return {static_cast<const char*>(view.data), view.stride[0] * item_bytes(view.dtype), is_wide};
}

// Throws unless out is like logits; copies the logits into it where it lies elsewhere.
inline Rows copied_rows(const char* op, const TensorView& out, const Rows& logits) {
  const Rows to = logit_rows(op, "out", out);
  PYVT_CHECK(op, to.num_rows == logits.num_rows && to.length == logits.length,
             "out: expected the shape of logits");
  if (to.data == logits.data) return to;
  for_each_row_piece(to.num_rows, to.length, [&](int64_t row, int64_t, int64_t first, int64_t n) {
    std::memcpy(f32_row(to, row) + first, f32_row(logits, row) + first, static_cast<size_t>(n) * 4);
  });
  return to;
}

}  // namespace pyvt::cpu
