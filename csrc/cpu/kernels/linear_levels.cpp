// what        formats whose 4-bit codes name one of 16 levels, L: IQ4_NL: value = d · L;
//             IQ4_XS: (d · S) · L, S of 6 bits less 32 for each 32 columns of 256; MXFP4: 2^(e-128)
//             · L; NVFP4: u · L, u half an unsigned e4m3 number for each 16 columns of 64
// layout      tile block: the bytes of scales with 16 rows side by side, then for each 32 columns
//             [4 words][16 rows] of codes, in halves of bytes as in Q4_0; NVFP4: in groups of 16
//             columns, the low halves of two words before the high ones. Panel: as Q8_0
// numerics    as Q8_0: levels are int8 and dots exact. Levels of 4-bit floats are twice their
//             value and scales half of it, so that they are integers
// work        a lookup of a quad of 16 rows is one shuffle of bytes for each register
// traffic     IQ4_XS: one row 89-95 % of a plain read loop; 256 rows 51-58 % of the int8 loop
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// With 16 rows of activations panels reach 47 % of the int8 loop, tiles as packed 35 to 38 %.
constexpr int kMaxRowsAsPacked = 8;

alignas(16) constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr int8_t kFp4Levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

struct IQ4_NL : SignedCodes<IQ4_NL> {
  static constexpr int kMaxDirectRows = kMaxRowsAsPacked;
  static constexpr int kFileCols = 32, kFileBlockBytes = 18, kTileBlockBytes = 288;
  static constexpr Field kFields[] = {{0, 1, kHalf, 0}, {2, 4, kWord, 32}};

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::look_up(kIq4Levels, half_bytes(p + 32, j));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_halves(p); }
  };
};

struct IQ4_XS : SignedCodes<IQ4_XS> {
  static constexpr int kMaxDirectRows = kMaxRowsAsPacked;
  static constexpr int kFileCols = 256, kFileBlockBytes = 136, kTileBlockBytes = 2176;
  static constexpr Field kFields[] = {
      {0, 1, kHalf, 0}, {2, 2, kByte, 32}, {4, 4, kByte, 64}, {8, 32, kWord, 128}};

  struct Block {
    const uint8_t* p;
    alignas(32) uint8_t scales[128];  // S - 32 as int8

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      const uint8_t *high = p + 32, *low = p + 64;
      for (int sub = 0; sub < 8; ++sub) {
        for (int r = 0; r < 16; ++r) {
          const int of_low = low[sub / 2 * 16 + r] >> (sub % 2 * 4) & 15;
          const int of_high = high[sub / 4 * 16 + r] >> (sub % 4 * 2) & 3;
          scales[sub * 16 + r] = static_cast<uint8_t>((of_low | of_high << 4) - 32);
        }
      }
    }

    PYVT_INLINE simd::Words quad(int sub, int j) const {
      return simd::look_up(kIq4Levels, half_bytes(p + 128 + sub * 4 * kRowWordBytes, j));
    }
    PYVT_INLINE simd::Floats scale(int sub, int) const {
      return simd::mul(simd::load_halves(p), simd::load_s8(scales + sub * 16));
    }
  };
};

struct MXFP4 : SignedCodes<MXFP4> {
  static constexpr int kMaxDirectRows = kMaxRowsAsPacked;
  static constexpr int kFileCols = 32, kFileBlockBytes = 17, kTileBlockBytes = 272;
  static constexpr Field kFields[] = {{0, 1, kByte, 0}, {1, 4, kWord, 16}};

  struct Block {
    const uint8_t* p;
    alignas(64) uint32_t scales[16];  // bits of f32

    // The two smallest ones are subnormal.
    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      for (int r = 0; r < 16; ++r) {
        const uint32_t e = p[r];
        scales[r] = e < 2 ? (1u << 21) << e : (e - 1) << 23;
      }
    }
    PYVT_INLINE simd::Words quad(int, int j) const {
      return simd::look_up(kFp4Levels, half_bytes(p + 16, j));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_floats(scales); }
  };
};

struct NVFP4 : SignedCodes<NVFP4> {
  static constexpr int kMaxDirectRows = kMaxRowsAsPacked;
  static constexpr int kFileCols = 64, kFileBlockBytes = 36, kTileBlockBytes = 576, kGroups = 2;
  static constexpr Field kFields[] = {{0, 4, kByte, 0}, {4, 8, kWord, 64}};

  struct Block {
    const uint8_t* p;
    alignas(64) float scales[64];

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      for (int i = 0; i < 64; ++i) scales[i] = half_of_e4m3(p[i]);
    }

    // The top bit does not count; 127 is a NaN and stands for 0.
    static PYVT_INLINE float half_of_e4m3(uint32_t code) {
      const uint32_t of_nan = static_cast<uint32_t>(static_cast<int32_t>((code ^ 127) - 1) >> 31);
      return pyvt::e4m3_magnitude_to_f32(code & 127 & ~of_nan) * 0.5f;
    }

    PYVT_INLINE simd::Words quad(int sub, int j) const {
      const int group = sub * 2 + j / 4;
      const simd::Words words = simd::load_words(p + 64 + (group * 2 + j % 2) * kRowWordBytes);
      return simd::look_up(kFp4Levels,
                           simd::keep_bits(j % 4 < 2 ? words : simd::shift_right(words, 4), 15));
    }
    PYVT_INLINE simd::Floats scale(int sub, int group) const {
      return simd::load_floats(scales + (sub * 2 + group) * 16);
    }
  };
};

}  // namespace

void fill_linear_levels(KernelTable& table) {
  table.int8[int8_index(DType::kIQ4_NL)] = int8_format<IQ4_NL>();
  table.int8[int8_index(DType::kIQ4_XS)] = int8_format<IQ4_XS>();
  table.int8[int8_index(DType::kMXFP4)] = int8_format<MXFP4>();
  table.int8[int8_index(DType::kNVFP4)] = int8_format<NVFP4>();
}

}  // namespace pyvt::cpu::PYVT_ISA
