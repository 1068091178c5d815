// what        pack_tile: 16 rows of blocks as they lie in a file become one tile
// layout      rows: 16 pointers to whole rows; tile: for each block the fields of its format, which
//             only move bytes; the twin of pyvt/ops/packed_int8.py. Nothing may alias
// work        one tile a call; the launcher splits tiles over threads
// traffic     reads and writes each byte once; words of codes in transposes of 4 words by 8 rows
// tried       words copied one by one: 1.2-2.5 GB/s a core, against 2.3-3.3 now and 6 of memcpy
#pragma once

#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int kRowWordBytes = 64;  // a word of each row

// kBits is a word whose bit 4j + i becomes bit 8i + j, so that one shift brings the bits of a quad
// to their four bytes; kRun is a run of bytes that stays one piece.
enum Unit { kByte = 1, kHalf = 2, kWord = 4, kBits = 5, kRun = 6 };

constexpr int unit_bytes(Unit unit) { return unit == kBits ? 4 : unit == kRun ? 1 : unit; }

// `count` units at `offset` of a block in a file. Unit i of the 16 rows lies in the tile at
// `to` + i · `step` · 16 units.
struct Field {
  int offset, count;
  Unit unit;
  int to, step = 1;

  constexpr int tile_step() const { return step * unit_bytes(unit) * 16; }
};

template <int kCount>
constexpr int tile_bytes_of(const Field (&fields)[kCount]) {
  int sum = 0;
  for (const Field& field : fields) sum += field.count * unit_bytes(field.unit) * 16;
  return sum;
}

inline uint32_t bits_by_quad(uint32_t bits) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t plane = bits >> i & 0x11111111u;
    plane = (plane | plane >> 3) & 0x03030303u;
    plane = (plane | plane >> 6) & 0x000f000fu;
    plane = (plane | plane >> 12) & 0xffu;
    result |= plane << (8 * i);
  }
  return result;
}

template <int kUnitBytes>
inline void pack_units(const uint8_t* const rows[kTileRows], int64_t offset, const Field& field,
                       uint8_t* tile) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    const uint8_t* from = rows[r] + offset;
    uint8_t* to = tile + r * kUnitBytes;
    for (int i = 0; i < field.count; ++i, to += field.tile_step()) {
      std::memcpy(to, from + i * kUnitBytes, kUnitBytes);
    }
  }
}

inline void pack_words(const uint8_t* const rows[kTileRows], int64_t offset, const Field& field,
                       uint8_t* tile) {
  for (int i = 0; i < field.count; i += 4) {
    for (int half = 0; half < 2; ++half) {
      simd::transpose_four_words(rows + 8 * half, offset + i * 4,
                                 tile + i * field.tile_step() + half * kRowWordBytes / 2,
                                 field.tile_step());
    }
  }
}

inline void pack_bits(const uint8_t* const rows[kTileRows], int64_t offset, uint8_t* tile) {
  uint32_t words[kTileRows];
  for (int64_t r = 0; r < kTileRows; ++r) std::memcpy(words + r, rows[r] + offset, 4);
  for (uint32_t& word : words) word = bits_by_quad(word);
  std::memcpy(tile, words, sizeof words);
}

inline void pack_runs(const uint8_t* const rows[kTileRows], int64_t offset, const Field& field,
                      uint8_t* tile) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    std::memcpy(tile + r * field.count, rows[r] + offset, static_cast<size_t>(field.count));
  }
}

template <class Format>
void pack_tile(const uint8_t* const rows[kTileRows], int64_t num_cols, uint8_t* tile) {
  static_assert(tile_bytes_of(Format::kFields) == Format::kTileBlockBytes, "a byte is lost");
  const int64_t num_blocks = num_cols / Format::kFileCols;
  for (int64_t block = 0; block < num_blocks; ++block, tile += Format::kTileBlockBytes) {
    for (const Field& field : Format::kFields) {
      const int64_t offset = block * Format::kFileBlockBytes + field.offset;
      uint8_t* to = tile + field.to;
      if (field.unit == kWord) pack_words(rows, offset, field, to);
      if (field.unit == kHalf) pack_units<2>(rows, offset, field, to);
      if (field.unit == kByte) pack_units<1>(rows, offset, field, to);
      if (field.unit == kBits) pack_bits(rows, offset, to);
      if (field.unit == kRun) pack_runs(rows, offset, field, to);
    }
  }
}

}  // namespace
}  // namespace pyvt::cpu::PYVT_ISA
