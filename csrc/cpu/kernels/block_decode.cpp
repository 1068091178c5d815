// what        decode<Format>: the f32 values of consecutive blocks, scale · code or scale · code +
// min layout      blocks as they lie in a GGUF file; out: their elements in order numerics scales
// as d · s and values as scale · code, then + min, each step rounded in f32: to
//             the bit what the reference and ggml give; scales that are not finite stay so
// work        a row of blocks a call; rows are few (tokens of a step)
// traffic     memory bound on the packed bytes
// source      ggml ggml-common.h and dequantize_row_*
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

inline uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

inline float read_f16(const uint8_t* p) { return pyvt::f16_to_f32(read_u16(p)); }

// Values of `n` codes that share a scale; without a min nothing is added, so -0 stays.
inline void scaled(float* out, const int8_t* codes, int n, float scale) {
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) * scale;
}
inline void scaled(float* out, const int8_t* codes, int n, float scale, float min) {
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) * scale + min;
}

// 2n codes of four bits: the low halves of n bytes, then the high ones.
inline void unpack_nibbles(int8_t* codes, const uint8_t* packed, int n) {
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<int8_t>(packed[i] & 15);
    codes[i + n] = static_cast<int8_t>(packed[i] >> 4);
  }
}

// Adds the fifth bits of 32 codes: bit i of `high` belongs to code i.
inline void add_fifth_bits(int8_t* codes, const uint8_t* high) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(codes[i] | (bits >> i & 1) << 4);
}

inline void shift_codes(int8_t* codes, int n, int offset) {
  for (int i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(codes[i] - offset);
}

struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  static void decode(float* out, const uint8_t* block) {
    int8_t codes[32];
    unpack_nibbles(codes, block + 2, 16);
    shift_codes(codes, 32, 8);
    scaled(out, codes, 32, read_f16(block));
  }
};

struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  static void decode(float* out, const uint8_t* block) {
    int8_t codes[32];
    unpack_nibbles(codes, block + 4, 16);
    scaled(out, codes, 32, read_f16(block), read_f16(block + 2));
  }
};

struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  static void decode(float* out, const uint8_t* block) {
    int8_t codes[32];
    unpack_nibbles(codes, block + 6, 16);
    add_fifth_bits(codes, block + 2);
    shift_codes(codes, 32, 16);
    scaled(out, codes, 32, read_f16(block));
  }
};

struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  static void decode(float* out, const uint8_t* block) {
    int8_t codes[32];
    unpack_nibbles(codes, block + 8, 16);
    add_fifth_bits(codes, block + 4);
    scaled(out, codes, 32, read_f16(block), read_f16(block + 2));
  }
};

struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  static void decode(float* out, const uint8_t* block) {
    scaled(out, reinterpret_cast<const int8_t*>(block + 2), 32, read_f16(block));
  }
};

// Six-bit scales and mins of the eight groups of a superblock, from 12 bytes: the low six bits of
// the first four lie in bytes 0-3 and 4-7; the others are a nibble of bytes 8-11 and two top bits.
inline void six_bit_pairs(const uint8_t* packed, int* scales, int* mins) {
  for (int g = 0; g < 4; ++g) {
    scales[g] = packed[g] & 63;
    mins[g] = packed[g + 4] & 63;
    scales[g + 4] = (packed[g + 8] & 15) | (packed[g] >> 6 << 4);
    mins[g + 4] = (packed[g + 8] >> 4) | (packed[g + 4] >> 6 << 4);
  }
}

// `high`: 32 bytes, bit g of byte i is the fifth bit of code i of group g; null for four-bit codes.
inline void decode_k(float* out, const uint8_t* block, const uint8_t* high, const uint8_t* low) {
  const float d = read_f16(block), d_min = read_f16(block + 2);
  int scales[8], mins[8];
  six_bit_pairs(block + 4, scales, mins);
  for (int g = 0; g < 8; ++g) {
    int8_t codes[32];
    const uint8_t* packed = low + g / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = g % 2 == 0 ? packed[i] & 15 : packed[i] >> 4;
      const int fifth = high == nullptr ? 0 : (high[i] >> g & 1) << 4;
      codes[i] = static_cast<int8_t>(code | fifth);
    }
    const float scale = d * static_cast<float>(scales[g]);
    scaled(out + g * 32, codes, 32, scale, -(d_min * static_cast<float>(mins[g])));
  }
}

struct Q4_K {
  static constexpr int kElements = 256, kBytes = 144;
  static void decode(float* out, const uint8_t* block) {
    decode_k(out, block, nullptr, block + 16);
  }
};

struct Q5_K {
  static constexpr int kElements = 256, kBytes = 176;
  static void decode(float* out, const uint8_t* block) {
    decode_k(out, block, block + 16, block + 48);
  }
};

struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  // Each half of 128 codes: low nibbles of 64 bytes, then their high ones; two bits from 32 bytes.
  static void decode(float* out, const uint8_t* block) {
    const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
    const float d = read_f16(block + 208);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* low = block + half * 64;
      const uint8_t* high = block + 128 + half * 32;
      int8_t codes[128];
      unpack_nibbles(codes, low, 64);
      for (int i = 0; i < 128; ++i) {
        const int top = high[i % 32] >> (i / 32 * 2) & 3;
        codes[i] = static_cast<int8_t>((codes[i] | top << 4) - 32);
      }
      for (int g = 0; g < 8; ++g) {
        const float scale = d * static_cast<float>(scales[half * 8 + g]);
        scaled(out + half * 128 + g * 16, codes + g * 16, 16, scale);
      }
    }
  }
};

template <typename Format>
void decode_blocks(float* out, const uint8_t* blocks, int64_t num_blocks) {
  for (int64_t b = 0; b < num_blocks; ++b) {
    Format::decode(out + b * Format::kElements, blocks + b * Format::kBytes);
  }
}

}  // namespace

void fill_block_decode(KernelTable& table) {
#define PYVT_FILL(place, name) table.decode_blocks[place] = &decode_blocks<name>;
  PYVT_DECODED_FORMATS(PYVT_FILL)
#undef PYVT_FILL
}

}  // namespace pyvt::cpu::PYVT_ISA
