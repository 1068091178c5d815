// Launchers of the mixture of experts. Rows of activations are prepared once for each token, then
// sorted by expert, so that an expert's tiles meet all of its rows at once; which experts run is
// read at each call. A row's bits do not depend on its neighbours: products are those of linear
// layers, and a token's experts are added in the order of its ids. Where experts have their columns
// in orders of their own, the row of a pair is taken in the order of its expert.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/selection.h"
#include "cpu/ops/tile_product.h"
#include "cpu/ops/tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Most pairs of a token and an expert that are held at once: their outputs take 33 MB at H = 2048.
constexpr int64_t kMaxPairs = 4096;
// Work that is worth waking a thread for.
constexpr int64_t kGrainProducts = 16 << 10;
constexpr int64_t kGrainElements = 8 << 10;
constexpr int64_t kGrainLogits = 4 << 10;

// Scratch: the first five are the caller's, shared with the region; the sums of a tile of gates
// and of one of ups are one buffer. TileProduct has the others. Inputs of up apart from those of
// gate lie where the outputs of down come later.
enum Slot { kInputs, kHidden, kHiddenCodes, kParts, kOrder, kSums, kUpInputs = kParts };

enum Stack { kGate, kUp, kDown, kNumStacks };

// Rows of activations for products of two kinds, those that are needed of both.
struct Prepared {
  float* x = nullptr;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;
  int64_t cols = 0, groups = 0;

  static int64_t bytes(int64_t cols, bool has_x, bool has_q8) {
    return (has_x ? cols * 4 : 0) + (has_q8 ? cols + cols / kQ8Group * 8 : 0);
  }

  // `data` holds bytes() for each row.
  Prepared(char* data, int64_t num_rows, int64_t cols, bool has_x, bool has_q8)
      : cols(cols), groups(cols / kQ8Group) {
    if (has_x) {
      x = reinterpret_cast<float*>(data);
      data += num_rows * cols * 4;
    }
    if (!has_q8) return;
    scales = reinterpret_cast<float*>(data);
    sums = scales + num_rows * groups;
    codes = reinterpret_cast<int8_t*>(sums + num_rows * groups);
  }

  ActivationRows rows() const { return {x, cols, {codes, scales, sums, cols, groups}}; }

  void copy_row(int64_t from, int64_t to) const {
    const auto copy = [&](auto* data, int64_t count) {
      if (data == nullptr) return;
      std::memcpy(data + to * count, data + from * count,
                  static_cast<size_t>(count) * sizeof(*data));
    };
    copy(x, cols);
    copy(codes, cols);
    copy(scales, groups);
    copy(sums, groups);
  }
};

// The values of a view [T, K] of f32, i32 or i64.
template <typename T>
T value_at(const TensorView& view, int64_t t, int64_t k) {
  return view.as<T>()[t * view.stride[0] + k * view.stride[1]];
}

// Asks the system to read the matrix of an expert that lies in a mapped file, all of it and no
// more: a fault by itself reads megabytes around the page, most of them of other experts. Memory
// that is no file stays as it is.
void read_ahead(const TensorView& stack, int64_t expert) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const TensorView matrix = slice(stack, expert);
  const auto begin = reinterpret_cast<uintptr_t>(matrix.data) / page * page;
  const auto end =
      reinterpret_cast<uintptr_t>(matrix.data) +
      static_cast<uintptr_t>(matrix.shape[0] * matrix.stride[0] * item_bytes(matrix.dtype));
  if (matrix.stride[0] > 0) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void read_ahead(const ExpertStack& stack, int64_t expert) {
  if (stack.plain.has_value()) read_ahead(stack.plain, expert);
  if (stack.blocks.blocks.has_value()) read_ahead(stack.blocks.blocks, expert);
}

// The order in which experts take the elements of a row, [E, K]; without a value each as it comes.
const int32_t* order_of(const TensorView& columns, int64_t expert) {
  if (!columns.has_value()) return nullptr;
  return columns.as<int32_t>() + expert * columns.stride[0];
}

void take(const float* from, const int32_t* order, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[order[i]];
}

// The rows [first, first + num_rows) of the sorted ones are those of an expert.
struct Group {
  int64_t expert, first, num_rows;
  Tiles gate, up, down;
};

