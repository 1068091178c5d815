// what        rms_norm: out = x / sqrt(mean(x²) + eps) · weight, for one row
//             add_rms_norm: residual += x, then rms_norm of the sum as it is stored
//             norm_gated: rms_norm of an f32 row · silu(gate)
// layout      x, residual, weight, out: n elements side by side; out may be x
// numerics    f32 sums in two accumulators of kLanes, added in a fixed order; the tail last
// work        one row a call; the launcher splits rows over threads
// traffic     2 reads and 1 write of a row (the second read hits L1); memory bound
// source      Zhang & Sennrich 2019, arXiv:1910.07467
#include "cpu/kernels/math-inl.h"
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

template <typename T>
inline float sum_of_squares(const T* __restrict x, int64_t n) {
  simd::Vec first = simd::zero(), second = simd::zero();
  int64_t i = 0;
  for (; i + 2 * simd::kLanes <= n; i += 2 * simd::kLanes) {
    const simd::Vec a = simd::load(x + i), b = simd::load(x + i + simd::kLanes);
    first = simd::fma(a, a, first);
    second = simd::fma(b, b, second);
  }
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec a = simd::load(x + i);
    first = simd::fma(a, a, first);
  }
  if (i < n) {
    const simd::Vec a = simd::load_first(x + i, static_cast<int>(n - i));
    second = simd::fma(a, a, second);
  }
  return simd::sum(simd::add(first, second));
}

template <typename X, typename W, typename O>
inline void scale_row(O* out, const X* x, const W* weight, float factor, int64_t n) {
  const simd::Vec scale = simd::set1(factor);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec scaled = simd::mul(simd::load(x + i), scale);
    simd::store(out + i, simd::mul(scaled, simd::load(weight + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const simd::Vec scaled = simd::mul(simd::load_first(x + i, rest), scale);
    simd::store_first(out + i, simd::mul(scaled, simd::load_first(weight + i, rest)), rest);
  }
}

template <typename X, typename W, typename O>
void rms_norm(void* out, const void* x, const void* weight, float eps, int64_t n) {
  const X* row = static_cast<const X*>(x);
  const float factor = 1.0f / std::sqrt(sum_of_squares(row, n) / static_cast<float>(n) + eps);
  scale_row(static_cast<O*>(out), row, static_cast<const W*>(weight), factor, n);
}

template <typename X, typename R>
void add_rows(void* residual, const void* x, int64_t n) {
  R* sum = static_cast<R*>(residual);
  const X* row = static_cast<const X*>(x);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(sum + i, simd::add(simd::load(sum + i), simd::load(row + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const simd::Vec total =
        simd::add(simd::load_first(sum + i, rest), simd::load_first(row + i, rest));
    simd::store_first(sum + i, total, rest);
  }
}

template <typename G, typename O>
void norm_gated(void* out, const float* x, const void* gate, const float* weight, float eps,
                int64_t n) {
  const simd::Vec factor =
      simd::set1(1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps));
  const G* gates = static_cast<const G*>(gate);
  O* to = static_cast<O*>(out);
  const auto gated = [&](simd::Vec row, simd::Vec scale, simd::Vec open) {
    return simd::mul(simd::mul(simd::mul(row, factor), scale), silu_of(open));
  };
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(to + i, gated(simd::load(x + i), simd::load(weight + i), simd::load(gates + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const simd::Vec row = simd::load_first(x + i, rest);
    const simd::Vec scale = simd::load_first(weight + i, rest);
    simd::store_first(to + i, gated(row, scale, simd::load_first(gates + i, rest)), rest);
  }
}

}  // namespace

void fill_norm(KernelTable& table) {
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    for_floats([&](auto other) {
      using Other = typename decltype(other)::type;
      table.add_rows[x.index][other.index] = &add_rows<X, Other>;
      table.norm_gated[x.index][other.index] = &norm_gated<X, Other>;
      for_floats([&](auto out) {
        using Out = typename decltype(out)::type;
        table.rms_norm[x.index][other.index][out.index] = &rms_norm<X, Other, Out>;
      });
    });
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
