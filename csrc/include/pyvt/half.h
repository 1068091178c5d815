// bf16, f16 and e4m3 ↔ f32, round to nearest even, in portable C++; the ISA files have faster ones.
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

// The number of an e4m3 magnitude below 128, as if none were NaN; exponents of 0 are subnormal.
// Without a branch, as are both ways between e4m3 and f32, so that compilers take vectors.
static inline float e4m3_magnitude_to_f32(uint32_t magnitude) {
  // A mask by a sign bit: of a comparison compilers make a branch.
  const uint32_t of_subnormal = static_cast<uint32_t>(static_cast<int32_t>(magnitude - 8) >> 31);
  // A subnormal one is read with an exponent, whose one is subtracted.
  const float read = bits_to_f32((magnitude << 20) + (120u << 23) + (of_subnormal & 1u << 23));
  return read - bits_to_f32(of_subnormal & 0x3c800000u);
}

// 0x7f and 0xff are NaN.
static inline float e4m3_to_f32(uint32_t code) {
  const uint32_t magnitude = code & 127;
  const uint32_t of_nan = static_cast<uint32_t>(static_cast<int32_t>(126 - magnitude) >> 31);
  const uint32_t bits = f32_to_bits(e4m3_magnitude_to_f32(magnitude));
  return bits_to_f32((of_nan & 0x7fc00000u) | (bits & ~of_nan) | (code & 128) << 24);
}

// What is beyond ±448, infinities too, becomes that; a NaN keeps its sign.
static inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = f32_to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t capped = magnitude < 0x43e00000u ? magnitude : 0x43e00000u;
  const uint32_t normal = (capped + 0x7ffff + ((capped >> 20) & 1) - 0x3c000000u) >> 20;
  // Adding 2^14 moves the multiples of 2^-9 to the end of the mantissa, rounded.
  const uint32_t subnormal = f32_to_bits(bits_to_f32(capped) + 0x1p14f) - 0x46800000u;
  const uint32_t of_subnormal =
      static_cast<uint32_t>(static_cast<int32_t>(capped - 0x3c800000u) >> 31);
  const uint32_t of_nan = ((0x7f800000u - magnitude) >> 31) * 0x7f;
  const uint32_t code = (subnormal & of_subnormal) | (normal & ~of_subnormal) | of_nan;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80));
}

}  // namespace pyvt
