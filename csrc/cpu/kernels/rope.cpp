// what        rotate_head: x1, x2 = x1·cos − x2·sin, x2·cos + x1·sin for one head
// layout      x1: `half` elements, x2 the next `half`; cos and sin: `half` elements each
// numerics    f32 products and sums, each rounded (no FMA), as the reference has them
// work        one head a call; the launcher splits tokens over threads
// traffic     one read and one write of the head, one read of the table row (in L1 after one head)
// source      Su et al. 2021, arXiv:2104.09864, with the pairing of GPT-NeoX
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

template <typename X, typename C>
void rotate_head(void* x, const void* cos_sin, int64_t half) {
  X* x1 = static_cast<X*>(x);
  X* x2 = x1 + half;
  const C* cosines = static_cast<const C*>(cos_sin);
  const C* sines = cosines + half;
  int64_t i = 0;
  for (; i + simd::kLanes <= half; i += simd::kLanes) {
    const simd::Vec a = simd::load(x1 + i), b = simd::load(x2 + i);
    const simd::Vec c = simd::load(cosines + i), s = simd::load(sines + i);
    simd::store(x1 + i, simd::sub(simd::mul(a, c), simd::mul(b, s)));
    simd::store(x2 + i, simd::add(simd::mul(b, c), simd::mul(a, s)));
  }
  if (i < half) {
    const int n = static_cast<int>(half - i);
    const simd::Vec a = simd::load_first(x1 + i, n), b = simd::load_first(x2 + i, n);
    const simd::Vec c = simd::load_first(cosines + i, n), s = simd::load_first(sines + i, n);
    simd::store_first(x1 + i, simd::sub(simd::mul(a, c), simd::mul(b, s)), n);
    simd::store_first(x2 + i, simd::add(simd::mul(b, c), simd::mul(a, s)), n);
  }
}

}  // namespace

void fill_rope(KernelTable& table) {
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    for_floats([&](auto of_table) {
      using C = typename decltype(of_table)::type;
      table.rotate_head[x.index][of_table.index] = &rotate_head<X, C>;
    });
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
