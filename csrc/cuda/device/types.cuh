// Element types of kernels: f32, bf16, f16 and fp8 (e4m3) in memory, f32 in registers.
//
// A conversion to a narrow type rounds once, to nearest even. `load` and `store` are the only ways
// from memory to f32 and back. One table gives each type its DType.
#pragma once

#include "cuda/device/platform.cuh"
#include "pyvt/dtype.h"

#ifdef PYVT_CUDA_EMU
#include "pyvt/half.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace pyvt::cuda {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct fp8 {
  uint8_t bits;
};

PYVT_DEVICE float load(float x) { return x; }

#ifdef PYVT_CUDA_EMU

inline float load(bf16 x) { return bf16_to_f32(x.bits); }
inline float load(f16 x) { return f16_to_f32(x.bits); }

inline float load(fp8 x) {
  const int exponent = x.bits >> 3 & 15, mantissa = x.bits & 7;
  const float sign = x.bits & 0x80 ? -1.0f : 1.0f;
  if ((x.bits & 0x7f) == 0x7f) return NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

#else

PYVT_DEVICE float load(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
PYVT_DEVICE float load(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
PYVT_DEVICE float load(fp8 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}

#endif

template <typename T>
PYVT_DEVICE T store(float x);

template <>
PYVT_DEVICE float store<float>(float x) {
  return x;
}

#ifdef PYVT_CUDA_EMU

template <>
inline bf16 store<bf16>(float x) {
  return {f32_to_bf16(x)};
}
template <>
inline f16 store<f16>(float x) {
  return {f32_to_f16(x)};
}
// Saturates at ±448; NaN stays NaN.
template <>
inline fp8 store<fp8>(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  const float size = std::fabs(x);
  if (size >= 448.0f) return {static_cast<uint8_t>(sign | 0x7e)};
  int exponent = 0;
  std::frexp(size, &exponent);
  // A number in [2^e, 2^(e+1)) is a multiple of 2^(e−3), and none of less than 2^−9.
  const int unit = exponent - 1 < -6 ? -9 : exponent - 4;
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
  if (unit == -9) return {static_cast<uint8_t>(sign | steps)};
  // 16 steps are 8 of the next exponent: the carry moves on by itself.
  return {static_cast<uint8_t>(sign | (((unit + 9) << 3) + steps))};
}

#else

template <>
PYVT_DEVICE bf16 store<bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
PYVT_DEVICE f16 store<f16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
template <>
PYVT_DEVICE fp8 store<fp8>(float x) {
  return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}

#endif

// Calls `run(T{})` with the element type of a dtype; false for one that is no float of a kernel.
template <typename Run>
bool with_float(DType dtype, Run run) {
  switch (dtype) {
    case DType::kF32:
      run(float{});
      return true;
    case DType::kBF16:
      run(bf16{});
      return true;
    case DType::kF16:
      run(f16{});
      return true;
    default:
      return false;
  }
}

}  // namespace pyvt::cuda
