// Packed weight formats: 32 columns of a row at a time, as int8 codes with scales.
//
// An element is `scale · code + min`; in some formats each half of 16 columns has its own scale.
// Codes are four to a word, the lowest byte first. `fp8` has e4m3 bytes in place of codes. Blocks
// lie as in a file, at addresses that are multiples of `Block<kFormat>::kAlign`. The arithmetic is
// that of pyvt/ops/block_formats.py, in the same order.
#pragma once

#include "cuda/device/grids.cuh"

namespace pyvt::cuda {

constexpr int kGroup = 32, kWords = kGroup / 4;

struct Group {
  uint32_t words[kWords];
  float scale[2], min[2];
};

// Sizes of a block, and what its format has.
template <DType kFormat>
struct Block {
  static constexpr int columns() {
    switch (kFormat) {
#define PYVT_COLUMNS(name, text, number, block, bytes) \
  case DType::name:                                    \
    return block;
      PYVT_DTYPES(PYVT_COLUMNS)
#undef PYVT_COLUMNS
    }
    return 1;
  }
  static constexpr int bytes() {
    switch (kFormat) {
#define PYVT_BLOCK_BYTES(name, text, number, block, bytes) \
  case DType::name:                                        \
    return bytes;
      PYVT_DTYPES(PYVT_BLOCK_BYTES)
#undef PYVT_BLOCK_BYTES
    }
    return 0;
  }
  static constexpr int kBytes = bytes();
  static constexpr bool kIsPlain = columns() == 1;
  static constexpr int kGroups = kIsPlain ? 1 : columns() / kGroup;
  static constexpr int kAlign = kBytes % 16 == 0  ? 16
                                : kBytes % 4 == 0 ? 4
                                : kBytes % 2 == 0 ? 2
                                                  : 1;
  static constexpr bool kHasCodes =
      !kIsPlain && kFormat != DType::kFP8_G128 && kFormat != DType::kFP8_G32;
  static constexpr bool kHasMin = kFormat == DType::kQ4_1 || kFormat == DType::kQ5_1 ||
                                  kFormat == DType::kQ2_K || kFormat == DType::kQ4_K ||
                                  kFormat == DType::kQ5_K;
  static constexpr bool kHasHalves = kFormat == DType::kQ2_K || kFormat == DType::kQ3_K ||
                                     kFormat == DType::kQ6_K || kFormat == DType::kIQ2_XS ||
                                     kFormat == DType::kIQ2_S || kFormat == DType::kNVFP4 ||
                                     kFormat == DType::kNVFP4_G128 || kFormat == DType::kNVFP4_G32;
};

// Rounded by itself: nothing is fused with it.
#ifdef PYVT_CUDA_EMU
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
#else
PYVT_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
PYVT_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
#endif

PYVT_DEVICE float f32_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

template <int kAlign>
PYVT_DEVICE float f32_at(const uint8_t* p) {
  uint32_t word[1];
  load_words<kAlign>(p, word);
  return f32_of_bits(word[0]);
}

// Bytewise a − b, without borrows.
PYVT_DEVICE uint32_t minus_bytes(uint32_t a, uint32_t b) {
  return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u);
}
PYVT_DEVICE uint32_t repeat(uint32_t byte) { return byte * 0x01010101u; }

// Sixteen levels, int8 each, looked up by the low nibble of each byte.
PYVT_DEVICE uint32_t levels_of(uint32_t nibbles, uint64_t low, uint64_t high) {
  uint32_t selector = nibbles & 0x07070707u;
  selector = (selector | selector >> 4) & 0x00ff00ffu;
  selector = (selector | selector >> 8) & 0xffffu;
  const uint32_t is_high = repeat(1) & nibbles >> 3, mask = (is_high << 8) - is_high;
  const uint32_t lows =
      pick_bytes(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), selector);
  const uint32_t highs =
      pick_bytes(static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32), selector);
  return (lows & ~mask) | (highs & mask);
}
PYVT_DEVICE uint32_t iq4_levels(uint32_t nibbles) {
  return levels_of(nibbles, 0xf6eaddcfbfad9881u, 0x7159453526190d01u);
}
PYVT_DEVICE uint32_t fp4_levels(uint32_t nibbles) {
  return levels_of(nibbles, 0x0c08060403020100u, 0xf4f8fafcfdfeff00u);
}

