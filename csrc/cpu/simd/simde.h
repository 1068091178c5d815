// AVX-512 or NEON on a CPU that has neither, over SIMDe: for tests of the level, never for use.
// What SIMDe 0.7.4 lacks is added by its definition, lane by lane or by halves.
#pragma once

#include <cstdint>
#include <cstring>

#define SIMDE_ENABLE_NATIVE_ALIASES

#if defined(PYVT_ISA_AVX512)

#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

namespace pyvt::cpu::avx512 {
namespace {

// A vector of f(lane) of type T.
template <typename Vector, typename T, typename F>
inline Vector lanes_of(F&& f) {
  T lanes[sizeof(Vector) / sizeof(T)];
  for (unsigned i = 0; i < sizeof(Vector) / sizeof(T); ++i) lanes[i] = static_cast<T>(f(i));
  Vector vector;
  std::memcpy(&vector, lanes, sizeof vector);
  return vector;
}

template <typename T, typename Vector>
inline T lane(const Vector& a, unsigned i) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&a) + i * sizeof(T), sizeof value);
  return value;
}

template <typename Half, typename Whole>
inline Half half_of(const Whole& a, int i) {
  return lane<Half>(a, static_cast<unsigned>(i));
}

// f(half) for both halves.
template <typename Whole, typename F>
inline Whole halves_of(F&& f) {
  const decltype(f(0)) both[2] = {f(0), f(1)};
  Whole whole;
  std::memcpy(&whole, both, sizeof whole);
  return whole;
}

inline simde__m512i widen_u16(__m256i a) {
  return lanes_of<simde__m512i, int32_t>([&](unsigned i) { return lane<uint16_t>(a, i); });
}
inline simde__m512i widen_u8(__m128i a) {
  return lanes_of<simde__m512i, int32_t>([&](unsigned i) { return lane<uint8_t>(a, i); });
}
inline simde__m512i widen_s8(__m128i a) {
  return lanes_of<simde__m512i, int32_t>([&](unsigned i) { return lane<int8_t>(a, i); });
}
inline __m256i narrow_to_16(simde__m512i a) {
  return lanes_of<__m256i, uint16_t>([&](unsigned i) { return lane<uint32_t>(a, i); });
}
inline __m128i narrow_to_8(simde__m512i a) {
  return lanes_of<__m128i, uint8_t>([&](unsigned i) { return lane<uint32_t>(a, i); });
}
inline simde__m512i to_integers(simde__m512 a) {
  return halves_of<simde__m512i>([&](int i) { return _mm256_cvtps_epi32(half_of<__m256>(a, i)); });
}
inline simde__m512 from_integers(simde__m512i a) {
  return halves_of<simde__m512>([&](int i) { return _mm256_cvtepi32_ps(half_of<__m256i>(a, i)); });
}
inline simde__m512i shift_right_signed(simde__m512i a, int n) {
  return halves_of<simde__m512i>(
      [&](int i) { return _mm256_srai_epi32(half_of<__m256i>(a, i), n); });
}
inline simde__m512 from_f16(__m256i a) {
  return halves_of<simde__m512>([&](int i) { return _mm256_cvtph_ps(half_of<__m128i>(a, i)); });
}
inline __m256i to_f16(simde__m512 a) {
  return halves_of<__m256i>([&](int i) { return _mm256_cvtps_ph(half_of<__m256>(a, i), 0); });
}

}  // namespace
}  // namespace pyvt::cpu::avx512

#define _mm512_cvtepu16_epi32(a) widen_u16(a)
#define _mm512_cvtepu8_epi32(a) widen_u8(a)
#define _mm512_cvtepi8_epi32(a) widen_s8(a)
#define _mm512_cvtepi32_epi16(a) narrow_to_16(a)
#define _mm512_cvtepi32_epi8(a) narrow_to_8(a)
#define _mm512_cvtps_epi32(a) to_integers(a)
#define _mm512_cvtepi32_ps(a) from_integers(a)
#define _mm512_srai_epi32(a, n) shift_right_signed(a, n)
#define _mm512_cvtph_ps(a) from_f16(a)
#define _mm512_cvtps_ph(a, rounding) to_f16(a)

#elif defined(PYVT_ISA_NEON) || defined(PYVT_ISA_I8MM)

#include <simde/arm/neon.h>

namespace pyvt::cpu::PYVT_ISA {
namespace {

inline float32x4_t divide(float32x4_t a, float32x4_t b) {
  float quotients[4], divisors[4];
  vst1q_f32(quotients, a);
  vst1q_f32(divisors, b);
  for (int i = 0; i < 4; ++i) quotients[i] /= divisors[i];
  return vld1q_f32(quotients);
}

// sums[2i + j] + the dot of 8 columns of row i of a with row j of b.
[[maybe_unused]] inline int32x4_t multiply_matrices(int32x4_t sums, int8x16_t a, int8x16_t b) {
  int32_t to[4];
  int8_t of_a[16], of_b[16];
  vst1q_s32(to, sums);
  vst1q_s8(of_a, a);
  vst1q_s8(of_b, b);
  for (int place = 0; place < 4; ++place) {
    for (int k = 0; k < 8; ++k) to[place] += of_a[place / 2 * 8 + k] * of_b[place % 2 * 8 + k];
  }
  return vld1q_s32(to);
}

}  // namespace
}  // namespace pyvt::cpu::PYVT_ISA

#define vdivq_f32(a, b) divide(a, b)
#define vmmlaq_s32(sums, a, b) multiply_matrices(sums, a, b)

#endif
