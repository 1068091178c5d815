// Launchers of linear layers: packed_linear, linear and quant_linear are one product over tiles of
// 16 outputs. Blocks of rows of activations are prepared once, then the tiles go over threads.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/rows.h"
#include "cpu/ops/tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Most rows of activations that share an unpacked panel, a multiple of all steps of rows.
constexpr int64_t kMaxBlockRows = 264;
constexpr int64_t kRowSteps = 12;
// Columns of an f32 panel: 32 KiB.
constexpr int64_t kPanelCols = 512;
// A panel of codes and the rows that meet it stay in the first-level cache, and the activations of
// a block of rows in the second one.
constexpr int64_t kCodePanelBytes = 20 << 10;
constexpr int64_t kCodePanelStep = 256;  // columns, a multiple of all blocks
constexpr int64_t kCodeBlockBytes = 288 << 10;
constexpr int64_t kMinBlockRows = 96;
// Up to so many rows a tile of floats is read as it is packed; above, it is unpacked first.
constexpr int64_t kMaxDirectFloatRows = 7;
// Work that is worth waking a thread for.
constexpr int64_t kGrainProducts = 16 << 10;
constexpr int64_t kGrainElements = 8 << 10;

constexpr int64_t kQ8Group = 32;

// Scratch: the first two are the caller's, shared with the region.
enum Slot { kBias, kActivations, kSums, kPanel, kTile };

constexpr int64_t kFloatSteps[] = {1, 2, 4, 6};
constexpr int64_t kDirectSteps[] = {1, 2, 4};
constexpr int64_t kPanelSteps[] = {1, 4};

// Calls f(i, m) so that the runs [m, m + steps[i]) cover `num_rows`, long ones first.
template <size_t kCount, typename F>
void for_steps(const int64_t (&steps)[kCount], int64_t num_rows, F&& f) {
  size_t i = kCount - 1;
  for (int64_t m = 0; m < num_rows; m += steps[i]) {
    while (steps[i] > num_rows - m) --i;
    f(i, m);
  }
}

// One call: the arguments in the form that kernels take, and the stages of the product.
class Product {
 public:
  Product(const char* op, const KernelTable& table, const TensorView& out, const TensorView& x,
          const Tiles& tiles, const TensorView& bias, bool is_q8)
      : table_(table),
        tiles_(tiles),
        to_(strided_rows_of(op, "out", out)),
        from_(strided_rows_of(op, "x", x)),
        to_stride_(out.stride[out.rank - 1] * item_bytes(out.dtype)),
        from_stride_(x.stride[x.rank - 1] * item_bytes(x.dtype)),
        x_dtype_(x.dtype),
        item_bytes_(item_bytes(out.dtype)),
        is_q8_(is_q8),
        finish_(table.finish_rows[float_index(op, out.dtype)]),
        widen_(table.widen_row[float_index(op, x.dtype)]),
        quantize_(table.quantize_row[float_index(op, x.dtype)]) {
    PYVT_CHECK(op, out.is_writeable, "out: expected a writeable array");
    PYVT_CHECK(op, from_.length == tiles.num_cols, "x: expected K=", tiles.num_cols, ", got ",
               from_.length);
    PYVT_CHECK(op, to_.num_rows == from_.num_rows && to_.length == tiles.num_rows,
               "out: wrong shape");
    PYVT_CHECK(op,
               !is_q8 || (tiles.format.int8 != nullptr && tiles.format.int8->direct[0] != nullptr),
               "act: q8 needs a weight in blocks with integer codes");
    is_in_place_ =
        !is_q8 && x.dtype == DType::kF32 && x.is_dense(1) && (x.rank <= 2 || x.is_dense());
    ldx_ = x.rank == 2 ? x.stride[0] : tiles.num_cols;
    if (bias.has_value()) read_bias(op, bias);
  }

  void run() {
    const int64_t block_rows = max_block_rows();
    const int64_t num_blocks = (from_.num_rows + block_rows - 1) / block_rows;
    for (int64_t block = 0; block < num_blocks; ++block) {
      first_row_ = from_.num_rows * block / num_blocks / kRowSteps * kRowSteps;
      const int64_t next = from_.num_rows * (block + 1) / num_blocks;
      num_rows_ = (block + 1 == num_blocks ? next : next / kRowSteps * kRowSteps) - first_row_;
      if (is_q8_) {
        quantize();
      } else {
        widen();
      }
      const int64_t products = kTileRows * std::max<int64_t>(1, tiles_.num_cols) * num_rows_;
      parallel_for(tiles_.num_tiles(), kGrainProducts / products + 1,
                   [&](int64_t begin, int64_t end) { run_tiles(begin, end); });
    }
  }

 private:
  int64_t max_block_rows() const {
    if (!is_q8_ || tiles_.num_cols == 0) return kMaxBlockRows;
    return std::clamp(kCodeBlockBytes / tiles_.num_cols, kMinBlockRows, kMaxBlockRows);
  }

