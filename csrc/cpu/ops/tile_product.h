// TileProduct: rows of activations times tiles of a weight, whatever its dtype; the core of linear
// layers and of experts. Runs on one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "cpu/kernel_table.h"
#include "cpu/ops/tiles.h"
#include "cpu/scratch.h"

namespace pyvt::cpu {

constexpr int64_t kQ8Group = 32;
// Columns of an f32 panel: 32 KiB.
constexpr int64_t kPanelCols = 512;
// A panel of codes and the rows that meet it stay in the first-level cache, and the activations of
// a block of rows in the second one.
constexpr int64_t kCodePanelBytes = 20 << 10;
constexpr int64_t kCodePanelStep = 256;  // columns, a multiple of all blocks
constexpr int64_t kCodeBlockBytes = 288 << 10;
constexpr int64_t kMinBlockRows = 96;
// Most rows of activations that share an unpacked panel, a multiple of all steps of rows.
constexpr int64_t kMaxBlockRows = 264;
// Up to so many rows a tile of floats is read as it is packed; above, it is unpacked first.
constexpr int64_t kMaxDirectFloatRows = 7;

// Scratch that a product takes of its thread; launchers use other slots.
enum TileSlot { kPanelSlot = 6, kTileSlot = 7 };

constexpr int64_t kDirectSteps[] = {1, 2, 4};
constexpr int64_t kPanelSteps[] = {1, 4, 8};

// Calls f(i, m) so that the runs [m, m + steps[i]) of `count` steps cover `num_rows`, long ones
// first.
template <typename F>
void for_steps(const int64_t* steps, size_t count, int64_t num_rows, F&& f) {
  size_t i = count - 1;
  for (int64_t m = 0; m < num_rows; m += steps[i]) {
    while (steps[i] > num_rows - m) --i;
    f(i, m);
  }
}

// The same for kernels of floats.
template <typename F>
void for_float_steps(int64_t num_rows, F&& f) {
  for (int64_t m = 0; m < num_rows;) {
    const size_t i = float_step(num_rows - m);
    f(i, m);
    m += kFloatSteps[i];
  }
}

// Rows of f32, of the bits of bf16 or of codes, as the product asks for.
struct ActivationRows {
  const float* x = nullptr;
  int64_t ldx = 0;
  Q8Rows q8 = {};
  const uint16_t* pairs = nullptr;  // ldx apart

  // The rows from `m` on.
  ActivationRows from(int64_t m) const {
    ActivationRows rest = *this;
    if (x != nullptr) rest.x += m * ldx;
    if (pairs != nullptr) rest.pairs += m * ldx;
    if (q8.q != nullptr) {
      rest.q8.q += m * q8.ldq;
      rest.q8.scales += m * q8.lds;
      rest.q8.sums += m * q8.lds;
    }
    return rest;
  }
};

using WidenKernel = void (*)(const void*, float*, int64_t);

// Widens elements that lie `stride` bytes apart.
inline void widen_strided(WidenKernel widen, const char* from, int64_t stride, int64_t item,
                          float* to, int64_t count) {
  if (stride == item || count <= 1) {
    widen(from, to, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) widen(from + i * stride, to + i, 1);
}

// Copies elements of `item` bytes to places `stride` bytes apart.
inline void copy_strided(const char* from, int64_t item, char* to, int64_t stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride, from + i * item, static_cast<size_t>(item));
  }
}

// Whether `act` asks for activations in int8. Throws for a word that is unknown.
inline bool asks_for_q8(const char* op, const std::string& act) {
  PYVT_CHECK(op, act == "none" || act == "q8", "act: expected none or q8, got ", act);
  return act == "q8";
}

class TileProduct {
 public:
  // With `is_q8` a weight of a format that takes codes is multiplied by them; all else by f32.
  TileProduct(const KernelTable& table, const Tiles& tiles, bool is_q8)
      : table_(table), tiles_(tiles), is_q8_(is_q8 && tiles.format.takes_codes()) {}

