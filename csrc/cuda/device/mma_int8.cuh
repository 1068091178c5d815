// Tensor-core products of int8: D = A · B + C of whole numbers, by a warp. Fragments are those of
// the PTX manual, in the emulator too.
//
// mma_int8<kDepth> with kDepth 16 or 32, g = lane / 4, t = lane % 4:
//   A [16][kDepth]  a[2·i] (g, 16·i + 4t), a[2·i + 1] (g + 8, 16·i + 4t): four neighbours each, the
//                   first in the low byte
//   B [kDepth][8]   b[i] (16·i + 4t, g): an element and the three below
//   C [16][8]       c[0] (g, 2t), c[1] (g, 2t + 1), c[2] (g + 8, 2t), c[3] (g + 8, 2t + 1)
#pragma once

#include "cuda/device/platform.cuh"

namespace pyvt::cuda {

#ifdef PYVT_CUDA_EMU

struct MmaInt8Lane {
  const uint32_t* a;
  const uint32_t* b;
  int* c;
};

template <int kDepth>
void mma_int8_warp(void* const* lanes) {
  int a[16][kDepth], b[kDepth][8];
  const auto byte = [](uint32_t word, int i) { return static_cast<int8_t>(word >> 8 * i); };
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* own = static_cast<const MmaInt8Lane*>(lanes[lane]);
    if (own == nullptr) throw emu::Error("mma: a lane of the warp is missing");
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < kDepth / 16; ++i) {
      for (int j = 0; j < 4; ++j) {
        a[g][16 * i + 4 * t + j] = byte(own->a[2 * i], j);
        a[g + 8][16 * i + 4 * t + j] = byte(own->a[2 * i + 1], j);
        b[16 * i + 4 * t + j][g] = byte(own->b[i], j);
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* own = static_cast<MmaInt8Lane*>(lanes[lane]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
      for (int k = 0; k < kDepth; ++k) own->c[r] += a[row][k] * b[k][column];
    }
  }
}

template <int kDepth>
void mma_int8(int (&c)[4], const uint32_t* a, const uint32_t* b) {
  MmaInt8Lane own{a, b, c};
  emu::warp_collective(kAllLanes, &mma_int8_warp<kDepth>, &own, __FILE__, __LINE__);
}

#else

template <int kDepth>
PYVT_DEVICE void mma_int8(int (&c)[4], const uint32_t* a, const uint32_t* b) {
  if constexpr (kDepth == 32) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  }
}

#endif

}  // namespace pyvt::cuda