// 2^(e − 128), subnormal where it must be.
PYVT_DEVICE float e8m0_half(uint32_t e) {
  return f32_of_bits(e < 2 ? (1u << 21) << e : (e - 1) << 23);
}
// Half of an unsigned e4m3 byte; the top bit does not count, 127 is 0.
PYVT_DEVICE float ue4m3_half(uint32_t code) {
  if (code == 127) return 0.0f;
  const uint32_t exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7);
  return exponent == 0 ? mantissa * 0x1p-10f
                       : (mantissa + 8.0f) * f32_of_bits((exponent + 116) << 23);
}

PYVT_DEVICE void set_scale(Group* out, float scale, float min = 0.0f) {
  out->scale[0] = out->scale[1] = scale;
  out->min[0] = out->min[1] = min;
}
PYVT_DEVICE void set_halves(Group* out, float first, float second) {
  out->scale[0] = first;
  out->scale[1] = second;
  out->min[0] = out->min[1] = 0.0f;
}

// Sixteen bytes of nibbles: the low ones first.
template <int kAlign>
PYVT_DEVICE void split_nibbles(const uint8_t* data, uint32_t (&words)[kWords]) {
  uint32_t both[kWords / 2];
  load_words<kAlign>(data, both);
#pragma unroll
  for (int i = 0; i < kWords / 2; ++i) {
    words[i] = both[i] & 0x0f0f0f0fu;
    words[kWords / 2 + i] = both[i] >> 4 & 0x0f0f0f0fu;
  }
}

PYVT_DEVICE void subtract(uint32_t (&words)[kWords], uint32_t less) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = minus_bytes(words[i], repeat(less));
}

// Q4_0, Q4_1, Q5_0, Q5_1.
template <DType kFormat>
PYVT_DEVICE void decode_legacy(const uint8_t* block, Group* out) {
  constexpr int kAlign = Block<kFormat>::kAlign >= 4 ? 4 : 2;
  constexpr bool kHasMin = Block<kFormat>::kHasMin;
  constexpr bool kHasFifth = kFormat == DType::kQ5_0 || kFormat == DType::kQ5_1;
  const uint8_t* rest = block + (kHasMin ? 4 : 2);
  split_nibbles<kAlign>(rest + (kHasFifth ? 4 : 0), out->words);
  if constexpr (kHasFifth) {
    uint32_t bits[1];
    load_words<kAlign>(rest, bits);
#pragma unroll
    for (int i = 0; i < kWords; ++i) out->words[i] |= lowest_bits(bits[0] >> 4 * i & 15) << 4;
  }
  if constexpr (!kHasMin) subtract(out->words, kHasFifth ? 16 : 8);
  set_scale(out, f16_at<2>(block), kHasMin ? f16_at<2>(block + 2) : 0.0f);
}

// Scale and min of a group, of 6 bits each.
PYVT_DEVICE void six_bits(const uint32_t (&packed)[3], int g, int* scale, int* min) {
  const int at = 8 * (g % 4);
  const uint32_t first = packed[0] >> at, second = packed[1] >> at, third = packed[2] >> at;
  *scale = static_cast<int>(g < 4 ? first & 63 : (third & 15) | (first >> 6 & 3) << 4);
  *min = static_cast<int>(g < 4 ? second & 63 : (third >> 4 & 15) | (second >> 6 & 3) << 4);
}

// Q4_K, Q5_K.
template <bool kHasFifth>
PYVT_DEVICE void decode_k(const uint8_t* block, int g, Group* out) {
  uint32_t head[4];
  load_words<16>(block, head);
  const uint32_t packed[3] = {head[1], head[2], head[3]};
  int scale, min;
  six_bits(packed, g, &scale, &min);
  load_words<16>(block + (kHasFifth ? 48 : 16) + g / 2 * 32, out->words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) out->words[i] = out->words[i] >> 4 * (g % 2) & 0x0f0f0f0fu;
  if constexpr (kHasFifth) {
    uint32_t bits[kWords];
    load_words<16>(block + 16, bits);
#pragma unroll
    for (int i = 0; i < kWords; ++i) out->words[i] |= (bits[i] >> g & 0x01010101u) << 4;
  }
  const float d = load(f16{static_cast<uint16_t>(head[0] & 0xffff)});
  const float dmin = load(f16{static_cast<uint16_t>(head[0] >> 16)});
  set_scale(out, d * static_cast<float>(scale), -(dmin * static_cast<float>(min)));
}

