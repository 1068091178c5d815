// bf16 and f16 ↔ f32, round to nearest even, in portable C++; the ISA files have faster ones.
// Static: an ISA file compiles its own copy, so that no AVX2 code is shared with the scalar level.
#pragma once

#include <cstdint>
#include <cstring>

namespace pyvt {

static inline float bits_to_f32(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t f32_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float bf16_to_f32(uint16_t half) {
  return bits_to_f32(static_cast<uint32_t>(half) << 16);
}

static inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = f32_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // A subnormal half is a multiple of 2^-24.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bits_to_f32(sign | f32_to_bits(magnitude));
}

static inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = f32_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    // A NaN keeps the top of its payload and is made quiet.
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 moves the bits of a subnormal half to the end of the mantissa, rounded.
    const float moved = bits_to_f32(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (f32_to_bits(moved) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace pyvt
