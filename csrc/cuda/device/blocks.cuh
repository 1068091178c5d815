// Packed weight formats: 32 columns of a row at a time, as int8 codes with scales or as f32.
//
// An element is `scale · code + min`; the halves of 16 columns have scales of their own in some
// formats. Blocks lie as in a file, at any address. Codes are four to a word, the lowest byte
// first. The arithmetic is that of pyvt/ops/block_formats.py, in the same order.
#pragma once

#include "cuda/device/types.cuh"

namespace pyvt::cuda {

constexpr int kGroup = 32, kWords = kGroup / 4;

struct Group {
  int words[kWords];
  float scale[2], min[2];
};

PYVT_DEVICE float f32_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

PYVT_DEVICE uint32_t word_at(const uint8_t* data, int i) {
  const uint8_t* p = data + 4 * i;
  return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}
PYVT_DEVICE float f16_at(const uint8_t* p) {
  return load(f16{static_cast<uint16_t>(p[0] | p[1] << 8)});
}
PYVT_DEVICE float f32_at(const uint8_t* p) { return f32_of_bits(word_at(p, 0)); }

// Bytewise a − b, without borrows.
PYVT_DEVICE uint32_t minus_bytes(uint32_t a, uint32_t b) {
  return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u);
}
PYVT_DEVICE uint32_t repeat(uint32_t byte) { return byte * 0x01010101u; }

// Four bits as the fifth bits of four bytes.
PYVT_DEVICE uint32_t fifth_bits(uint32_t bits) {
  return ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << 4;
}

// Sixteen levels, int8 each, looked up by the low nibble of each byte.
PYVT_DEVICE uint32_t levels_of(uint32_t nibbles, uint64_t low, uint64_t high) {
  uint32_t found = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = nibbles >> 8 * i & 15;
    const uint64_t table = at < 8 ? low : high;
    found |= static_cast<uint32_t>(table >> 8 * (at & 7) & 0xff) << 8 * i;
  }
  return found;
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
  const int exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7);
  return exponent == 0
             ? mantissa * 0x1p-10f
             : (mantissa + 8.0f) * f32_of_bits(static_cast<uint32_t>(exponent + 116) << 23);
}

PYVT_DEVICE void set_scale(Group* out, float scale, float min = 0.0f) {
  out->scale[0] = out->scale[1] = scale;
  out->min[0] = out->min[1] = min;
}

// Sixteen bytes of nibbles: the low ones first.
PYVT_DEVICE void split_nibbles(const uint8_t* data, uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = word_at(data, i);
    words[i] = word & 0x0f0f0f0fu;
    words[4 + i] = word >> 4 & 0x0f0f0f0fu;
  }
}

PYVT_DEVICE void set_codes(Group* out, const uint32_t (&words)[kWords], uint32_t less) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    out->words[i] = static_cast<int>(minus_bytes(words[i], repeat(less)));
  }
}

// Scale and min of a group of a K format, of 6 bits each.
PYVT_DEVICE void six_bits(const uint8_t* packed, int g, int* scale, int* min) {
  if (g < 4) {
    *scale = packed[g] & 63;
    *min = packed[4 + g] & 63;
  } else {
    *scale = (packed[4 + g] & 15) | packed[g - 4] >> 6 << 4;
    *min = packed[4 + g] >> 4 | packed[g] >> 6 << 4;
  }
}

PYVT_DEVICE void legacy_nibbles(const uint8_t* block, bool has_min, bool has_fifth, Group* out) {
  const uint8_t* rest = block + (has_min ? 4 : 2);
  uint32_t words[kWords];
  split_nibbles(rest + (has_fifth ? 4 : 0), words);
  if (has_fifth) {
    const uint32_t bits = word_at(rest, 0);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] |= fifth_bits(bits >> 4 * i & 15);
  }
  set_codes(out, words, has_min ? 0 : has_fifth ? 16 : 8);
  set_scale(out, f16_at(block), has_min ? f16_at(block + 2) : 0.0f);
}

