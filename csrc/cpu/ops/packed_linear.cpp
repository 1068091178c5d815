// Launchers of linear layers: packed_linear, linear and quant_linear are one product over tiles of
// 16 outputs. Blocks of rows of activations are prepared once, then the tiles go over threads.
#include <algorithm>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/rows.h"
#include "cpu/ops/tile_product.h"
#include "cpu/ops/tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// A multiple of all steps of rows.
constexpr int64_t kRowSteps = 24;
// Work that is worth waking a thread for.
constexpr int64_t kGrainProducts = 16 << 10;
constexpr int64_t kGrainElements = 8 << 10;

// Scratch: the first two are the caller's, shared with the region.
enum Slot { kBias, kActivations, kSums, kRow };

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
        product_(table, tiles, is_q8),
        finish_(table.finish_rows[float_index(op, out.dtype)]),
        widen_(table.widen_row[float_index(op, x.dtype)]),
        quantize_(table.quantize_row[float_index(op, x.dtype)]) {
    PYVT_CHECK(op, out.is_writeable, "out: expected a writeable array");
    PYVT_CHECK(op, from_.length == tiles.num_cols, "x: expected K=", tiles.num_cols, ", got ",
               from_.length);
    PYVT_CHECK(op, to_.num_rows == from_.num_rows && to_.length == tiles.num_rows,
               "out: wrong shape");
    PYVT_CHECK(op, !is_q8 || tiles.format.takes_codes(),
               "act: q8 needs a weight in blocks with integer codes");
    takes_pairs_ = tiles.format.takes_pairs(x.dtype);
    is_in_place_ = !is_q8 && (x.dtype == DType::kF32 || takes_pairs_) && x.is_dense(1) &&
                   (x.rank <= 2 || x.is_dense());
    rows_.ldx = x.rank == 2 ? x.stride[0] : tiles.num_cols;
    if (bias.has_value()) read_bias(op, bias);
  }

  void run() {
    const int64_t block_rows = product_.max_rows();
    const int64_t num_blocks = (from_.num_rows + block_rows - 1) / block_rows;
    for (int64_t block = 0; block < num_blocks; ++block) {
      first_row_ = from_.num_rows * block / num_blocks / kRowSteps * kRowSteps;
      const int64_t next = from_.num_rows * (block + 1) / num_blocks;
      num_rows_ = (block + 1 == num_blocks ? next : next / kRowSteps * kRowSteps) - first_row_;
      if (product_.is_q8()) {
        quantize();
      } else if (takes_pairs_) {
        gather_pairs();
      } else {
        widen();
      }
      const int64_t products = kTileRows * std::max<int64_t>(1, tiles_.num_cols) * num_rows_;
      const int streams = num_rows_ == 1 ? product_.num_streams() : 1;
      if (streams > 1) {
        apart_ = tiles_.num_tiles() / streams;
        parallel_for(apart_ + tiles_.num_tiles() % streams, kGrainProducts / streams / products + 1,
                     [&](int64_t begin, int64_t end) { run_streams(begin, end); });
        continue;
      }
      parallel_for(tiles_.num_tiles(), kGrainProducts / products + 1,
                   [&](int64_t begin, int64_t end) { run_tiles(begin, end); });
    }
  }

 private:
  void read_bias(const char* op, const TensorView& bias) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == tiles_.num_rows, "bias: wrong shape");
    const Rows rows = strided_rows_of(op, "bias", bias);
    float* wide = scratch<float>(kBias, tiles_.num_rows);
    const auto widen = table_.widen_row[float_index(op, bias.dtype)];
    widen_strided(widen, rows.data, bias.stride[0] * item_bytes(bias.dtype), item_bytes(bias.dtype),
                  wide, tiles_.num_rows);
    bias_ = wide;
  }

  void widen_row(int64_t row, float* to) const {
    widen_strided(widen_, static_cast<const char*>(from_.row(row)), from_stride_,
                  item_bytes(x_dtype_), to, tiles_.num_cols);
  }

  void widen() {
    if (is_in_place_) {
      rows_.x = static_cast<const float*>(from_.row(first_row_));
      return;
    }
    const int64_t cols = rows_.ldx = tiles_.num_cols;
    float* wide = scratch<float>(kActivations, num_rows_ * cols);
    parallel_for(num_rows_, kGrainElements / (cols + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) widen_row(first_row_ + m, wide + m * cols);
    });
    rows_.x = wide;
  }

  // Rows of bf16 as they lie, or side by side in scratch.
  void gather_pairs() {
    if (is_in_place_) {
      rows_.pairs = static_cast<const uint16_t*>(from_.row(first_row_));
      return;
    }
    const int64_t cols = rows_.ldx = tiles_.num_cols;
    uint16_t* dense = scratch<uint16_t>(kActivations, num_rows_ * cols);
    for (int64_t m = 0; m < num_rows_; ++m) {
      const char* row = static_cast<const char*>(from_.row(first_row_ + m));
      for (int64_t k = 0; k < cols; ++k) {
        std::memcpy(dense + m * cols + k, row + k * from_stride_, sizeof *dense);
      }
    }
    rows_.pairs = dense;
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
    rows_.q8 = {codes, scales, sums, cols, groups};
  }

  void quantize_row(int64_t row, int8_t* codes, float* scales, float* sums) const {
    if (from_stride_ == item_bytes(x_dtype_)) {
      quantize_(from_.row(row), codes, scales, sums, tiles_.num_cols);
      return;
    }
    float* wide = scratch<float>(kRow, tiles_.num_cols);
    widen_row(row, wide);
    table_.quantize_row[0](wide, codes, scales, sums, tiles_.num_cols);
  }

  void run_tiles(int64_t begin, int64_t end) const {
    float* sums = scratch<float>(kSums, num_rows_ * kTileRows);
    for (int64_t tile = begin; tile < end; ++tile) {
      product_.run(tile, rows_, num_rows_, sums);
      finish(tile, sums);
    }
  }

  // Item i is the tiles i, i + apart_, …, so that a thread reads some runs of memory at once; the
  // last items are the tiles that are left over.
  void run_streams(int64_t begin, int64_t end) const {
    float* sums = scratch<float>(kSums, kStreams * kTileRows);
    for (int64_t item = begin; item < std::min(end, apart_); ++item) {
      product_.run_apart(item, apart_, rows_, sums);
      for (int i = 0; i < kStreams; ++i) finish(item + i * apart_, sums + i * kTileRows);
    }
    const int64_t rest = (kStreams - 1) * apart_;
    if (end > apart_) run_tiles(std::max(begin, apart_) + rest, end + rest);
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
      copy_strided(items, item_bytes_, to, to_stride_, count);
    }
  }

  const KernelTable& table_;
  const Tiles& tiles_;
  const Rows to_, from_;
  const int64_t to_stride_, from_stride_;  // bytes between elements of a row
  const DType x_dtype_;
  const int64_t item_bytes_;  // of out
  const TileProduct product_;
  bool takes_pairs_ = false;  // x and the weight are bf16, multiplied by pairs of columns
  bool is_in_place_ = false;  // x is read where it lies
  void (*const finish_)(void*, int64_t, const float*, const float*, int64_t, int64_t);
  const WidenKernel widen_;
  void (*const quantize_)(const void*, int8_t*, float*, float*, int64_t);
  const float* bias_ = nullptr;

  // The block of rows at hand, and its activations.
  int64_t first_row_ = 0, num_rows_ = 0;
  int64_t apart_ = 0;  // tiles between the streams of one row
  ActivationRows rows_;
};

}  // namespace

void packed_linear(TensorView out, TensorView x, PackedMatrix weight, TensorView bias,
                   std::string act) {
  const KernelTable& table = kernels();
  const Tiles tiles("packed_linear", table, weight);
  Product("packed_linear", table, out, x, tiles, bias, asks_for_q8("packed_linear", act)).run();
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
  Product("quant_linear", table, out, x, tiles, bias, asks_for_q8("quant_linear", act)).run();
}

}  // namespace pyvt::cpu