class ExpertsCall {
 public:
  ExpertsCall(const char* op, const KernelTable& table, const TensorView& out, const TensorView& x,
              const TensorView& ids, const TensorView& weights, const ExpertStack& gate,
              const ExpertStack& up, const ExpertStack& down, const TensorView& gate_columns,
              const TensorView& up_columns, const TensorView& down_columns, bool is_q8)
      : op_(op),
        table_(table),
        out_(out),
        x_(x),
        ids_(ids),
        weights_(weights),
        stacks_{&gate, &up, &down},
        columns_{&gate_columns, &up_columns, &down_columns},
        is_q8_(is_q8),
        out_index_(float_index(op, out.dtype)),
        x_index_(float_index(op, x.dtype)) {
    PYVT_CHECK(op, out.is_writeable, "out: expected a writeable array");
    PYVT_CHECK(op, x.rank == 2 && out.rank == 2 && out.shape[0] == x.shape[0],
               "x: expected [T, H]");
    PYVT_CHECK(op, out.shape[1] == x.shape[1], "out: expected the shape of x");
    PYVT_CHECK(op, out.dtype == x.dtype, "out: expected the dtype of x");
    PYVT_CHECK(op, ids.rank == 2 && (ids.dtype == DType::kI32 || ids.dtype == DType::kI64),
               "expert_ids: expected [T, K] of i32|i64");
    PYVT_CHECK(op, weights.rank == 2 && weights.dtype == DType::kF32,
               "expert_weights: expected [T, K] of f32");
    PYVT_CHECK(op, ids.shape[0] == x.shape[0] && weights.shape[0] == x.shape[0],
               "expert_ids: expected T=", x.shape[0]);
    PYVT_CHECK(op, ids.shape[1] == weights.shape[1], "expert_weights: expected K=", ids.shape[1]);
    for (const ExpertStack* stack : stacks_) {
      PYVT_CHECK(op, stack->num_experts >= 0, "weights: expected a stack [E, N, K]");
      PYVT_CHECK(op, stack->num_experts == gate.num_experts,
                 "weights: expected E=", gate.num_experts, ", got ", stack->num_experts);
    }
    for (const TensorView* columns : columns_) {
      PYVT_CHECK(
          op,
          !columns->has_value() || (columns->rank == 2 && columns->dtype == DType::kI32 &&
                                    columns->is_dense(1) && columns->shape[0] == gate.num_experts),
          "columns: expected i32 [E, K] with dense rows");
    }
    top_k_ = ids.shape[1];
  }

  void run() {
    const Region region;
    const int64_t num_tokens = x_.shape[0];
    const int64_t step = std::max<int64_t>(1, kMaxPairs / std::max<int64_t>(1, top_k_));
    for (int64_t t = 0; t < num_tokens; t += step) {
      first_token_ = t;
      num_tokens_ = std::min(step, num_tokens - t);
      num_pairs_ = num_tokens_ * top_k_;
      sort();
      if (!groups_.empty()) {
        prepare_inputs();
        run_gate_up();
        run_down();
      }
      add_up();
    }
  }

 private:
  int64_t id_at(int64_t t, int64_t k) const {
    return ids_.dtype == DType::kI64 ? value_at<int64_t>(ids_, t, k)
                                     : value_at<int32_t>(ids_, t, k);
  }

  // Finds the place of each pair among the pairs sorted by expert, and the groups of these.
  void sort() {
    const int64_t num_experts = stacks_[0]->num_experts;
    int64_t* starts = scratch<int64_t>(kOrder, num_experts + 1 + num_pairs_);
    places_ = starts + num_experts + 1;
    std::fill(starts, places_, 0);
    for (int64_t p = 0; p < num_pairs_; ++p) {
      const int64_t id = id_at(first_token_ + p / top_k_, p % top_k_);
      PYVT_CHECK(op_, id >= 0 && id < num_experts, "expert_ids: expected values in [0, ",
                 num_experts, "), got ", id);
      ++starts[id + 1];
    }
    groups_.clear();
    for (int64_t e = 0; e < num_experts; ++e) {
      if (starts[e + 1] == 0) continue;
      for (const ExpertStack* stack : stacks_) read_ahead(*stack, e);
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      if (starts[e + 1] > 0) groups_.push_back(group_of(e, starts[e], starts[e + 1]));
      starts[e + 1] += starts[e];
    }
    for (int64_t p = 0; p < num_pairs_; ++p) {
      places_[p] = starts[id_at(first_token_ + p / top_k_, p % top_k_)]++;
    }
  }

