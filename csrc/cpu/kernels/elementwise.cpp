// what        out[i] = f(x[i]) or f(x[i], y[i]) over a run: add, mul, scale, cast, soft_cap, and
// the
//             activations relu, sigmoid, silu, gelu, silu_and_mul, gelu_and_mul, sigmoid_gate
// layout      runs of n elements side by side; out may be x or y
// numerics    each element in f32, rounded once; an element's bits do not depend on its place
// work        a run a call; the launcher cuts runs and splits them over threads
// traffic     one read of each input, one write; memory bound but for the exponentials
#include "cpu/kernels/math-inl.h"
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

struct Add {
  simd::Vec operator()(simd::Vec x, simd::Vec y) const { return simd::add(x, y); }
};
struct Mul {
  simd::Vec operator()(simd::Vec x, simd::Vec y) const { return simd::mul(x, y); }
};
struct SiluMul {
  simd::Vec operator()(simd::Vec x, simd::Vec y) const { return simd::mul(silu_of(x), y); }
};
struct GeluMul {
  simd::Vec operator()(simd::Vec x, simd::Vec y) const { return simd::mul(gelu_of(x), y); }
};
struct SigmoidGate {
  simd::Vec operator()(simd::Vec x, simd::Vec y) const { return simd::div(x, one_plus_exp_neg(y)); }
};

struct Copy {
  explicit Copy(float) {}
  simd::Vec operator()(simd::Vec x) const { return x; }
};
struct Scale {
  explicit Scale(float value) : factor(simd::set1(value)) {}
  simd::Vec operator()(simd::Vec x) const { return simd::mul(x, factor); }
  simd::Vec factor;
};
struct SoftCap {
  explicit SoftCap(float value) : cap(simd::set1(value)) {}
  simd::Vec operator()(simd::Vec x) const { return simd::mul(tanh_of(simd::div(x, cap)), cap); }
  simd::Vec cap;
};
struct Relu {
  explicit Relu(float) {}
  // The second argument of max is the result where one of them is NaN.
  simd::Vec operator()(simd::Vec x) const { return simd::max(simd::zero(), x); }
};
struct Sigmoid {
  explicit Sigmoid(float) {}
  simd::Vec operator()(simd::Vec x) const { return sigmoid_of(x); }
};
struct Silu {
  explicit Silu(float) {}
  simd::Vec operator()(simd::Vec x) const { return silu_of(x); }
};
struct Gelu {
  explicit Gelu(float) {}
  simd::Vec operator()(simd::Vec x) const { return gelu_of(x); }
};

template <typename F, typename X, typename O>
void map_run(void* out, const void* x, float scalar, int64_t n) {
  const F f(scalar);
  const X* from = static_cast<const X*>(x);
  O* to = static_cast<O*>(out);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(to + i, f(simd::load(from + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    simd::store_first(to + i, f(simd::load_first(from + i, rest)), rest);
  }
}

template <typename F, typename X, typename Y, typename O>
void zip_run(void* out, const void* x, const void* y, int64_t n) {
  const F f{};
  const X* first = static_cast<const X*>(x);
  const Y* second = static_cast<const Y*>(y);
  O* to = static_cast<O*>(out);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(to + i, f(simd::load(first + i), simd::load(second + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const simd::Vec result =
        f(simd::load_first(first + i, rest), simd::load_first(second + i, rest));
    simd::store_first(to + i, result, rest);
  }
}

}  // namespace

void fill_elementwise(KernelTable& table) {
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    table.scale[x.index] = &map_run<Scale, X, X>;
    table.soft_cap[x.index] = &map_run<SoftCap, X, X>;
    table.relu[x.index] = &map_run<Relu, X, X>;
    table.sigmoid[x.index] = &map_run<Sigmoid, X, X>;
    table.silu[x.index] = &map_run<Silu, X, X>;
    table.gelu[x.index] = &map_run<Gelu, X, X>;
    table.silu_and_mul[x.index] = &zip_run<SiluMul, X, X, X>;
    table.gelu_and_mul[x.index] = &zip_run<GeluMul, X, X, X>;
    table.sigmoid_gate[x.index] = &zip_run<SigmoidGate, X, X, X>;
    for_floats([&](auto y) {
      using Y = typename decltype(y)::type;
      table.add[x.index][y.index] = &zip_run<Add, X, Y, X>;
      table.mul[x.index][y.index] = &zip_run<Mul, X, Y, X>;
      table.cast[x.index][y.index] = &map_run<Copy, X, Y>;
    });
  });
}

}  // namespace pyvt::cpu::PYVT_ISA
