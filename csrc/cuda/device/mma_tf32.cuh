// Tensor-core products of f32 operands by way of tf32, which has 10 bits behind the point. The
// fragments are those of the PTX manual, in the emulator too.
//
// mma_16x8x8, D = A · B + C with g = lane / 4, t = lane % 4:
//   A [16][8]   a[0] (g, t), a[1] (g + 8, t), a[2] (g, t + 4), a[3] (g + 8, t + 4)
//   B [8][8]    b[0] (t, g), b[1] (t + 4, g)
//   C [16][8]   c[0] (g, 2t), c[1] (g, 2t + 1), c[2] (g + 8, 2t), c[3] (g + 8, 2t + 1)
// A sum does not depend on the order of its terms: callers put columns 2t and 2t + 1 of A, and rows
// 2t and 2t + 1 of B, where t and t + 4 stand here, and load neighbours at once.
#pragma once

#include "cuda/device/types.cuh"

namespace pyvt::cuda {

#ifdef PYVT_CUDA_EMU

// To nearest, ties away from zero, as cvt.rna does.
inline uint32_t tf32_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return std::isfinite(x) ? (bits + 0x1000u) & ~0x1fffu : bits;
}

struct MmaTf32Lane {
  const uint32_t* a;
  const uint32_t* b;
  float* c;
};

// A device does not look at the last 13 bits.
inline float f32_of_tf32(uint32_t bits) {
  bits &= ~0x1fffu;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline void mma_tf32_warp(void* const* lanes) {
  float a[16][8], b[8][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* own = static_cast<const MmaTf32Lane*>(lanes[lane]);
    if (own == nullptr) throw emu::Error("mma: a lane of the warp is missing");
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][t + r / 2 * 4] = f32_of_tf32(own->a[r]);
    for (int r = 0; r < 2; ++r) b[t + 4 * r][g] = f32_of_tf32(own->b[r]);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* own = static_cast<MmaTf32Lane*>(lanes[lane]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
      float sum = own->c[r];
      for (int k = 0; k < 8; ++k) sum += a[row][k] * b[k][column];
      own->c[r] = sum;
    }
  }
}

inline void mma_16x8x8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaTf32Lane own{a, b, c};
  emu::warp_collective(kAllLanes, &mma_tf32_warp, &own, __FILE__, __LINE__);
}

#else

PYVT_DEVICE uint32_t tf32_of(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(x));
  return bits;
}

PYVT_DEVICE void mma_16x8x8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

// What tf32 lacks of a value.
PYVT_DEVICE float rest_of_tf32(float x, uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return x - value;
}

// c += a · b. Operands are rounded to tf32; with kIsSplit they are sums of two, which keeps 21 bits
// at three times the work.
template <bool kIsSplit>
PYVT_DEVICE void mma_f32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  uint32_t high_a[4], high_b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) high_a[i] = tf32_of(a[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) high_b[i] = tf32_of(b[i]);
  if constexpr (kIsSplit) {
    uint32_t low_a[4], low_b[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) low_a[i] = tf32_of(rest_of_tf32(a[i], high_a[i]));
#pragma unroll
    for (int i = 0; i < 2; ++i) low_b[i] = tf32_of(rest_of_tf32(b[i], high_b[i]));
    mma_16x8x8(c, low_a, high_b);
    mma_16x8x8(c, high_a, low_b);
  }
  mma_16x8x8(c, high_a, high_b);
}

}  // namespace pyvt::cuda