  Group group_of(int64_t expert, int64_t first, int64_t num_rows) const {
    const auto tiles = [&](int i) { return Tiles::of_expert(op_, table_, *stacks_[i], expert); };
    Group group = {expert, first, num_rows, tiles(kGate), tiles(kUp), tiles(kDown)};
    const int64_t hidden = x_.shape[1], inner = group.gate.num_rows;
    PYVT_CHECK(op_, group.gate.num_cols == hidden, "gate: expected H=", hidden);
    PYVT_CHECK(op_, group.up.num_cols == hidden && group.up.num_rows == inner,
               "up: expected the shape of gate");
    PYVT_CHECK(op_, group.down.num_rows == hidden && group.down.num_cols == inner,
               "down: expected [E, H, I]");
    for (const int stack : {kGate, kUp, kDown}) {
      check_order(*columns_[stack], expert, stack == kDown ? inner : hidden);
    }
    return group;
  }

  void check_order(const TensorView& columns, int64_t expert, int64_t size) const {
    const int32_t* order = order_of(columns, expert);
    if (order == nullptr) return;
    PYVT_CHECK(op_, columns.shape[1] == size, "columns: expected K=", size, ", got ",
               columns.shape[1]);
    int32_t low = 0, high = -1;
    for (int64_t i = 0; i < size; ++i) {
      low = std::min(low, order[i]);
      high = std::max(high, order[i]);
    }
    PYVT_CHECK(op_, low >= 0 && high < size, "columns: expected values in [0, ", size, "), got ",
               low < 0 ? low : high);
  }

  bool takes_codes(const Tiles& tiles) const { return is_q8_ && tiles.format.takes_codes(); }

  // The rows of gate's and up's products: the same ones where their columns have one order.
  void prepare_inputs() {
    const Group& any = groups_.front();
    const TensorView &of_gate = *columns_[kGate], &of_up = *columns_[kUp];
    if (of_gate.data == of_up.data) {
      const bool has_q8 = takes_codes(any.gate) || takes_codes(any.up);
      const bool has_x = !takes_codes(any.gate) || !takes_codes(any.up);
      inputs_ = up_inputs_ = prepared_inputs(kInputs, of_gate, has_x, has_q8);
      return;
    }
    inputs_ = prepared_inputs(kInputs, of_gate, !takes_codes(any.gate), takes_codes(any.gate));
    up_inputs_ = prepared_inputs(kUpInputs, of_up, !takes_codes(any.up), takes_codes(any.up));
  }

