// what        quantize_row: for each group of 32 elements scale = max|x| / 127,
//             code = rint(x · (127 / max|x|)), halves to even, sum = scale · sum(codes)
// layout      x [n], codes int8 [n], scales and sums f32 [n / 32], dense; sums may be null
// numerics    f32, each step rounded once: the codes and scales of the reference to the bit. A
// group
//             below 2^-100 has scale 0 and codes 0; one with a NaN or an infinity scale NaN, codes
//             0
// work        one row a call; the launcher splits rows over threads
// traffic     reads a row once, writes a quarter of it and 8 bytes a group
// source      ggml quantize_row_q8_0, with the scale kept in f32
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int64_t kQ8Group = 32;
constexpr float kQ8Max = 127.0f;
constexpr uint32_t kQ8TinyBits = 0x0d800000;  // 2^-100
constexpr uint32_t kInfinityBits = 0x7f800000;

template <typename X>
void quantize_row(const void* from, int8_t* codes, float* scales, float* sums, int64_t n) {
  const X* x = static_cast<const X*>(from);
  for (int64_t group = 0; group < n / kQ8Group; ++group, x += kQ8Group, codes += kQ8Group) {
    simd::Vec values[simd::kGroupVecs];
    for (int i = 0; i < simd::kGroupVecs; ++i) values[i] = simd::load(x + i * simd::kLanes);
    const uint32_t bits = simd::largest_bits(values);
    float scale = 0.0f, sum = 0.0f;
    if (bits >= kQ8TinyBits && bits < kInfinityBits) {
      const float largest = pyvt::bits_to_f32(bits);
      scale = largest / kQ8Max;
      sum = scale * static_cast<float>(simd::store_codes(codes, values, kQ8Max / largest));
    } else {
      std::memset(codes, 0, kQ8Group);
      if (bits >= kInfinityBits) scale = sum = std::nanf("");
    }
    scales[group] = scale;
    if (sums != nullptr) sums[group] = sum;
  }
}

}  // namespace

void fill_quant(KernelTable& table) {
  for_floats(
      [&](auto x) { table.quantize_row[x.index] = &quantize_row<typename decltype(x)::type>; });
}

}  // namespace pyvt::cpu::PYVT_ISA
