// Tensor-core products of a warp, and the loads that feed them. The fragments (lane and register
// to element) are those of the PTX manual; the emulator computes with the very same layouts, so a
// wrong one gives a wrong result there too.
//
// mma_16x8x16, D = A · B + C with g = lane / 4, t = lane % 4:
//   A [16][16]  a[0] (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8): an element
//               and its right neighbour each, the left one in the low half
//   B [16][8]   b[0] (2t, g), b[1] (2t + 8, g): an element and the one below
//   C [16][8]   c[0] (g, 2t), c[1] (g, 2t + 1), c[2] (g + 8, 2t), c[3] (g + 8, 2t + 1)
// ldmatrix_x4: four matrices [8][8] of 16-bit elements; lane 8·i + r gives the address of row r of
// matrix i, register i gets (g, 2t) and its right neighbour, transposed (2t, g) and the one below.
#pragma once

#include <type_traits>

#include "cuda/device/types.cuh"

namespace pyvt::cuda {

template <typename T>
PYVT_DEVICE uint32_t pack(float low, float high) {
  return store<T>(low).bits | static_cast<uint32_t>(store<T>(high).bits) << 16;
}

#ifdef PYVT_CUDA_EMU

struct MmaLane {
  const uint32_t* a;
  const uint32_t* b;
  float* c;
};

template <typename T>
float half_of(uint32_t word, int high) {
  return load(T{static_cast<uint16_t>(word >> 16 * high)});
}

template <typename T>
void mma_warp(void* const* lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* own = static_cast<const MmaLane*>(lanes[lane]);
    if (own == nullptr) throw emu::Error("mma: a lane of the warp is missing");
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + r % 2 * 8][2 * t + r / 2 * 8 + i] = half_of<T>(own->a[r], i);
      }
      for (int r = 0; r < 2; ++r) b[2 * t + 8 * r + i][g] = half_of<T>(own->b[r], i);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* own = static_cast<MmaLane*>(lanes[lane]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
      float sum = own->c[r];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      own->c[r] = sum;
    }
  }
}

template <typename T>
void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t* b) {
  MmaLane own{a, b, c};
  emu::warp_collective(kAllLanes, &mma_warp<T>, &own, __FILE__, __LINE__);
}

struct LoadLane {
  uint32_t* registers;
  const uint16_t* row;
};

template <bool kTransposed>
void load_warp(void* const* lanes) {
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* own = static_cast<LoadLane*>(lanes[lane]);
    if (own == nullptr) throw emu::Error("ldmatrix: a lane of the warp is missing");
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const int row = kTransposed ? 2 * t + half : g, column = kTransposed ? g : 2 * t + half;
        const auto* from = static_cast<const LoadLane*>(lanes[8 * i + row]);
        word |= static_cast<uint32_t>(from->row[column]) << 16 * half;
      }
      own->registers[i] = word;
    }
  }
}

template <bool kTransposed>
void ldmatrix_x4(uint32_t (&registers)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    throw emu::Error("ldmatrix: a row is not 16-byte aligned");
  }
  LoadLane own{registers, static_cast<const uint16_t*>(row)};
  emu::warp_collective(kAllLanes, &load_warp<kTransposed>, &own, __FILE__, __LINE__);
}

#else

template <typename T>
PYVT_DEVICE void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t* b) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

template <bool kTransposed>
PYVT_DEVICE void ldmatrix_x4(uint32_t (&registers)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  }
}

#endif

}  // namespace pyvt::cuda