  // Each token's row once, then copies of it at the places of its experts, or the row of each of
  // them in the order of its columns.
  ActivationRows prepared_inputs(int slot, const TensorView& columns, bool has_x, bool has_q8) {
    const int64_t cols = x_.shape[1];
    char* data = scratch<char>(slot, num_pairs_ * Prepared::bytes(cols, has_x, has_q8));
    const Prepared rows(data, num_pairs_, cols, has_x, has_q8);
    parallel_for(num_tokens_, kGrainElements / (cols * top_k_ + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     if (columns.has_value()) {
                       prepare_in_orders(t, columns, rows);
                       continue;
                     }
                     const int64_t* places = places_ + t * top_k_;
                     prepare_row(t, places[0], rows);
                     for (int64_t k = 1; k < top_k_; ++k) rows.copy_row(places[0], places[k]);
                   }
                 });
    return rows.rows();
  }

  void prepare_in_orders(int64_t t, const TensorView& columns, const Prepared& rows) const {
    const int64_t item = item_bytes(x_.dtype), cols = rows.cols, token = first_token_ + t;
    float* wide = scratch<float>(kSums, 2 * cols);
    widen_strided(table_.widen_row[x_index_], x_.as<char>() + token * x_.stride[0] * item,
                  x_.stride[1] * item, item, wide, cols);
    for (int64_t k = 0; k < top_k_; ++k) {
      const int64_t place = places_[t * top_k_ + k];
      float* row = rows.x != nullptr ? rows.x + place * cols : wide + cols;
      take(wide, order_of(columns, id_at(token, k)), row, cols);
      if (rows.codes == nullptr) continue;
      table_.quantize_row[0](row, rows.codes + place * cols, rows.scales + place * rows.groups,
                             rows.sums + place * rows.groups, cols);
    }
  }

  void prepare_row(int64_t t, int64_t place, const Prepared& rows) const {
    const int64_t item = item_bytes(x_.dtype), cols = rows.cols;
    const char* from = x_.as<char>() + (first_token_ + t) * x_.stride[0] * item;
    const bool is_dense = x_.stride[1] == 1 || cols <= 1;
    const void* source = from;
    int source_index = x_index_;
    if (rows.x != nullptr || !is_dense) {
      float* wide = rows.x != nullptr ? rows.x + place * cols : scratch<float>(kSums, cols);
      widen_strided(table_.widen_row[x_index_], from, x_.stride[1] * item, item, wide, cols);
      source = wide;
      source_index = 0;
    }
    if (rows.codes == nullptr) return;
    table_.quantize_row[source_index](source, rows.codes + place * cols,
                                      rows.scales + place * rows.groups,
                                      rows.sums + place * rows.groups, cols);
  }

  // Calls f(group, tile, first row, number of rows) for all tiles of all groups' matrices, over
  // threads; rows in blocks that a panel is best shared by.
  template <typename F>
  void for_each_tile(int64_t num_tiles, int64_t products_of_row, int64_t max_rows, F&& f) const {
    const auto num_groups = static_cast<int64_t>(groups_.size());
    const int64_t products = products_of_row * num_pairs_ / num_groups;
    parallel_for(num_groups * num_tiles, kGrainProducts / (products + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const Group& group = groups_[static_cast<size_t>(i / num_tiles)];
                     for (int64_t m = 0; m < group.num_rows; m += max_rows) {
                       const int64_t count = std::min(max_rows, group.num_rows - m);
                       f(group, i % num_tiles, group.first + m, count);
                     }
                   }
                 });
  }

  // hidden = silu(gate · x) · (up · x), [pairs][I].
  void run_gate_up() {
    const Group& any = groups_.front();
    const int64_t inner = inner_ = any.gate.num_rows, cols = x_.shape[1];
    float* hidden = hidden_ = scratch<float>(kHidden, num_pairs_ * inner);
    const int64_t max_rows = TileProduct(table_, any.gate, is_q8_).max_rows();
    for_each_tile(any.gate.num_tiles(), 2 * kTileRows * cols, max_rows,
                  [&](const Group& group, int64_t tile, int64_t first, int64_t num_rows) {
                    const int64_t size = num_rows * kTileRows;
                    float* gates = scratch<float>(kSums, 2 * size);
                    const ActivationRows of_gate = inputs_.from(first);
                    const ActivationRows of_up = up_inputs_.from(first);
                    TileProduct(table_, group.gate, is_q8_).run(tile, of_gate, num_rows, gates);
                    TileProduct(table_, group.up, is_q8_).run(tile, of_up, num_rows, gates + size);
                    table_.silu_and_mul[0](gates, gates, gates + size, size);
                    store_tile(gates, num_rows, tile, hidden + first * inner, inner);
                  });
  }

  // parts = down · hidden, [pairs][H].
  void run_down() {
    const Group& any = groups_.front();
    const int64_t hidden_size = x_.shape[1], inner = inner_;
    if (columns_[kDown]->has_value()) order_hidden();
    ActivationRows rows = {hidden_, inner, {}};
    if (takes_codes(any.down)) rows = quantized_hidden();
    float* parts = parts_ = scratch<float>(kParts, num_pairs_ * hidden_size);
    const int64_t max_rows = TileProduct(table_, any.down, is_q8_).max_rows();
    for_each_tile(
        any.down.num_tiles(), kTileRows * inner, max_rows,
        [&](const Group& group, int64_t tile, int64_t first, int64_t num_rows) {
          float* sums = scratch<float>(kSums, num_rows * kTileRows);
          TileProduct(table_, group.down, is_q8_).run(tile, rows.from(first), num_rows, sums);
          store_tile(sums, num_rows, tile, parts + first * hidden_size, hidden_size);
        });
  }

  // Puts each hidden row in the order of its expert's columns of down.
  void order_hidden() const {
    const int64_t inner = inner_, num_groups = static_cast<int64_t>(groups_.size());
    parallel_for(num_groups, kGrainElements * num_groups / (num_pairs_ * inner + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   float* taken = scratch<float>(kSums, inner);
                   for (int64_t i = begin; i < end; ++i) {
                     const Group& group = groups_[static_cast<size_t>(i)];
                     const int32_t* order = order_of(*columns_[kDown], group.expert);
                     for (int64_t m = 0; m < group.num_rows; ++m) {
                       float* row = hidden_ + (group.first + m) * inner;
                       take(row, order, taken, inner);
                       std::memcpy(row, taken, static_cast<size_t>(inner) * sizeof(float));
                     }
                   }
                 });
  }

  ActivationRows quantized_hidden() const {
    const int64_t inner = inner_;
    char* data = scratch<char>(kHiddenCodes, num_pairs_ * Prepared::bytes(inner, false, true));
    const Prepared rows(data, num_pairs_, inner, false, true);
    parallel_for(num_pairs_, kGrainElements / (inner + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        table_.quantize_row[0](hidden_ + p * inner, rows.codes + p * inner,
                               rows.scales + p * rows.groups, rows.sums + p * rows.groups, inner);
      }
    });
    return rows.rows();
  }

  static void store_tile(const float* sums, int64_t num_rows, int64_t tile, float* to,
                         int64_t stride) {
    const int64_t first = tile * kTileRows, count = std::min(kTileRows, stride - first);
    for (int64_t m = 0; m < num_rows; ++m) {
      std::memcpy(to + m * stride + first, sums + m * kTileRows,
                  static_cast<size_t>(count) * sizeof(float));
    }
  }

  void add_up() const {
    const int64_t hidden_size = x_.shape[1], item = item_bytes(out_.dtype);
    const bool is_dense = out_.stride[1] == 1 || hidden_size <= 1;
    const auto sum = table_.weighted_sum[out_index_];
    parallel_for(num_tokens_, kGrainElements / (hidden_size * top_k_ + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   float* shares = scratch<float>(kSums, top_k_ + hidden_size);
                   for (int64_t t = begin; t < end; ++t) {
                     const int64_t token = first_token_ + t;
                     for (int64_t k = 0; k < top_k_; ++k)
                       shares[k] = value_at<float>(weights_, token, k);
                     char* to = out_.as<char>() + token * out_.stride[0] * item;
                     char* row = is_dense ? to : reinterpret_cast<char*>(shares + top_k_);
                     sum(row, parts_, hidden_size, places_ + t * top_k_, shares, top_k_,
                         hidden_size);
                     if (!is_dense) copy_strided(row, item, to, out_.stride[1] * item, hidden_size);
                   }
                 });
  }

  const char* const op_;
  const KernelTable& table_;
  const TensorView &out_, &x_, &ids_, &weights_;
  const ExpertStack* const stacks_[kNumStacks];
  const TensorView* const columns_[kNumStacks];
  const bool is_q8_;
  const int out_index_, x_index_;
  int64_t top_k_ = 0;

  // The block of tokens at hand.
  int64_t first_token_ = 0, num_tokens_ = 0, num_pairs_ = 0, inner_ = 0;
  int64_t* places_ = nullptr;  // of each pair among the sorted ones
  std::vector<Group> groups_;
  ActivationRows inputs_, up_inputs_;
  float *hidden_ = nullptr, *parts_ = nullptr;
};

}  // namespace

