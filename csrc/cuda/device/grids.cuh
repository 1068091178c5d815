// Formats whose codes name rows of a grid, 8 or 4 magnitudes, with signs apart: IQ2_XXS, IQ2_XS,
// IQ2_S, IQ3_XXS, IQ3_S. Blocks have 256 columns and lie at multiples of two bytes.
//
// A row of a grid is 16 bits, 2 or 4 a magnitude, which pick its level: 5 KB of tables in all, from
// the first-level cache. A group of 32 columns takes 4 or 8 loads of a table and about 60
// operations, twice those of Q4_K: few rows are bound by them, at a half of 4.3 TB/s on paper.
#pragma once

#include "cpu/iq_grid_codes.h"
#include "cuda/device/words.cuh"

namespace pyvt::cuda {

template <DType kFormat>
constexpr bool kHasGrid =
    kFormat == DType::kIQ2_XXS || kFormat == DType::kIQ2_XS || kFormat == DType::kIQ2_S ||
    kFormat == DType::kIQ3_XXS || kFormat == DType::kIQ3_S;

template <int kCount>
struct GridRows {
  uint16_t codes[kCount];
};

template <int kCount>
constexpr GridRows<kCount> rows_of_grid(const uint16_t (&codes)[kCount]) {
  GridRows<kCount> rows = {};
  for (int i = 0; i < kCount; ++i) rows.codes[i] = codes[i];
  return rows;
}

// Device memory, with initial values that the compiler works out.
#ifdef PYVT_CUDA_EMU
#define PYVT_GRID(name) constexpr auto name = rows_of_grid(cpu::name##Codes)
#else
#define PYVT_GRID(name) \
  [[maybe_unused]] static __device__ const auto name = rows_of_grid(cpu::name##Codes)
#endif
PYVT_GRID(kIq2Xxs);
PYVT_GRID(kIq2Xs);
PYVT_GRID(kIq2S);
PYVT_GRID(kIq3Xxs);
PYVT_GRID(kIq3S);
#undef PYVT_GRID

// Four magnitudes of 8, 25 and 43 by two bits each.
PYVT_DEVICE uint32_t magnitudes_of_2(uint32_t codes) {
  const uint32_t selector =
      (codes & 3) | (codes & 0xc) << 2 | (codes & 0x30) << 4 | (codes & 0xc0) << 6;
  return pick_bytes(0x002b1908u, 0, selector);
}
PYVT_DEVICE uint32_t magnitudes_of_3_xxs(uint32_t codes) {
  return pick_bytes(0x1c140c04u, 0x3e342c24u, codes);
}
PYVT_DEVICE uint32_t magnitudes_of_3_s(uint32_t codes) {
  return pick_bytes(0x07050301u, 0x0f0d0b09u, codes);
}

// Four magnitudes with minus where a bit is set. −x is ~x + 1, and no magnitude is 0, so nothing is
// carried between bytes.
PYVT_DEVICE uint32_t with_signs(uint32_t magnitudes, uint32_t bits) {
  const uint32_t minus = lowest_bits(bits), mask = (minus << 8) - minus;
  return (magnitudes ^ mask) + minus;
}
// Seven bits stand for eight, whose last makes their number even.
PYVT_DEVICE uint32_t eight_signs(uint32_t seven) {
  return seven | (static_cast<uint32_t>(__popc(seven)) & 1) << 7;
}

// Row `code` of a grid of 8 as two words.
template <int kCount>
PYVT_DEVICE void set_eight(const GridRows<kCount>& rows, uint32_t code, uint32_t signs,
                           uint32_t* words) {
  const uint32_t codes = rows.codes[code];
  words[0] = with_signs(magnitudes_of_2(codes), signs & 15);
  words[1] = with_signs(magnitudes_of_2(codes >> 8), signs >> 4);
}

PYVT_DEVICE float quarter_step(float d, uint32_t step) {
  return d * (0.5f + static_cast<float>(step)) * 0.25f;
}

// Group g of a block: 32 codes, four to a word, and the scales of its halves.
template <DType kFormat>
PYVT_DEVICE void decode_grid(const uint8_t* block, int g, uint32_t (&words)[8], float (&scale)[2]) {
  const float d = f16_at<2>(block);
  if constexpr (kFormat == DType::kIQ2_XXS || kFormat == DType::kIQ2_XS) {
    uint32_t own[2];
    load_words<2>(block + 2 + 8 * g, own);
    constexpr bool kIsXs = kFormat == DType::kIQ2_XS;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint32_t both = own[r / 2] >> 16 * (r % 2) & 0xffff;
      const uint32_t seven = kIsXs ? both >> 9 : own[1] >> 7 * r & 127;
      if constexpr (kIsXs) {
        set_eight(kIq2Xs, both & 511, eight_signs(seven), words + 2 * r);
      } else {
        set_eight(kIq2Xxs, own[0] >> 8 * r & 255, eight_signs(seven), words + 2 * r);
      }
    }
    const uint32_t steps = kIsXs ? block[66 + g] : 0;
    scale[0] = quarter_step(d, kIsXs ? steps & 15 : own[1] >> 28);
    scale[1] = kIsXs ? quarter_step(d, steps >> 4) : scale[0];
  } else if constexpr (kFormat == DType::kIQ2_S) {
    uint32_t low[1], signs[1];
    load_words<2>(block + 2 + 4 * g, low);
    load_words<2>(block + 34 + 4 * g, signs);
    const uint32_t high = block[66 + g], steps = block[74 + g];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint32_t code = (low[0] >> 8 * r & 255) | (high >> 2 * r & 3) << 8;
      set_eight(kIq2S, code, signs[0] >> 8 * r & 255, words + 2 * r);
    }
    scale[0] = quarter_step(d, steps & 15);
    scale[1] = quarter_step(d, steps >> 4);
  } else {
    constexpr bool kIsS = kFormat == DType::kIQ3_S;
    uint32_t low[2], signs[1];
    load_words<2>(block + 2 + 8 * g, low);
    load_words<2>(block + (kIsS ? 74 : 66) + 4 * g, signs);
    const uint32_t high = kIsS ? block[66 + g] : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t code = low[i / 4] >> 8 * (i % 4) & 255;
      if constexpr (kIsS) {
        const uint32_t codes = kIq3S.codes[code | (high >> i & 1) << 8];
        words[i] = with_signs(magnitudes_of_3_s(codes), signs[0] >> 4 * i & 15);
      } else {
        const uint32_t eight = eight_signs(signs[0] >> 7 * (i / 2) & 127);
        words[i] = with_signs(magnitudes_of_3_xxs(kIq3Xxs.codes[code]), eight >> 4 * (i % 2) & 15);
      }
    }
    const uint32_t step = kIsS ? block[106 + g / 2] >> 4 * (g % 2) & 15 : signs[0] >> 28;
    scale[0] =
        kIsS ? d * static_cast<float>(1 + 2 * step) : d * (0.5f + static_cast<float>(step)) * 0.5f;
    scale[1] = scale[0];
  }
}

}  // namespace pyvt::cuda
