// what        convolve: out = silu(bias + Σ_j taps[j] · inputs[j]) for one token, channel by
// channel layout      an input is what one token brought, n channels side by side, the oldest
// first; a tap
//             is a row of the weight; any of them lies anywhere
// numerics    f32, bias first, then inputs from the oldest, rounded once; a channel's bits do not
//             depend on its place
// work        a token and a run of channels a call; the launcher splits channels over threads
// traffic     num_taps inputs and taps read, one row written; inputs of the tokens before are in a
//             cache
// source      Gu & Dao 2023, arXiv:2312.00752
#include "cpu/kernels/math-inl.h"
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// With kNumTaps 0, their number is that of the call.
template <int kNumTaps, typename X, typename W>
inline void convolve_taps(void* out, const void* const* inputs, const void* const* taps,
                          const float* bias, int num_taps, int64_t n) {
  const int count = kNumTaps > 0 ? kNumTaps : num_taps;
  X* to = static_cast<X*>(out);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::Vec sum = bias != nullptr ? simd::load(bias + i) : simd::zero();
    for (int j = 0; j < count; ++j) {
      const simd::Vec input = simd::load(static_cast<const X*>(inputs[j]) + i);
      sum = simd::fma(simd::load(static_cast<const W*>(taps[j]) + i), input, sum);
    }
    simd::store(to + i, silu_of(sum));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    simd::Vec sum = bias != nullptr ? simd::load_first(bias + i, rest) : simd::zero();
    for (int j = 0; j < count; ++j) {
      const simd::Vec input = simd::load_first(static_cast<const X*>(inputs[j]) + i, rest);
      sum = simd::fma(simd::load_first(static_cast<const W*>(taps[j]) + i, rest), input, sum);
    }
    simd::store_first(to + i, silu_of(sum), rest);
  }
}

template <typename X, typename W>
void convolve(void* out, const void* const* inputs, const void* const* taps, const float* bias,
              int num_taps, int64_t n) {
  if (num_taps == 4) return convolve_taps<4, X, W>(out, inputs, taps, bias, num_taps, n);
  convolve_taps<0, X, W>(out, inputs, taps, bias, num_taps, n);
}

}  // namespace

void fill_causal_conv(KernelTable& table) {
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    for_floats([&](auto weight) {
      using W = typename decltype(weight)::type;
      table.convolve[x.index][weight.index] = &convolve<X, W>;
    });
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