void router_topk(TensorView weights, TensorView ids, TensorView logits, int64_t top_k,
                 int64_t renormalize) {
  const char* op = "router_topk";
  PYVT_CHECK(op, logits.rank == 2, "logits: expected [T, E]");
  const int64_t num_tokens = logits.shape[0], num_experts = logits.shape[1];
  PYVT_CHECK(op, top_k >= 1 && top_k <= num_experts, "top_k: expected 1 to E=", num_experts,
             ", got ", top_k);
  for (const TensorView* out : {&weights, &ids}) {
    PYVT_CHECK(op,
               out->is_writeable && out->rank == 2 && out->shape[0] == num_tokens &&
                   out->shape[1] == top_k,
               "out: expected writeable [T, K]");
  }
  PYVT_CHECK(op, weights.dtype == DType::kF32 && ids.dtype == DType::kI32,
             "out: expected weights of f32 and ids of i32");
  const KernelTable& table = kernels();
  const auto widen = table.widen_row[float_index(op, logits.dtype)];
  const int64_t item = item_bytes(logits.dtype);
  parallel_for(num_tokens, kGrainLogits / num_experts + 1, [&](int64_t begin, int64_t end) {
    std::vector<Candidate> best;
    float* row = scratch<float>(kSums, num_experts);
    std::vector<double> shares(static_cast<size_t>(top_k));
    for (int64_t t = begin; t < end; ++t) {
      const char* from = logits.as<char>() + t * logits.stride[0] * item;
      widen_strided(widen, from, logits.stride[1] * item, item, row, num_experts);
      const float top = table.row_max(row, num_experts);
      double total = table.sum_exp(row, top, num_experts);
      largest(row, num_experts, top_k, &best);
      for (size_t k = 0; k < shares.size(); ++k) {
        shares[k] = std::exp(static_cast<double>(row[best[k].id] - top));
      }
      if (renormalize != 0) {
        total = 0;
        for (const double share : shares) total += share;
      }
      for (int64_t k = 0; k < top_k; ++k) {
        const auto i = static_cast<size_t>(k);
        weights.as<float>()[t * weights.stride[0] + k * weights.stride[1]] =
            static_cast<float>(shares[i] / total);
        ids.as<int32_t>()[t * ids.stride[0] + k * ids.stride[1]] = static_cast<int32_t>(best[i].id);
      }
    }
  });
}

