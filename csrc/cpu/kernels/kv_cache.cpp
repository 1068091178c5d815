// what        narrow_to_fp8: numbers as e4m3, rounded to nearest even, saturated at ±448
//             widen_fp8: e4m3 numbers as f32
// layout      x and out [n], dense
// numerics    the bits of the reference; widening is exact
// work        a run a call; launchers split tokens over threads, attention widens a tile of keys
// source      OCP 8-bit Floating Point Specification 1.0
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// Numbers at a time, a multiple of the lanes of every level.
constexpr int64_t kChunk = 64;

template <typename X>
void narrow_to_fp8(void* out, const void* x, float, int64_t n) {
  uint8_t* to = static_cast<uint8_t*>(out);
  const X* from = static_cast<const X*>(x);
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    float wide[kChunk];
    for (int64_t j = 0; j < count; j += simd::kLanes) {
      const int64_t left = count - j;
      simd::store(wide + j, left >= simd::kLanes
                                ? simd::load(from + i + j)
                                : simd::load_first(from + i + j, static_cast<int>(left)));
    }
    for (int64_t j = 0; j < count; ++j) to[i + j] = pyvt::f32_to_e4m3(wide[j]);
  }
}

void widen_fp8(void* out, const void* x, float, int64_t n) {
  float* to = static_cast<float*>(out);
  const E4m3* from = static_cast<const E4m3*>(x);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(to + i, simd::load(from + i));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    simd::store_first(to + i, simd::load_first(from + i, rest), rest);
  }
}

}  // namespace

void fill_kv_cache(KernelTable& table) {
  table.widen_fp8 = &widen_fp8;
  for_floats(
      [&](auto x) { table.narrow_to_fp8[x.index] = &narrow_to_fp8<typename decltype(x)::type>; });
}

}  // namespace pyvt::cpu::PYVT_ISA