PYVT_DEVICE void k_nibbles(const uint8_t* block, int g, bool has_fifth, Group* out) {
  const uint8_t* codes = block + (has_fifth ? 48 : 16) + g / 2 * 32;
  int scale, min;
  six_bits(block + 4, g, &scale, &min);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    uint32_t word = word_at(codes, i) >> 4 * (g % 2) & 0x0f0f0f0fu;
    if (has_fifth) word |= (word_at(block + 16, i) >> g & 0x01010101u) << 4;
    out->words[i] = static_cast<int>(word);
  }
  set_scale(out, f16_at(block) * static_cast<float>(scale),
            -(f16_at(block + 2) * static_cast<float>(min)));
}

PYVT_DEVICE void q2_k(const uint8_t* block, int g, Group* out) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    out->words[i] =
        static_cast<int>(word_at(block + 16 + g / 4 * 32, i) >> 2 * (g % 4) & 0x03030303u);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int both = block[2 * g + h];
    out->scale[h] = f16_at(block + 80) * static_cast<float>(both & 15);
    out->min[h] = -(f16_at(block + 82) * static_cast<float>(both >> 4));
  }
}

PYVT_DEVICE void q3_k(const uint8_t* block, int g, Group* out) {
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = word_at(block + 32 + g / 4 * 32, i) >> 2 * (g % 4) & 0x03030303u;
    words[i] |= (word_at(block, i) >> g & 0x01010101u) << 2;
  }
  set_codes(out, words, 4);
  const uint8_t* packed = block + 96;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int k = 2 * g + h;
    const int low = k < 8 ? packed[k] & 15 : packed[k - 8] >> 4;
    const int step = (low | (packed[8 + k % 4] >> 2 * (k / 4) & 3) << 4) - 32;
    out->scale[h] = f16_at(block + 108) * static_cast<float>(step);
    out->min[h] = 0.0f;
  }
}

PYVT_DEVICE void q6_k(const uint8_t* block, int g, Group* out) {
  const int half = g / 4, part = g % 4;
  const uint8_t* low = block + half * 64 + part % 2 * 32;
  const uint8_t* high = block + 128 + half * 32;
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = word_at(low, i) >> 4 * (part / 2) & 0x0f0f0f0fu;
    words[i] |= (word_at(high, i) >> 2 * part & 0x03030303u) << 4;
  }
  set_codes(out, words, 32);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int step = static_cast<int8_t>(block[192 + 2 * g + h]);
    out->scale[h] = f16_at(block + 208) * static_cast<float>(step);
    out->min[h] = 0.0f;
  }
}

PYVT_DEVICE void iq4(const uint8_t* codes, float scale, Group* out) {
  uint32_t words[kWords];
  split_nibbles(codes, words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) out->words[i] = static_cast<int>(iq4_levels(words[i]));
  set_scale(out, scale);
}

PYVT_DEVICE void iq4_xs(const uint8_t* block, int g, Group* out) {
  const int low = block[4 + g / 2] >> 4 * (g % 2) & 15, high = block[2 + g / 4] >> 2 * (g % 4) & 3;
  iq4(block + 8 + 16 * g, f16_at(block) * static_cast<float>((low | high << 4) - 32), out);
}

// Two runs of 8 bytes: 16 columns each, the low nibbles first.
PYVT_DEVICE void fp4_halves(const uint8_t* codes, float first, float second, Group* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = word_at(codes, i);
    const int at = i / 2 * 4 + i % 2;
    out->words[at] = static_cast<int>(fp4_levels(word));
    out->words[at + 2] = static_cast<int>(fp4_levels(word >> 4));
  }
  out->scale[0] = first;
  out->scale[1] = second;
  out->min[0] = out->min[1] = 0.0f;
}

PYVT_DEVICE void mxfp4(const uint8_t* block, Group* out) {
  uint32_t words[kWords];
  split_nibbles(block + 1, words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) out->words[i] = static_cast<int>(fp4_levels(words[i]));
  set_scale(out, e8m0_half(block[0]));
}

PYVT_DEVICE void scaled_int4(const uint8_t* block, int g, Group* out) {
  uint32_t words[kWords];
  split_nibbles(block + 5 + 16 * g, words);
  const uint32_t raised = block[4];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] += repeat(raised);
  set_codes(out, words, 16);
  set_scale(out, f32_at(block));
}