void fused_experts(TensorView out, TensorView x, TensorView expert_ids, TensorView expert_weights,
                   ExpertStack gate, ExpertStack up, ExpertStack down, TensorView gate_columns,
                   TensorView up_columns, TensorView down_columns, std::string act) {
  ExpertsCall("fused_experts", kernels(), out, x, expert_ids, expert_weights, gate, up, down,
              gate_columns, up_columns, down_columns, asks_for_q8("fused_experts", act))
      .run();
}

void add_shared_expert(TensorView out, TensorView routed, TensorView shared, TensorView gate) {
  const char* op = "add_shared_expert";
  const KernelTable& table = kernels();
  const int index = float_index(op, routed.dtype);
  for (const TensorView* view : {&out, &routed, &shared, &gate}) {
    PYVT_CHECK(op, view->rank == 2 && view->shape[0] == routed.shape[0],
               "tensors: expected two dims and one T");
    PYVT_CHECK(op, view->dtype == routed.dtype, "tensors: expected one dtype");
  }
  PYVT_CHECK(op, out.is_writeable, "out: expected a writeable array");
  PYVT_CHECK(op, gate.shape[1] == 1, "gate: expected [T, 1]");
  PYVT_CHECK(op, out.shape[1] == routed.shape[1] && shared.shape[1] == routed.shape[1],
             "out: expected the shape of routed");
  const int64_t hidden_size = routed.shape[1], item = item_bytes(routed.dtype);
  parallel_for(
      routed.shape[0], kGrainElements / (hidden_size + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          float share;
          table.widen_row[index](gate.as<char>() + t * gate.stride[0] * item, &share, 1);
          table.sigmoid[0](&share, &share, 0, 1);
          const auto row = elements_of<3>(op, {slice(out, t), slice(routed, t), slice(shared, t)});
          for (int64_t i = 0; i < row.num_runs; ++i) {
            table.add_scaled[index](row.at(0, i, 0), row.at(1, i, 0), row.at(2, i, 0), share,
                                    row.run);
          }
        }
      });
}

}  // namespace pyvt::cpu