PYVT_DEVICE void decode_q2_k(const uint8_t* block, int g, Group* out) {
  load_words<4>(block + 16 + g / 4 * 32, out->words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) out->words[i] = out->words[i] >> 2 * (g % 4) & 0x03030303u;
  const float d = f16_at<2>(block + 80), dmin = f16_at<2>(block + 82);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int both = block[2 * g + h];
    out->scale[h] = d * static_cast<float>(both & 15);
    out->min[h] = -(dmin * static_cast<float>(both >> 4));
  }
}

PYVT_DEVICE void decode_q3_k(const uint8_t* block, int g, Group* out) {
  uint32_t bits[kWords];
  load_words<2>(block + 32 + g / 4 * 32, out->words);
  load_words<2>(block, bits);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    out->words[i] = (out->words[i] >> 2 * (g % 4) & 0x03030303u) | (bits[i] >> g & 0x01010101u)
                                                                       << 2;
  }
  subtract(out->words, 4);
  const uint8_t* packed = block + 96;
  const float d = f16_at<2>(block + 108);
  float scales[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int k = 2 * g + h;
    const int low = k < 8 ? packed[k] & 15 : packed[k - 8] >> 4;
    const int step = (low | (packed[8 + k % 4] >> 2 * (k / 4) & 3) << 4) - 32;
    scales[h] = d * static_cast<float>(step);
  }
  set_halves(out, scales[0], scales[1]);
}

PYVT_DEVICE void decode_q6_k(const uint8_t* block, int g, Group* out) {
  const int half = g / 4, part = g % 4;
  uint32_t high[kWords];
  load_words<2>(block + half * 64 + part % 2 * 32, out->words);
  load_words<2>(block + 128 + half * 32, high);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    out->words[i] =
        (out->words[i] >> 4 * (part / 2) & 0x0f0f0f0fu) | (high[i] >> 2 * part & 0x03030303u) << 4;
  }
  subtract(out->words, 32);
  const float d = f16_at<2>(block + 208);
  const auto scale = [&](int h) {
    return d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * g + h]));
  };
  set_halves(out, scale(0), scale(1));
}

template <bool kIsFP4, int kAlign>
PYVT_DEVICE void decode_levels(const uint8_t* codes, float scale, Group* out) {
  split_nibbles<kAlign>(codes, out->words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    out->words[i] = kIsFP4 ? fp4_levels(out->words[i]) : iq4_levels(out->words[i]);
  }
  set_scale(out, scale);
}

// Two runs of 8 bytes: 16 columns each, the low nibbles first.
template <int kAlign>
PYVT_DEVICE void decode_fp4_halves(const uint8_t* codes, float first, float second, Group* out) {
  uint32_t both[kWords / 2];
  load_words<kAlign>(codes, both);
#pragma unroll
  for (int i = 0; i < kWords / 2; ++i) {
    const int at = i / 2 * 4 + i % 2;
    out->words[at] = fp4_levels(both[i]);
    out->words[at + 2] = fp4_levels(both[i] >> 4);
  }
  set_halves(out, first, second);
}

// Blocks that begin with an f32 scale; pyvt/tensor/scaled_layout.py.
template <DType kFormat>
PYVT_DEVICE void decode_scaled(const uint8_t* block, int g, Group* out) {
  constexpr int kAlign = Block<kFormat>::kAlign < 4 ? Block<kFormat>::kAlign : 4;
  const float whole = f32_at<kAlign>(block);
  if constexpr (kFormat == DType::kINT4_G128 || kFormat == DType::kINT4_G32) {
    split_nibbles<1>(block + 5 + 16 * g, out->words);
    const uint32_t raised = block[4];
#pragma unroll
    for (int i = 0; i < kWords; ++i) out->words[i] += repeat(raised);
    subtract(out->words, 16);
    set_scale(out, whole);
  } else if constexpr (kFormat == DType::kNVFP4_G128 || kFormat == DType::kNVFP4_G32) {
    constexpr int kScales = Block<kFormat>::kGroups * 2;
    const uint8_t* scales = block + 4 + 2 * g;
    decode_fp4_halves<kAlign>(block + 4 + kScales + 16 * g, load(fp8{scales[0]}) * whole * 0.5f,
                              load(fp8{scales[1]}) * whole * 0.5f, out);
  } else {  // INT8 and FP8: bytes
    load_words<kAlign>(block + 4 + kGroup * g, out->words);
    set_scale(out, whole);
  }
}