  const Tiles& tiles() const { return tiles_; }
  bool is_q8() const { return is_q8_; }

  // Rows that are best given to `run` at once.
  int64_t max_rows() const {
    if (!is_q8_ || tiles_.num_cols == 0) return kMaxBlockRows;
    return std::clamp(kCodeBlockBytes / tiles_.num_cols, kMinBlockRows, kMaxBlockRows);
  }

  // Writes the products of `num_rows` rows with a tile: sums [num_rows][16].
  void run(int64_t tile, const ActivationRows& rows, int64_t num_rows, float* sums) const {
    if (tiles_.format.int8 == nullptr) {
      add_float(tile, rows, num_rows, sums);
    } else if (is_q8_) {
      add_q8(tile, rows.q8, num_rows, sums);
    } else {
      add_decoded(tile, rows, num_rows, sums);
    }
  }

  // Tiles that one row is best given to at once, with `run_apart`.
  int num_streams() const {
    const bool has = is_q8_ && tiles_.is_packed() && tiles_.format.int8->streams != nullptr;
    return has ? kStreams : 1;
  }

  // Writes the products of one row with the tiles `tile`, `tile` + `apart`, …: sums [kStreams][16].
  void run_apart(int64_t tile, int64_t apart, const ActivationRows& rows, float* sums) const {
    const int64_t cols = tiles_.num_cols;
    tiles_.format.int8->streams(whole_tile(tile), apart * tiles_.format.tile_bytes(cols), cols,
                                rows.q8, 0, sums);
  }

 private:
  void add_float(int64_t tile, const ActivationRows& rows, int64_t num_rows, float* sums) const {
    const FloatFormat& format = *tiles_.format.floats;
    const bool is_direct = num_rows <= kMaxDirectFloatRows;
    const int64_t cols = tiles_.num_cols;
    const int64_t step = is_direct && tiles_.is_packed() ? std::max<int64_t>(1, cols) : kPanelCols;
    uint8_t* packed = scratch<uint8_t>(kTileSlot, tiles_.scratch_bytes(std::min(step, cols)));
    // One round even where K is 0, to write zeros.
    for (int64_t k = 0; k == 0 || k < cols; k += step) {
      const int64_t count = std::min(step, cols - k);
      const uint8_t* words = tiles_.columns(tile, k, k + count, packed);
      if (rows.pairs != nullptr) {
        add_pairs(words, k, count, rows, num_rows, sums);
        continue;
      }
      if (is_direct || format.unpack_panel == nullptr) {
        add_words(words, k, count, rows, num_rows, sums);
        continue;
      }
      float* panel = scratch<float>(kPanelSlot, kPanelCols * kTileRows);
      format.unpack_panel(words, count, panel);
      add_panel(reinterpret_cast<const uint8_t*>(panel), k, count, rows, num_rows, sums);
    }
  }

  // Words of floats as they are packed. The first rows fetch them, ahead of use; where the words
  // are a panel too, those after them find them in the cache.
  void add_words(const uint8_t* words, int64_t k, int64_t count, const ActivationRows& rows,
                 int64_t num_rows, float* sums) const {
    const FloatFormat& format = *tiles_.format.floats;
    for_float_steps(num_rows, [&](size_t i, int64_t m) {
      const bool is_cached = m > 0 && format.unpack_panel == nullptr;
      const auto product = is_cached ? table_.float_panel[i] : format.direct[i];
      product(words, count, rows.x + m * rows.ldx + k, rows.ldx, sums + m * kTileRows, kTileRows,
              k == 0);
    });
  }

