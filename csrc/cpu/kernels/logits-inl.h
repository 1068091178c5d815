// what        passes over a row of logits: row_max, find_first, count_nonfinite, sum_exp,
//             shift_row (x − top − log_total), divide_row
// layout      n elements side by side; out may be x
// numerics    row_max is NaN where an element is; sum_exp adds kLanes chains of f32, then lanes in
//             a fixed order; the launcher cuts rows at fixed places, so a sum has one value
// work        a piece of a row a call
// traffic     one read of the piece; memory bound but for sum_exp

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

inline void fill_logits(KernelTable& table) {
  table.row_max = &row_max;
  table.find_first = &find_first;
  table.sum_exp = &sum_exp;
  table.shift_row = &shift_row;
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    table.count_nonfinite[x.index] = &count_nonfinite<X>;
  });
}
