// what        weighted_sum: out = sum over i of weights[i] · rows[places[i]], the outputs of a
//             token's experts; add_scaled: out = x + factor · y, the shared expert's part
// layout      rows [.][stride] f32; out, x, y: n elements side by side, out may be x or y
// numerics    one f32 sum an element, in the order of the places, fma; rounded once
// work        a row a call; the launcher splits tokens over threads
// traffic     one read of each row, one write; memory bound
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

template <typename O>
void weighted_sum(void* out, const float* rows, int64_t stride, const int64_t* places,
                  const float* weights, int64_t num_rows, int64_t n) {
  O* to = static_cast<O*>(out);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::Vec sum = simd::zero();
    for (int64_t r = 0; r < num_rows; ++r) {
      sum = simd::fma(simd::load(rows + places[r] * stride + i), simd::set1(weights[r]), sum);
    }
    simd::store(to + i, sum);
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    simd::Vec sum = simd::zero();
    for (int64_t r = 0; r < num_rows; ++r) {
      sum = simd::fma(simd::load_first(rows + places[r] * stride + i, rest), simd::set1(weights[r]),
                      sum);
    }
    simd::store_first(to + i, sum, rest);
  }
}

template <typename X>
void add_scaled(void* out, const void* x, const void* y, float factor, int64_t n) {
  X* to = static_cast<X*>(out);
  const X* first = static_cast<const X*>(x);
  const X* second = static_cast<const X*>(y);
  const simd::Vec scale = simd::set1(factor);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(to + i, simd::fma(simd::load(second + i), scale, simd::load(first + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const simd::Vec sum =
        simd::fma(simd::load_first(second + i, rest), scale, simd::load_first(first + i, rest));
    simd::store_first(to + i, sum, rest);
  }
}

}  // namespace

void fill_moe(KernelTable& table) {
  for_floats([&](auto type) {
    using T = typename decltype(type)::type;
    table.weighted_sum[type.index] = &weighted_sum<T>;
    table.add_scaled[type.index] = &add_scaled<T>;
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
