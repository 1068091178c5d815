// what        passes over a row of logits: row_max, find_first, count_nonfinite, sum_exp,
//             shift_row (x − top − log_total), exp_wide (exp(x − top) in f64)
// layout      n elements side by side; out may be x
// numerics    row_max is NaN where an element is; sum_exp adds kLanes chains of f32, then lanes in
//             a fixed order; the launcher cuts rows at fixed places, so a sum has one value.
//             exp_wide is within 3e-16 of the true value, at least e^-700
// work        a piece of a row a call
// traffic     one read of the piece; memory bound but for sum_exp
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

inline float row_max(const float* x, int64_t n) {
  simd::Vec top = simd::set1(-__builtin_inff());
  simd::Mask has_nan = simd::is_nan(top);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec values = simd::load(x + i);
    has_nan = simd::either(has_nan, simd::is_nan(values));
    top = simd::max(top, values);
  }
  if (i < n) {
    const simd::Vec values = simd::load_first(x + i, static_cast<int>(n - i), -__builtin_inff());
    has_nan = simd::either(has_nan, simd::is_nan(values));
    top = simd::max(top, values);
  }
  return simd::any(has_nan) ? __builtin_nanf("") : simd::max_lane(top);
}

// Index of the first element that equals `value`; n where there is none.
inline int64_t find_first(const float* x, int64_t n, float value) {
  const simd::Vec wanted = simd::set1(value);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Mask found = simd::equal(simd::load(x + i), wanted);
    if (simd::any(found)) return i + simd::first(found);
  }
  while (i < n && x[i] != value) ++i;
  return i;
}

// x − x is 0 for finite x and NaN else.
template <typename X>
int64_t count_nonfinite(const void* x, int64_t n) {
  const X* row = static_cast<const X*>(x);
  int64_t count = 0, i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec values = simd::load(row + i);
    count += simd::count(simd::is_nan(simd::sub(values, values)));
  }
  if (i < n) {
    const simd::Vec values = simd::load_first(row + i, static_cast<int>(n - i));
    count += simd::count(simd::is_nan(simd::sub(values, values)));
  }
  return count;
}

// Σ exp(x − top)
inline float sum_exp(const float* x, float top, int64_t n) {
  const simd::Vec shift = simd::set1(top);
  simd::Vec first = simd::zero(), second = simd::zero();
  int64_t i = 0;
  for (; i + 2 * simd::kLanes <= n; i += 2 * simd::kLanes) {
    first = simd::add(first, simd::exp(simd::sub(simd::load(x + i), shift)));
    second = simd::add(second, simd::exp(simd::sub(simd::load(x + i + simd::kLanes), shift)));
  }
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    first = simd::add(first, simd::exp(simd::sub(simd::load(x + i), shift)));
  }
  if (i < n) {
    const simd::Vec values = simd::load_first(x + i, static_cast<int>(n - i), -__builtin_inff());
    second = simd::add(second, simd::exp(simd::sub(values, shift)));
  }
  return simd::sum(simd::add(first, second));
}

inline void shift_row(float* out, const float* x, float top, float log_total, int64_t n) {
  const simd::Vec first = simd::set1(top), second = simd::set1(log_total);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(out + i, simd::sub(simd::sub(simd::load(x + i), first), second));
  }
  for (; i < n; ++i) out[i] = (x[i] - top) - log_total;
}

// e^x for x from -700 to 0 in f64, as 2^n · e^r with |r| <= ln2/2 and the Taylor sum of degree 13.
// Written without branches, so that a compiler makes vectors of it.
inline double exp_below_one(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 · 2^52: adding it rounds to an integer
  const double shifted = x * 1.4426950408889634 + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double sum = 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  uint64_t bits;
  std::memcpy(&bits, &shifted, 8);
  bits = (bits + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, 8);
  return sum * power;
}

// The difference is taken in f32, as the reference takes it.
inline void exp_wide(double* out, const float* x, float top, int64_t n) {
  constexpr int kChunk = 64;
  const simd::Vec shift = simd::set1(top), least = simd::set1(-700.0f);
  float below[kChunk];
  for (int64_t first = 0; first < n; first += kChunk) {
    const int count = n - first < kChunk ? static_cast<int>(n - first) : kChunk;
    int i = 0;
    for (; i + simd::kLanes <= count; i += simd::kLanes) {
      const simd::Vec values = simd::sub(simd::load(x + first + i), shift);
      simd::store(below + i, simd::max(values, least));
    }
    for (; i < count; ++i) below[i] = x[first + i] - top > -700 ? x[first + i] - top : -700;
    for (i = 0; i < count; ++i) out[first + i] = exp_below_one(below[i]);
  }
}

}  // namespace

void fill_logits(KernelTable& table) {
  table.row_max = &row_max;
  table.find_first = &find_first;
  table.sum_exp = &sum_exp;
  table.shift_row = &shift_row;
  table.exp_wide = &exp_wide;
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    table.count_nonfinite[x.index] = &count_nonfinite<X>;
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