// Group g of a block.
template <DType kFormat>
PYVT_DEVICE void decode_group(const uint8_t* block, int g, Group* out) {
  if constexpr (kFormat == DType::kQ8_0) {
    load_words<2>(block + 2, out->words);
    set_scale(out, f16_at<2>(block));
  } else if constexpr (kFormat == DType::kQ2_K) {
    decode_q2_k(block, g, out);
  } else if constexpr (kFormat == DType::kQ3_K) {
    decode_q3_k(block, g, out);
  } else if constexpr (kFormat == DType::kQ4_K || kFormat == DType::kQ5_K) {
    decode_k<kFormat == DType::kQ5_K>(block, g, out);
  } else if constexpr (kFormat == DType::kQ6_K) {
    decode_q6_k(block, g, out);
  } else if constexpr (kFormat == DType::kIQ4_NL) {
    decode_levels<false, 2>(block + 2, f16_at<2>(block), out);
  } else if constexpr (kHasGrid<kFormat>) {
    decode_grid<kFormat>(block, g, out->words, out->scale);
    out->min[0] = out->min[1] = 0.0f;
  } else if constexpr (kFormat == DType::kIQ4_XS) {
    const int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
    const int high = block[2 + g / 4] >> 2 * (g % 4) & 3;
    const float scale = f16_at<2>(block) * static_cast<float>((low | high << 4) - 32);
    decode_levels<false, 4>(block + 8 + 16 * g, scale, out);
  } else if constexpr (kFormat == DType::kMXFP4) {
    decode_levels<true, 1>(block + 1, e8m0_half(block[0]), out);
  } else if constexpr (kFormat == DType::kNVFP4) {
    const float first = ue4m3_half(block[2 * g]), second = ue4m3_half(block[2 * g + 1]);
    decode_fp4_halves<4>(block + 4 + 16 * g, first, second, out);
  } else if constexpr (kFormat == DType::kQ4_0 || kFormat == DType::kQ4_1 ||
                       kFormat == DType::kQ5_0 || kFormat == DType::kQ5_1) {
    decode_legacy<kFormat>(block, out);
  } else {
    decode_scaled<kFormat>(block, g, out);
  }
}

// Columns 32 · group … of a row.
template <DType kFormat>
PYVT_DEVICE void decode_row(const uint8_t* row, int group, Group* out) {
  constexpr int kGroups = Block<kFormat>::kGroups;
  decode_group<kFormat>(row + group / kGroups * int64_t{Block<kFormat>::kBytes}, group % kGroups,
                        out);
}

// An e4m3 byte: its exponent and mantissa as those of an f32 2^120 times too small; 127 is NaN.
PYVT_DEVICE float e4m3(uint32_t code) {
  const uint32_t size = code & 0x7f;
  const float value = f32_of_bits((code & 0x80) << 24 | size << 20) * 0x1p120f;
  return size == 0x7f ? NAN : value;
}

template <DType kFormat>
PYVT_DEVICE float code_of(uint32_t word, int byte) {
  const auto code = static_cast<uint8_t>(word >> 8 * byte);
  if constexpr (Block<kFormat>::kHasCodes) return static_cast<float>(static_cast<int8_t>(code));
  return e4m3(code);
}

// Column i of a group, to the bit as the reference forms it.
template <DType kFormat>
PYVT_DEVICE float value_of_group(const Group& group, int i) {
  const float value = mul_rn(code_of<kFormat>(group.words[i / 4], i % 4), group.scale[i / 16]);
  return Block<kFormat>::kHasMin ? add_rn(value, group.min[i / 16]) : value;
}

}  // namespace pyvt::cuda
