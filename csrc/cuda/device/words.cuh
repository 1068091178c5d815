// Words of four bytes from memory, and what is done with their bytes side by side.
#pragma once

#include "cuda/device/types.cuh"

namespace pyvt::cuda {

// kCount words from an address that is a multiple of kAlign. Where that is below 4, whole words
// around them are read; each holds a byte that was asked for.
template <int kAlign, int kCount>
PYVT_DEVICE void load_words(const uint8_t* data, uint32_t (&words)[kCount]) {
  if constexpr (kAlign == 16 && kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint4 raw = *reinterpret_cast<const uint4*>(data + 4 * i);
      words[i] = raw.x;
      words[i + 1] = raw.y;
      words[i + 2] = raw.z;
      words[i + 3] = raw.w;
    }
  } else if constexpr (kAlign >= 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = *reinterpret_cast<const uint32_t*>(data + 4 * i);
  } else {
    const auto at = reinterpret_cast<uintptr_t>(data);
    const auto* whole = reinterpret_cast<const uint32_t*>(at - at % 4);
    const int shift = static_cast<int>(at % 4) * 8;
    uint64_t both = whole[0];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i + 1 < kCount || shift != 0) both |= static_cast<uint64_t>(whole[i + 1]) << 32;
      words[i] = static_cast<uint32_t>(both >> shift);
      both >>= 32;
    }
  }
}

template <int kAlign>
PYVT_DEVICE float f16_at(const uint8_t* p) {
  if constexpr (kAlign >= 2) return load(*reinterpret_cast<const f16*>(p));
  return load(f16{static_cast<uint16_t>(p[0] | p[1] << 8)});
}
// Four bits as the lowest bits of four bytes.
PYVT_DEVICE uint32_t lowest_bits(uint32_t bits) {
  return (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
}

// The bytes of (low, high) that the four low nibbles of `selector` name.
PYVT_DEVICE uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef PYVT_CUDA_EMU
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) {
    found |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return found;
#else
  return __byte_perm(low, high, selector);
#endif
}

}  // namespace pyvt::cuda
