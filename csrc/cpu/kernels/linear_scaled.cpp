// what        the formats of checkpoints of Hugging Face with integer codes, in blocks of 128 or 32
//             columns with an f32 scale s: INT4: s · (q - z); INT8: s · q; NVFP4: (s · u) · L for
//             each 16 columns, u an e4m3 number and L a 4-bit float
// layout      tile block: [16] f32 s; INT4: [16] bytes 16 - z; NVFP4: [2 a 32 columns][16] bytes u;
//             then for each 32 columns the words of codes: INT4 as Q4_0, INT8 as Q8_0, NVFP4 as the
//             NVFP4 of GGUF
// numerics    INT4: q + 16 - z is in [0, 31], less 16 as in Q5_0. NVFP4: levels are twice their
//             value, u half of it
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int kScaleBytes = 64;  // of a tile's block: 16 of f32

alignas(16) constexpr int8_t kFp4Levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

template <int kCols>
struct Int4 : UnsignedCodes<Int4<kCols>> {
  static constexpr int kFileCols = kCols, kFileBlockBytes = 5 + kCols / 2;
  static constexpr int kTileBlockBytes = 16 * kFileBlockBytes, kWords = kScaleBytes + 16;
  static constexpr Field kFields[] = {
      {0, 4, kRun, 0}, {4, 1, kByte, kScaleBytes}, {5, kCols / 8, kWord, kWords}};
  static constexpr int kOffset = 16;

  struct Block {
    const uint8_t* p;
    alignas(64) uint32_t raised[16];

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      for (int r = 0; r < 16; ++r) raised[r] = p[kScaleBytes + r] * 0x01010101u;
    }
    PYVT_INLINE simd::Words quad(int sub, int j) const {
      return simd::add(half_bytes(p + kWords + sub * 4 * kRowWordBytes, j),
                       simd::load_words(raised));
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_floats(p); }
  };
};

template <int kCols>
struct Int8 : SignedCodes<Int8<kCols>> {
  static constexpr int kFileCols = kCols, kFileBlockBytes = 4 + kCols;
  static constexpr int kTileBlockBytes = 16 * kFileBlockBytes;
  static constexpr Field kFields[] = {{0, 4, kRun, 0}, {4, kCols / 4, kWord, kScaleBytes}};
  static constexpr int kMaxDirectRows = 64;

  struct Block {
    const uint8_t* p;

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {}
    PYVT_INLINE simd::Words quad(int sub, int j) const {
      return simd::load_words(p + kScaleBytes + (sub * kQuads + j) * kRowWordBytes);
    }
    PYVT_INLINE simd::Floats scale(int, int) const { return simd::load_floats(p); }
  };
};

template <int kCols>
struct ScaledNVFP4 : SignedCodes<ScaledNVFP4<kCols>> {
  static constexpr int kNumScales = kCols / 16, kFileCols = kCols;
  static constexpr int kFileBlockBytes = 4 + kNumScales + kCols / 2;
  static constexpr int kTileBlockBytes = 16 * kFileBlockBytes;
  static constexpr int kWords = kScaleBytes + 16 * kNumScales, kGroups = 2;
  static constexpr Field kFields[] = {{0, 4, kRun, 0},
                                      {4, kNumScales, kByte, kScaleBytes},
                                      {4 + kNumScales, kCols / 8, kWord, kWords}};
  static constexpr int kMaxDirectRows = 8;

  struct Block {
    const uint8_t* p;
    alignas(64) float scales[16 * kNumScales];

    explicit PYVT_INLINE Block(const uint8_t* tile) : p(tile) {
      float whole[16];
      std::memcpy(whole, p, sizeof whole);
      for (int i = 0; i < kNumScales; ++i) {
        for (int r = 0; r < 16; ++r) {
          scales[i * 16 + r] = pyvt::e4m3_to_f32(p[kScaleBytes + i * 16 + r]) * whole[r] * 0.5f;
        }
      }
    }
    PYVT_INLINE simd::Words quad(int sub, int j) const {
      const int group = sub * 2 + j / 4;
      const simd::Words words = simd::load_words(p + kWords + (group * 2 + j % 2) * kRowWordBytes);
      return simd::look_up(kFp4Levels,
                           simd::keep_bits(j % 4 < 2 ? words : simd::shift_right(words, 4), 15));
    }
    PYVT_INLINE simd::Floats scale(int sub, int group) const {
      return simd::load_floats(scales + (sub * 2 + group) * 16);
    }
  };
};

}  // namespace

void fill_linear_scaled(KernelTable& table) {
  table.int8[int8_index(DType::kINT4_G128)] = int8_format<Int4<128>>();
  table.int8[int8_index(DType::kINT4_G32)] = int8_format<Int4<32>>();
  table.int8[int8_index(DType::kINT8_G128)] = int8_format<Int8<128>>();
  table.int8[int8_index(DType::kINT8_G32)] = int8_format<Int8<32>>();
  table.int8[int8_index(DType::kNVFP4_G128)] = int8_format<ScaledNVFP4<128>>();
  table.int8[int8_index(DType::kNVFP4_G32)] = int8_format<ScaledNVFP4<32>>();
}

}  // namespace pyvt::cpu::PYVT_ISA