  // Words of bf16, for rows of bf16.
  void add_pairs(const uint8_t* words, int64_t k, int64_t count, const ActivationRows& rows,
                 int64_t num_rows, float* sums) const {
    const auto& pairs = tiles_.format.floats->pairs;
    for_steps(kPairSteps, std::size(kPairSteps), num_rows, [&](size_t i, int64_t m) {
      pairs[i](words, count, rows.pairs + m * rows.ldx + k, rows.ldx, sums + m * kTileRows,
               kTileRows, k == 0);
    });
  }

  void add_panel(const uint8_t* panel, int64_t k, int64_t count, const ActivationRows& rows,
                 int64_t num_rows, float* sums) const {
    for_float_steps(num_rows, [&](size_t i, int64_t m) {
      table_.float_panel[i](panel, count, rows.x + m * rows.ldx + k, rows.ldx, sums + m * kTileRows,
                            kTileRows, k == 0);
    });
  }

  const uint8_t* whole_tile(int64_t tile) const {
    const int64_t cols = tiles_.num_cols;
    return tiles_.columns(tile, 0, cols, scratch<uint8_t>(kTileSlot, tiles_.scratch_bytes(cols)));
  }

  void add_q8(int64_t tile, const Q8Rows& q8, int64_t num_rows, float* sums) const {
    const Int8Format& format = *tiles_.format.int8;
    const int64_t cols = tiles_.num_cols;
    const uint8_t* packed = whole_tile(tile);
    if (num_rows <= format.max_direct_rows) {
      for_steps(kDirectSteps, std::size(kDirectSteps), num_rows, [&](size_t i, int64_t m) {
        format.direct[i](packed, cols, q8, m, sums + m * kTileRows, kTileRows);
      });
      return;
    }
    const int64_t fitting = kCodePanelBytes * kCodePanelStep / format.panel_bytes(kCodePanelStep);
    const int64_t step = std::max(kCodePanelStep, fitting / kCodePanelStep * kCodePanelStep);
    uint8_t* panel = scratch<uint8_t>(kPanelSlot, format.panel_bytes(std::min(step, cols)));
    const size_t num_steps = std::size(kPanelSteps) - (format.panel[2] == nullptr ? 1 : 0);
    // One round even where K is 0, to write zeros.
    for (int64_t k = 0; k == 0 || k < cols; k += step) {
      const int64_t count = std::min(step, cols - k);
      format.unpack_panel(packed + tiles_.format.tile_bytes(k), count, panel);
      const Q8Rows a = {q8.q + k, q8.scales + k / kQ8Group, q8.sums + k / kQ8Group, q8.ldq, q8.lds};
      for_steps(kPanelSteps, num_steps, num_rows, [&](size_t i, int64_t m) {
        format.panel[i](panel, count, a, m, sums + m * kTileRows, kTileRows, k == 0);
      });
    }
  }

  void add_decoded(int64_t tile, const ActivationRows& rows, int64_t num_rows, float* sums) const {
    const uint8_t* packed = whole_tile(tile);
    const auto& of_floats = tiles_.format.int8->of_floats;
    if (num_rows <= kMaxDirectFloatRows && of_floats[0] != nullptr) {
      for_float_steps(num_rows, [&](size_t i, int64_t m) {
        of_floats[i](packed, tiles_.num_cols, rows.x + m * rows.ldx, rows.ldx, sums + m * kTileRows,
                     kTileRows);
      });
      return;
    }
    float* panel = scratch<float>(kPanelSlot, kPanelCols * kTileRows);
    // One round even where K is 0, to write zeros.
    for (int64_t k = 0; k == 0 || k < tiles_.num_cols; k += kPanelCols) {
      const int64_t count = std::min(kPanelCols, tiles_.num_cols - k);
      tiles_.format.int8->decode_tile(packed, k, k + count, panel);
      add_panel(reinterpret_cast<const uint8_t*>(panel), k, count, rows, num_rows, sums);
    }
  }

  const KernelTable& table_;
  const Tiles& tiles_;
  const bool is_q8_;
};

}  // namespace pyvt::cpu
