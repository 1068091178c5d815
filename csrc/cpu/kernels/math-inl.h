// what        functions of one vector that kernels share: tanh, sigmoid, silu, gelu
// numerics    within 3e-7 of the true value relative to 1 (tanh, sigmoid) or to x (silu, gelu);
//             infinities and NaN as the formulas give them
// source      tanh near 0: the polynomial of Cephes tanhf; gelu: arXiv:1606.08415, tanh form
#pragma once

#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

inline simd::Vec tanh_of(simd::Vec x) {
  const simd::Vec size = simd::abs(x), square = simd::mul(x, x);
  simd::Vec p = simd::set1(-5.70498872745e-3f);
  p = simd::fma(p, square, simd::set1(2.06390887954e-2f));
  p = simd::fma(p, square, simd::set1(-5.37397155531e-2f));
  p = simd::fma(p, square, simd::set1(1.33314422036e-1f));
  p = simd::fma(p, square, simd::set1(-3.33332819422e-1f));
  const simd::Vec near_zero = simd::fma(simd::mul(p, square), x, x);
  const simd::Vec one = simd::set1(1.0f);
  const simd::Vec above = simd::add(simd::exp(simd::add(size, size)), one);
  const simd::Vec far = simd::copy_sign(simd::sub(one, simd::div(simd::set1(2.0f), above)), x);
  return simd::blend(simd::greater(simd::set1(0.625f), size), near_zero, far);
}

// 1 + e^-x, the denominator of sigmoid.
inline simd::Vec one_plus_exp_neg(simd::Vec x) {
  return simd::add(simd::set1(1.0f), simd::exp(simd::sub(simd::zero(), x)));
}

inline simd::Vec sigmoid_of(simd::Vec x) {
  return simd::div(simd::set1(1.0f), one_plus_exp_neg(x));
}

inline simd::Vec silu_of(simd::Vec x) { return simd::div(x, one_plus_exp_neg(x)); }

// x/2 · (1 + tanh(z)) as x / (1 + e^(−2z)), which keeps its digits where tanh is near −1.
inline simd::Vec gelu_of(simd::Vec x) {
  const simd::Vec cube = simd::mul(simd::mul(x, x), x);
  const simd::Vec inner =
      simd::mul(simd::set1(2 * 0.797884561f), simd::add(x, simd::mul(simd::set1(0.044715f), cube)));
  return simd::div(x, one_plus_exp_neg(inner));
}

}  // namespace
}  // namespace pyvt::cpu::PYVT_ISA