  void read_bias(const char* op, const TensorView& bias) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == tiles_.num_rows, "bias: wrong shape");
    const Rows rows = strided_rows_of(op, "bias", bias);
    float* wide = scratch<float>(kBias, tiles_.num_rows);
    const auto widen = table_.widen_row[float_index(op, bias.dtype)];
    widen_strided(widen, rows.data, bias.stride[0] * item_bytes(bias.dtype), item_bytes(bias.dtype),
                  wide, tiles_.num_rows);
    bias_ = wide;
  }

  using Widen = void (*)(const void*, float*, int64_t);

  static void widen_strided(Widen widen, const char* from, int64_t stride, int64_t item, float* to,
                            int64_t count) {
    if (stride == item || count <= 1) {
      widen(from, to, count);
      return;
    }
    for (int64_t i = 0; i < count; ++i) widen(from + i * stride, to + i, 1);
  }

  void widen_row(int64_t row, float* to) const {
    widen_strided(widen_, static_cast<const char*>(from_.row(row)), from_stride_,
                  item_bytes(x_dtype_), to, tiles_.num_cols);
  }

  void widen() {
    if (is_in_place_) {
      x_ = static_cast<const float*>(from_.row(first_row_));
      return;
    }
    ldx_ = tiles_.num_cols;
    float* wide = scratch<float>(kActivations, num_rows_ * ldx_);
    parallel_for(num_rows_, kGrainElements / (ldx_ + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) widen_row(first_row_ + m, wide + m * ldx_);
    });
    x_ = wide;
  }

  // Scratch holds the codes, then scales and sums; a strided row is widened first.
  void quantize() {
    const int64_t cols = tiles_.num_cols, groups = cols / kQ8Group;
    auto* codes = scratch<int8_t>(kActivations, num_rows_ * (cols + 2 * groups * 4));
    auto* scales = reinterpret_cast<float*>(codes + num_rows_ * cols);
    float* sums = scales + num_rows_ * groups;
    parallel_for(num_rows_, kGrainElements / (cols + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        quantize_row(first_row_ + m, codes + m * cols, scales + m * groups, sums + m * groups);
      }
    });
    q8_ = {codes, scales, sums, cols, groups};
  }

  void quantize_row(int64_t row, int8_t* codes, float* scales, float* sums) const {
    if (from_stride_ == item_bytes(x_dtype_)) {
      quantize_(from_.row(row), codes, scales, sums, tiles_.num_cols);
      return;
    }
    float* wide = scratch<float>(kPanel, tiles_.num_cols);
    widen_row(row, wide);
    table_.quantize_row[0](wide, codes, scales, sums, tiles_.num_cols);
  }

  void run_tiles(int64_t begin, int64_t end) const {
    float* sums = scratch<float>(kSums, num_rows_ * kTileRows);
    for (int64_t tile = begin; tile < end; ++tile) {
      if (tiles_.format.int8 == nullptr) {
        add_float(tile, sums);
      } else if (is_q8_) {
        add_q8(tile, sums);
      } else {
        add_decoded(tile, sums);
      }
      finish(tile, sums);
    }
  }

  void add_float(int64_t tile, float* sums) const {
    const FloatFormat& format = *tiles_.format.floats;
    const bool is_direct = num_rows_ <= kMaxDirectFloatRows;
    const int64_t cols = tiles_.num_cols;
    const int64_t step = is_direct && tiles_.is_packed() ? std::max<int64_t>(1, cols) : kPanelCols;
    uint8_t* packed = scratch<uint8_t>(kTile, tiles_.scratch_bytes(std::min(step, cols)));
    // One round even where K is 0, to write zeros.
    for (int64_t k = 0; k == 0 || k < cols; k += step) {
      const int64_t count = std::min(step, cols - k);
      const uint8_t* words = tiles_.columns(tile, k, k + count, packed);
      if (is_direct) {
        for_steps(kFloatSteps, num_rows_, [&](size_t i, int64_t m) {
          format.direct[i](words, count, x_ + m * ldx_ + k, ldx_, sums + m * kTileRows, kTileRows,
                           k == 0);
        });
        continue;
      }
      if (format.unpack_panel != nullptr) {
        float* panel = scratch<float>(kPanel, kPanelCols * kTileRows);
        format.unpack_panel(words, count, panel);
        words = reinterpret_cast<const uint8_t*>(panel);
      }
      add_panel(words, k, count, sums);
    }
  }

  void add_panel(const uint8_t* panel, int64_t k, int64_t count, float* sums) const {
    for_steps(kFloatSteps, num_rows_, [&](size_t i, int64_t m) {
      table_.float_panel[i](panel, count, x_ + m * ldx_ + k, ldx_, sums + m * kTileRows, kTileRows,
                            k == 0);
    });
  }

  const uint8_t* whole_tile(int64_t tile) const {
    const int64_t cols = tiles_.num_cols;
    return tiles_.columns(tile, 0, cols, scratch<uint8_t>(kTile, tiles_.scratch_bytes(cols)));
  }

  void add_q8(int64_t tile, float* sums) const {
    const Int8Format& format = *tiles_.format.int8;
    const int64_t cols = tiles_.num_cols;
    const uint8_t* packed = whole_tile(tile);
    if (num_rows_ <= format.max_direct_rows) {
      for_steps(kDirectSteps, num_rows_, [&](size_t i, int64_t m) {
        format.direct[i](packed, cols, q8_, m, sums + m * kTileRows, kTileRows);
      });
      return;
    }
    const int64_t fitting = kCodePanelBytes * kCodePanelStep / format.panel_bytes(kCodePanelStep);
    const int64_t step = std::max(kCodePanelStep, fitting / kCodePanelStep * kCodePanelStep);
    uint8_t* panel = scratch<uint8_t>(kPanel, format.panel_bytes(std::min(step, cols)));
    // One round even where K is 0, to write zeros.
    for (int64_t k = 0; k == 0 || k < cols; k += step) {
      const int64_t count = std::min(step, cols - k);
      format.unpack_panel(packed + tiles_.format.tile_bytes(k), count, panel);
      const Q8Rows a = {q8_.q + k, q8_.scales + k / kQ8Group, q8_.sums + k / kQ8Group, q8_.ldq,
                        q8_.lds};
      for_steps(kPanelSteps, num_rows_, [&](size_t i, int64_t m) {
        format.panel[i](panel, count, a, m, sums + m * kTileRows, kTileRows, k == 0);
      });
    }
  }

  void add_decoded(int64_t tile, float* sums) const {
    const uint8_t* packed = whole_tile(tile);
    float* panel = scratch<float>(kPanel, kPanelCols * kTileRows);
    for (int64_t k = 0; k < tiles_.num_cols; k += kPanelCols) {
      const int64_t count = std::min(kPanelCols, tiles_.num_cols - k);
      tiles_.format.int8->decode_tile(packed, k, k + count, panel);
      add_panel(reinterpret_cast<const uint8_t*>(panel), k, count, sums);
    }
  }

  void finish(int64_t tile, const float* sums) const {
    const int64_t first = tile * kTileRows;
    const int64_t count = std::min(kTileRows, tiles_.num_rows - first);
    const float* bias = bias_ == nullptr ? nullptr : bias_ + first;
    if (to_.rank <= 1 && to_stride_ == item_bytes_) {
      finish_(static_cast<char*>(to_.row(first_row_)) + first * to_stride_, to_.stride_bytes[0],
              sums, bias, num_rows_, count);
      return;
    }
    for (int64_t m = 0; m < num_rows_; ++m) {
      char* to = static_cast<char*>(to_.row(first_row_ + m)) + first * to_stride_;
      if (to_stride_ == item_bytes_) {
        finish_(to, 0, sums + m * kTileRows, bias, 1, count);
        continue;
      }
      char items[kTileRows * sizeof(float)];
      finish_(items, 0, sums + m * kTileRows, bias, 1, count);
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * to_stride_, items + i * item_bytes_, static_cast<size_t>(item_bytes_));
      }
    }
  }

  const KernelTable& table_;
  const Tiles& tiles_;
  const Rows to_, from_;
  const int64_t to_stride_, from_stride_;  // bytes between elements of a row
  const DType x_dtype_;
  const int64_t item_bytes_;  // of out
  const bool is_q8_;
  bool is_in_place_ = false;  // x is read where it lies
  void (*const finish_)(void*, int64_t, const float*, const float*, int64_t, int64_t);
  const Widen widen_;
  void (*const quantize_)(const void*, int8_t*, float*, float*, int64_t);
  const float* bias_ = nullptr;

  // The block of rows at hand, and its activations.
  int64_t first_row_ = 0, num_rows_ = 0;
  const float* x_ = nullptr;
  int64_t ldx_ = 0;
  Q8Rows q8_ = {};
};

}  // namespace

void packed_linear(TensorView out, TensorView x, PackedMatrix weight, TensorView bias,
                   std::string act) {
  const KernelTable& table = kernels();
  const Tiles tiles("packed_linear", table, weight);
  Product("packed_linear", table, out, x, tiles, bias, act == "q8").run();
}

void linear(TensorView out, TensorView x, TensorView weight, TensorView bias) {
  const KernelTable& table = kernels();
  const Tiles tiles("linear", table, weight);
  Product("linear", table, out, x, tiles, bias, false).run();
}

void quant_linear(TensorView out, TensorView x, BlockMatrix weight, TensorView bias,
                  std::string act) {
  const KernelTable& table = kernels();
  const Tiles tiles("quant_linear", table, weight);
  Product("quant_linear", table, out, x, tiles, bias, act == "q8").run();
}

}  // namespace pyvt::cpu