PYVT_DEVICE void bytes_of(const uint8_t* codes, float scale, Group* out) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) out->words[i] = static_cast<int>(word_at(codes, i));
  set_scale(out, scale);
}

PYVT_DEVICE void scaled_nvfp4(const uint8_t* block, int g, int num_scales, Group* out) {
  const float whole = f32_at(block);
  const uint8_t* scales = block + 4 + 2 * g;
  fp4_halves(block + 4 + num_scales + 16 * g, load(fp8{scales[0]}) * whole * 0.5f,
             load(fp8{scales[1]}) * whole * 0.5f, out);
}

// Whether the elements are whole numbers times a scale.
PYVT_DEVICE bool has_codes(DType dtype) {
  return dtype != DType::kFP8_G128 && dtype != DType::kFP8_G32;
}

// Group g of a block, for a format with integer codes.
PYVT_DEVICE void decode_group(DType dtype, const uint8_t* block, int g, Group* out) {
  switch (dtype) {
    case DType::kQ4_0:
      return legacy_nibbles(block, false, false, out);
    case DType::kQ4_1:
      return legacy_nibbles(block, true, false, out);
    case DType::kQ5_0:
      return legacy_nibbles(block, false, true, out);
    case DType::kQ5_1:
      return legacy_nibbles(block, true, true, out);
    case DType::kQ8_0:
      return bytes_of(block + 2, f16_at(block), out);
    case DType::kQ2_K:
      return q2_k(block, g, out);
    case DType::kQ3_K:
      return q3_k(block, g, out);
    case DType::kQ4_K:
      return k_nibbles(block, g, false, out);
    case DType::kQ5_K:
      return k_nibbles(block, g, true, out);
    case DType::kQ6_K:
      return q6_k(block, g, out);
    case DType::kIQ4_NL:
      return iq4(block + 2, f16_at(block), out);
    case DType::kIQ4_XS:
      return iq4_xs(block, g, out);
    case DType::kMXFP4:
      return mxfp4(block, out);
    case DType::kNVFP4:
      return fp4_halves(block + 4 + 16 * g, ue4m3_half(block[2 * g]), ue4m3_half(block[2 * g + 1]),
                        out);
    case DType::kINT4_G128:
    case DType::kINT4_G32:
      return scaled_int4(block, g, out);
    case DType::kINT8_G128:
    case DType::kINT8_G32:
      return bytes_of(block + 4 + 32 * g, f32_at(block), out);
    case DType::kNVFP4_G128:
      return scaled_nvfp4(block, g, 8, out);
    case DType::kNVFP4_G32:
      return scaled_nvfp4(block, g, 2, out);
    default:
      return;
  }
}

PYVT_DEVICE float code_at(const Group& group, int i) {
  return static_cast<float>(static_cast<int8_t>(group.words[i / 4] >> 8 * (i % 4)));
}

// The values of group g of a block.
PYVT_DEVICE void decode_values(DType dtype, const uint8_t* block, int g, float (&values)[kGroup]) {
  if (!has_codes(dtype)) {
    const float scale = f32_at(block);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[i] = load(fp8{block[4 + kGroup * g + i]}) * scale;
    return;
  }
  Group group;
  decode_group(dtype, block, g, &group);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    values[i] = group.scale[i / 16] * code_at(group, i) + group.min[i / 16];
  }
}

// A matrix in blocks: where its rows lie.
struct Blocks {
  const uint8_t* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0, num_cols = 0, row_stride = 0;
  int groups_of_block = 0, block_bytes = 0;

  PYVT_DEVICE const uint8_t* block(int64_t row, int group) const {
    return data + row * row_stride + group / groups_of_block * int64_t{block_bytes};
  }
  PYVT_DEVICE int num_groups() const { return static_cast<int>(num_cols / kGroup); }
  // Columns 32 · group … of a row.
  PYVT_DEVICE void values(int64_t row, int group, float (&out)[kGroup]) const {
    decode_values(dtype, block(row, group), group % groups_of_block, out);
  }
  PYVT_DEVICE void codes(int64_t row, int group, Group* out) const {
    decode_group(dtype, block(row, group), group % groups_of_block, out);
  }
};

}  // namespace pyvt::cuda
