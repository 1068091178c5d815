// What levels with more than one lane build from their own load, store and arithmetic. Included
// inside namespace simd, behind these.

// The first n < kLanes elements; the other lanes are zero.
template <typename T>
inline Vec load_first(const T* p, int n) {
  T lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <typename T>
inline void store_first(T* p, Vec a, int n) {
  T lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

// The same with another value in the other lanes.
inline Vec load_first(const float* p, int n, float fill) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}

// e^x by 2^n · e^r, |r| ≤ ln2/2, a polynomial of degree 7 (relative error 2e-7). Below -87.3 the
// result is 0 (no subnormals), above 88.7 infinity; NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec n = round(mul(x, set1(1.44269504f)));
  Vec r = fma(n, set1(-0.693145752f), x);
  r = fma(n, set1(-1.42860677e-6f), r);
  Vec p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  Vec y = mul_power(p, n);
  y = blend(greater(set1(-87.33654f), x), zero(), y);
  y = blend(greater(x, set1(88.72284f)), set1(__builtin_inff()), y);
  return blend(is_nan(x), x, y);
}
