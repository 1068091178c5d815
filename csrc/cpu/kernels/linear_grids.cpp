// what        formats whose codes name rows of a grid (iq_grids.h) of 8 or 4 magnitudes, with signs
//             apart: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S; scales for each 32 columns of 256, for
//             16 in IQ2_XS and IQ2_S
// layout      tile block: the blocks of 16 rows as they lie in a file, one after the other. Panel:
//             as Q8_0
// numerics    as Q8_0: codes are magnitudes with their signs as int8, dots exact
// work        a superblock of all rows is decoded to codes in the first-level cache before its
//             products: one lookup of magnitudes and one of signs for 8 columns of a row. With more
//             than one row of activations the tile is decoded once, to a panel
// traffic     IQ2_XS: one row 10 % of a plain read loop, bound by the lookups; 256 rows 49 % of the
//             int8 loop
// tried       nothing more: these formats are for size
#include "cpu/iq_grids.h"
#include "cpu/kernels/int8_tile-inl.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

template <typename T>
inline T read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline float read_f16(const uint8_t* p) { return pyvt::f16_to_f32(read<uint16_t>(p)); }
inline int half_byte(const uint8_t* p, int i) { return p[i / 2] >> (i % 2 * 4) & 15; }
inline uint64_t pair(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

// A row's file block as runs of 8 columns: their magnitudes, bytes of 255 for minus signs, and the
// scales of the groups of columns.
struct IQ2_XXSRow {
  static constexpr int kBytes = 66, kGroups = 1;
  const uint8_t* p;

  uint32_t word(int sub) const { return read<uint32_t>(p + 2 + sub * 8 + 4); }
  uint64_t magnitudes(const IqGrids& grids, int run) const {
    return grids.iq2_xxs[p[2 + run / 4 * 8 + run % 4]];
  }
  uint64_t signs(const IqGrids& grids, int run) const {
    return grids.signs_of_seven[word(run / 4) >> (run % 4 * 7) & 127];
  }
  float scale(int group) const {
    return read_f16(p) * (0.5f + static_cast<float>(word(group) >> 28)) * 0.25f;
  }
};

struct IQ2_XSRow {
  static constexpr int kBytes = 74, kGroups = 2;
  const uint8_t* p;

  uint32_t code(int run) const { return read<uint16_t>(p + 2 + run * 2); }
  uint64_t magnitudes(const IqGrids& grids, int run) const { return grids.iq2_xs[code(run) & 511]; }
  uint64_t signs(const IqGrids& grids, int run) const {
    return grids.signs_of_seven[code(run) >> 9];
  }
  float scale(int group) const {
    return read_f16(p) * (0.5f + static_cast<float>(half_byte(p + 66, group))) * 0.25f;
  }
};

struct IQ2_SRow {
  static constexpr int kBytes = 82, kGroups = 2;
  const uint8_t* p;

  uint64_t magnitudes(const IqGrids& grids, int run) const {
    const uint8_t* high = p + 66;
    return grids.iq2_s[p[2 + run] | (high[run / 4] >> (run % 4 * 2) & 3) << 8];
  }
  uint64_t signs(const IqGrids& grids, int run) const { return grids.signs[p[34 + run]]; }
  float scale(int group) const {
    return read_f16(p) * (0.5f + static_cast<float>(half_byte(p + 74, group))) * 0.25f;
  }
};

struct IQ3_XXSRow {
  static constexpr int kBytes = 98, kGroups = 1;
  const uint8_t* p;

  uint32_t word(int sub) const { return read<uint32_t>(p + 66 + sub * 4); }
  uint64_t magnitudes(const IqGrids& grids, int run) const {
    return pair(grids.iq3_xxs[p[2 + run * 2]], grids.iq3_xxs[p[2 + run * 2 + 1]]);
  }
  uint64_t signs(const IqGrids& grids, int run) const {
    return grids.signs_of_seven[word(run / 4) >> (run % 4 * 7) & 127];
  }
  float scale(int group) const {
    return read_f16(p) * (0.5f + static_cast<float>(word(group) >> 28)) * 0.5f;
  }
};

struct IQ3_SRow {
  static constexpr int kBytes = 110, kGroups = 1;
  const uint8_t* p;

  uint32_t grid_row(const IqGrids& grids, int i) const {
    const uint8_t* high = p + 66;
    return grids.iq3_s[p[2 + i] | (high[i / 8] >> (i % 8) & 1) << 8];
  }
  uint64_t magnitudes(const IqGrids& grids, int run) const {
    return pair(grid_row(grids, run * 2), grid_row(grids, run * 2 + 1));
  }
  uint64_t signs(const IqGrids& grids, int run) const { return grids.signs[p[74 + run]]; }
  float scale(int group) const {
    return read_f16(p) * static_cast<float>(1 + 2 * half_byte(p + 106, group));
  }
};

constexpr int kGridCols = 256;

// A superblock of 16 rows, decoded: quads of codes and scales, of each row.
template <class Row>
struct GridBlock {
  static constexpr int kNumGroups = kGridCols / kBlockCols * Row::kGroups;
  const uint8_t* p;
  alignas(64) uint32_t codes[kGridCols / 4][kTileRows];
  alignas(64) float scales[kNumGroups][kTileRows];

  explicit PYVT_KERNEL GridBlock(const uint8_t* tile) : p(tile) {
    const IqGrids& grids = iq_grids();
    for (int64_t r = 0; r < kTileRows; ++r) {
      const Row row{tile + r * Row::kBytes};
      for (int run = 0; run < kGridCols / 8; ++run) {
        const uint64_t signs = row.signs(grids, run);
        // -x = ~x + 1; a magnitude is never 0, so that nothing is carried between bytes.
        const uint64_t bytes = (row.magnitudes(grids, run) ^ signs) + (signs & 0x0101010101010101u);
        codes[2 * run][r] = static_cast<uint32_t>(bytes);
        codes[2 * run + 1][r] = static_cast<uint32_t>(bytes >> 32);
      }
      for (int group = 0; group < kNumGroups; ++group) scales[group][r] = row.scale(group);
    }
  }

  PYVT_INLINE simd::Words quad(int sub, int j) const {
    return simd::load_words(codes[sub * kQuads + j]);
  }
  PYVT_INLINE simd::Floats scale(int sub, int group) const {
    return simd::load_floats(scales[sub * Row::kGroups + group]);
  }
};

template <class Row>
struct GridFormat : SignedCodes<GridFormat<Row>> {
  static constexpr int kFileCols = kGridCols, kFileBlockBytes = Row::kBytes;
  static constexpr int kTileBlockBytes = 16 * Row::kBytes, kGroups = Row::kGroups;
  static constexpr Field kFields[] = {{0, Row::kBytes, kRun, 0}};
  static constexpr int kMaxDirectRows = 1;
  using Block = GridBlock<Row>;
};

}  // namespace

void fill_linear_grids(KernelTable& table) {
  table.int8[int8_index(DType::kIQ2_XXS)] = int8_format<GridFormat<IQ2_XXSRow>>();
  table.int8[int8_index(DType::kIQ2_XS)] = int8_format<GridFormat<IQ2_XSRow>>();
  table.int8[int8_index(DType::kIQ2_S)] = int8_format<GridFormat<IQ2_SRow>>();
  table.int8[int8_index(DType::kIQ3_XXS)] = int8_format<GridFormat<IQ3_XXSRow>>();
  table.int8[int8_index(DType::kIQ3_S)] = int8_format<GridFormat<IQ3_SRow>>();
}

}  // namespace pyvt::cpu::PYVT_ISA
