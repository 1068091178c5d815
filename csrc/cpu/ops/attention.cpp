// Launchers of the attention family.
//
// The queries of a request are cut into blocks of tokens. Many queries meet one KV head a block, so
// that they share what is loaded; few meet all KV heads, so that memory is read in the order in
// which it lies. A block walks its tiles of keys in order. Where there are few blocks, a block's
// tiles are dealt out in parts: the result of every tile is kept, and the thread that ends the last
// part folds them in the same order. So neither the cut of blocks, nor that of parts, nor the
// thread that runs them changes a bit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/ops/kv_pages.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

constexpr int64_t kBlockRows = 128;  // query rows of a block, about; they share copies of keys
constexpr int64_t kBlockTokens = 64;
// Up to this many rows of a KV head, keys and values are read as they lie; more rows share a copy,
// keys by columns and values of half precision widened. Keys and values of fp8 are widened a tile
// at a time, whoever reads them.
constexpr int64_t kDirectRows = 8;
// Keys and values of a tile, of all KV heads that go together: this tile and the next one share the
// second-level cache.
constexpr int64_t kTileBytes = 256 << 10;
// Fewer parts leave threads without work at the end, so tiles of few rows are cut by heads too.
constexpr int64_t kPartsPerThread = 4;
constexpr int64_t kSerialProducts = 1 << 17;            // below, waking a thread costs more
constexpr int64_t kMaxStateFloats = int64_t{16} << 20;  // of tiles kept for folding
constexpr int kWorkSlot = 1;
constexpr int kStateSlot = 2;
constexpr int64_t kEverything = std::numeric_limits<int64_t>::max() / 2;

// Queries [token, token + num_tokens) against the KV heads from kv_head on. Its rows are numbered
// by KV head, then token, then query head of the group.
struct Block {
  int64_t request;
  int64_t kv_head;
  int64_t num_kv_heads;
  int64_t token;
  int64_t num_tokens;
  int64_t position;  // of the first query
  int64_t tile_begin;
  int64_t tile_end;
  bool is_cut;    // into parts; then
  float* states;  // a state for each tile
  std::atomic<int64_t>* num_parts_left;
};

// One tile of keys of a block; no block is no tile.
struct Tile {
  const Block* block;
  int64_t index;
};

struct Part {
  const Block* block;
  int64_t tile_begin;
  int64_t tile_end;
};

// A query row: its token and its head.
struct Place {
  int64_t token;
  int64_t head;
};

struct Range {
  int64_t begin;
  int64_t end;
};

// The buffers of the thread that runs a part.
struct Work {
  float* q;
  float* scores;
  AttnState tile;
  AttnState state;
  int* first;
  int* last;
  const void** keys;
  const void** values;
  AttnRun* ahead;
  float* key_panel;
  float* value_panel;
  float* key_columns;
};

class Attention {
 public:
  Attention(TensorView out, TensorView lse, TensorView q, TensorView k_cache, TensorView v_cache,
            TensorView block_tables, TensorView seq_lens, TensorView cu_seqlens_q, double scale,
            std::optional<int64_t> window, std::optional<double> soft_cap);

  void run();

 private:
  void check_shapes() const;
  void check_request(int64_t request, int64_t seq_len, int64_t num_queries) const;
  void plan();
  void add_blocks(int64_t request, int64_t begin, int64_t end, int64_t seq_len);
  int64_t heads_together(int64_t num_tiles) const;
  void deal(int64_t num_row_tiles);

  int64_t first_key(int64_t position) const { return std::max<int64_t>(0, position - window_ + 1); }
  int64_t rows_of_head(const Block& block) const { return block.num_tokens * group_; }
  int64_t num_rows(const Block& block) const { return block.num_kv_heads * rows_of_head(block); }
  int64_t state_floats(const Block& block) const {
    return round_up(num_rows(block) * (row_stride_ + 2), 16);
  }
  AttnState state_of(const Block& block, int64_t tile) const;
  Range visible_tokens(const Block& block, int64_t tile) const;

  Work work() const;
  void run_part(const Part& part, const Part* next, bool is_cold) const;
  void attend(const Tile& at, int64_t head, Range tokens, const Tile& next, bool is_cold,
              const AttnState& into, const Work& work) const;
  KvRuns runs_ahead(const KvSpan& span, const Tile& at, const Tile& next, bool is_cold,
                    const Work& work) const;
  void share(int64_t begin, int64_t end, const Work& work) const;
  int64_t value_width() const {
    const int64_t whole = kAttnValueVectors * table_.attn_lanes;
    return head_dim_ % whole == 0 ? whole : table_.attn_lanes;
  }
  void fold(const Block& block, Range tokens, const AttnState& from, const AttnState& into) const;
  Place place_of(const Block& block, int64_t row) const;
  void finish(const Block& block, const AttnState& state) const;

  static constexpr const char* kOp = "paged_attention";
  const KernelTable& table_ = kernels();
  TensorView out_, lse_, q_, k_cache_, v_cache_, block_tables_;
  KvPages pages_;
  Indices seq_lens_, cu_seqlens_;
  float scale_, soft_cap_;
  int64_t window_;
  int64_t group_ = 1, head_dim_ = 0, row_stride_ = 0, tokens_per_block_ = 1;
  int of_q_, of_cache_;
  std::vector<Block> blocks_;
  std::vector<Part> parts_;
  std::vector<std::atomic<int64_t>> counters_;
  int64_t num_products_ = 0;
  int64_t max_rows_ = 0;  // of a block
  int64_t heads_together_ = 1;
};

Attention::Attention(TensorView out, TensorView lse, TensorView q, TensorView k_cache,
                     TensorView v_cache, TensorView block_tables, TensorView seq_lens,
                     TensorView cu_seqlens_q, double scale, std::optional<int64_t> window,
                     std::optional<double> soft_cap)
    : out_(out),
      lse_(lse),
      q_(q),
      k_cache_(k_cache),
      v_cache_(v_cache),
      block_tables_(block_tables),
      pages_(k_cache, v_cache, block_tables),
      seq_lens_(indices_of(kOp, "seq_lens", seq_lens)),
      cu_seqlens_(indices_of(kOp, "cu_seqlens_q", cu_seqlens_q)),
      scale_(static_cast<float>(scale)),
      soft_cap_(static_cast<float>(soft_cap.value_or(0))),
      window_(window.value_or(kEverything)),
      of_q_(float_index(kOp, q.dtype)),
      of_cache_(k_cache.dtype == DType::kFP8 ? kNumFloats : float_index(kOp, k_cache.dtype)) {
  check_shapes();
  head_dim_ = q.shape[2];
  row_stride_ = round_up(head_dim_, table_.attn_lanes);
  if (k_cache.shape[2] > 0) group_ = q.shape[1] / k_cache.shape[2];
  tokens_per_block_ =
      std::clamp<int64_t>(kBlockRows / std::max<int64_t>(1, group_), 1, kBlockTokens);
}

void Attention::check_shapes() const {
  PYVT_CHECK(kOp, q_.rank == 3 && q_.is_dense(1), "q: expected dims [T, N, D], D dense");
  PYVT_CHECK(kOp,
             out_.rank == 3 && out_.is_dense(1) && out_.dtype == q_.dtype &&
                 std::equal(q_.shape, q_.shape + 3, out_.shape),
             "out: expected the shape and dtype of q, D dense");
  for (const TensorView* cache : {&k_cache_, &v_cache_}) {
    PYVT_CHECK(kOp,
               cache->rank == 4 && cache->is_dense(1) && cache->dtype == k_cache_.dtype &&
                   std::equal(k_cache_.shape, k_cache_.shape + 4, cache->shape) &&
                   cache->shape[3] == q_.shape[2],
               "caches: expected dims [B, S, Nk, D] of one dtype, D dense");
  }
  const int64_t num_kv_heads = k_cache_.shape[2];
  PYVT_CHECK(kOp, num_kv_heads > 0 ? q_.shape[1] % num_kv_heads == 0 : q_.shape[1] == 0,
             "q: expected a multiple of ", num_kv_heads, " heads");
  PYVT_CHECK(kOp,
             block_tables_.rank == 2 && block_tables_.dtype == DType::kI32 &&
                 block_tables_.shape[0] == seq_lens_.size,
             "block_tables: expected dims [R, W] of i32");
  PYVT_CHECK(kOp, cu_seqlens_.size == seq_lens_.size + 1, "cu_seqlens_q: expected R + 1 values");
  PYVT_CHECK(kOp,
             !lse_.has_value() || (lse_.rank == 2 && lse_.dtype == DType::kF32 &&
                                   lse_.shape[0] == q_.shape[0] && lse_.shape[1] == q_.shape[1]),
             "lse: expected dims [T, N] of f32");
  PYVT_CHECK(kOp, window_ >= 1, "window: expected at least 1");
}

// Checks what the tiles of a request read: its length and the entries of its block table.
void Attention::check_request(int64_t request, int64_t seq_len, int64_t num_queries) const {
  const int64_t block_size = k_cache_.shape[1];
  PYVT_CHECK(kOp, num_queries >= 0, "cu_seqlens_q: expected values that do not fall");
  if (num_queries == 0) return;
  PYVT_CHECK(kOp, seq_len >= num_queries && seq_len <= block_tables_.shape[1] * block_size,
             "seq_lens: expected at least the queries and at most the block table, got ", seq_len);
  for (int64_t entry = first_key(seq_len - num_queries) / block_size; entry * block_size < seq_len;
       ++entry) {
    const int64_t id = pages_.block_id(request, entry);
    PYVT_CHECK(kOp, id >= 0 && id < k_cache_.shape[0], "block_tables: expected values in [0, ",
               k_cache_.shape[0], "), got ", id);
  }
}

void Attention::plan() {
  const int64_t num_requests = seq_lens_.size;
  PYVT_CHECK(kOp, cu_seqlens_[0] == 0 && cu_seqlens_[num_requests] == q_.shape[0],
             "cu_seqlens_q: expected values from 0 to T=", q_.shape[0]);
  int64_t num_tiles = 0;
  for (int64_t r = 0; r < num_requests; ++r) {
    check_request(r, seq_lens_[r], cu_seqlens_[r + 1] - cu_seqlens_[r]);
    const int64_t first = first_key(seq_lens_[r] - 1) / kAttnTile;
    num_tiles += (seq_lens_[r] + kAttnTile - 1) / kAttnTile - first;
  }
  if (group_ == 0) return;  // no heads
  heads_together_ = heads_together(num_tiles);
  for (int64_t r = 0; r < num_requests; ++r) {
    add_blocks(r, cu_seqlens_[r], cu_seqlens_[r + 1], seq_lens_[r]);
  }
  int64_t num_row_tiles = 0;
  for (const Block& block : blocks_) {
    num_row_tiles += (block.tile_end - block.tile_begin) * num_rows(block);
    max_rows_ = std::max(max_rows_, num_rows(block));
  }
  num_products_ = num_row_tiles * kAttnTile * head_dim_ * 2;
  // The longest first, so that the last ones to be claimed are short.
  std::stable_sort(blocks_.begin(), blocks_.end(), [this](const Block& a, const Block& b) {
    return (a.tile_end - a.tile_begin) * num_rows(a) > (b.tile_end - b.tile_begin) * num_rows(b);
  });
  deal(num_row_tiles);
}

// KV heads of a tile that go together where few rows read them.
int64_t Attention::heads_together(int64_t num_tiles) const {
  const int64_t num_heads = pages_.num_heads();
  const int64_t head_bytes = 2 * kAttnTile * head_dim_ * item_bytes(k_cache_.dtype);
  const int64_t num_wanted = num_threads() == 1 ? 1 : kPartsPerThread * num_threads();
  int64_t together = std::clamp<int64_t>(kTileBytes / (head_bytes + 1), 1, num_heads + 1);
  while (together > 1 && num_tiles * ((num_heads + together - 1) / together) < num_wanted) {
    together = (together + 1) / 2;
  }
  return together;
}

void Attention::add_blocks(int64_t request, int64_t begin, int64_t end, int64_t seq_len) {
  for (int64_t token = begin; token < end; token += tokens_per_block_) {
    Block block{};
    block.request = request;
    block.token = token;
    block.num_tokens = std::min(tokens_per_block_, end - token);
    block.position = seq_len - end + token;
    block.tile_begin = first_key(block.position) / kAttnTile;
    block.tile_end = (block.position + block.num_tokens - 1) / kAttnTile + 1;
    const int64_t num_kv_heads = pages_.num_heads();
    const int64_t together = rows_of_head(block) > kDirectRows ? 1 : heads_together_;
    for (; block.kv_head < num_kv_heads; block.kv_head += together) {
      block.num_kv_heads = std::min(together, num_kv_heads - block.kv_head);
      blocks_.push_back(block);
    }
  }
}

// Cuts the blocks that would keep one thread busy while the others wait into parts.
void Attention::deal(int64_t num_row_tiles) {
  const bool is_serial = num_threads() == 1 || num_products_ < kSerialProducts;
  const int64_t share =
      is_serial ? num_row_tiles : num_row_tiles / (kPartsPerThread * num_threads());
  const auto tiles_of = [](const Block& block) { return block.tile_end - block.tile_begin; };
  const auto length_of = [&](const Block& block) {
    return std::max<int64_t>(1, share / num_rows(block));
  };
  int64_t floats = 0, num_cut = 0;
  for (Block& block : blocks_) {
    const int64_t of_block = tiles_of(block) * state_floats(block);
    block.is_cut = tiles_of(block) > length_of(block) && floats + of_block <= kMaxStateFloats;
    if (!block.is_cut) continue;
    floats += of_block;
    ++num_cut;
  }
  counters_ = std::vector<std::atomic<int64_t>>(static_cast<size_t>(num_cut));
  float* states = num_cut == 0 ? nullptr : scratch<float>(kStateSlot, floats);
  std::atomic<int64_t>* counter = counters_.data();
  for (Block& block : blocks_) {
    const int64_t length = block.is_cut ? length_of(block) : tiles_of(block);
    if (block.is_cut) {
      block.states = states;
      states += tiles_of(block) * state_floats(block);
      block.num_parts_left = counter++;
      block.num_parts_left->store((tiles_of(block) + length - 1) / length);
    }
    for (int64_t tile = block.tile_begin; tile < block.tile_end; tile += length) {
      parts_.push_back({&block, tile, std::min(tile + length, block.tile_end)});
    }
  }
}

void Attention::run() {
  plan();
  const int64_t num_parts = static_cast<int64_t>(parts_.size());
  const auto part_at = [&](int64_t i) {
    return i < num_parts ? &parts_[static_cast<size_t>(i)] : nullptr;
  };
  if (num_parts <= 1 || num_threads() == 1 || num_products_ < kSerialProducts) {
    for (int64_t i = 0; i < num_parts; ++i) run_part(*part_at(i), part_at(i + 1), i == 0);
    return;
  }
  // A thread claims its next part before it runs one, to prefetch what that begins with.
  std::atomic<int64_t> num_claimed{0};
  parallel_each([&](int) {
    const auto claim = [&] { return part_at(num_claimed.fetch_add(1, std::memory_order_relaxed)); };
    bool is_cold = true;
    for (const Part* part = claim(); part != nullptr;) {
      const Part* next = claim();
      run_part(*part, next, is_cold);
      part = next;
      is_cold = false;
    }
  });
}

// One buffer of the thread, cut into what a part needs.
Work Attention::work() const {
  const int64_t rows = max_rows_;
  int64_t size = 0;
  const auto place = [&](int64_t bytes) {
    const int64_t at = size;
    size += round_up(bytes, kScratchAlignment);
    return at;
  };
  const int64_t row_bytes = rows * row_stride_ * 4, panel_bytes = kAttnTile * row_stride_ * 4;
  const int64_t q = place(row_bytes), tile_sums = place(row_bytes), sums = place(row_bytes);
  const int64_t scores = place(rows * kAttnTile * 4);
  const int64_t tile_tops = place(rows * 4), tile_totals = place(rows * 4);
  const int64_t tops = place(rows * 4), totals = place(rows * 4);
  const int64_t first = place(rows * 4), last = place(rows * 4);
  const int64_t keys = place(kAttnTile * 8), values = place(kAttnTile * 8);
  const int64_t ahead = place(4 * kAttnTile * sizeof(AttnRun));
  const int64_t key_panel = place(panel_bytes), value_panel = place(panel_bytes);
  const int64_t key_columns = place(panel_bytes);
  char* base = scratch<char>(kWorkSlot, size);
  const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(base + at); };
  Work work{};
  work.q = floats(q);
  work.scores = floats(scores);
  work.tile = {floats(tile_sums), floats(tile_tops), floats(tile_totals)};
  work.state = {floats(sums), floats(tops), floats(totals)};
  work.first = reinterpret_cast<int*>(base + first);
  work.last = reinterpret_cast<int*>(base + last);
  work.keys = reinterpret_cast<const void**>(base + keys);
  work.values = reinterpret_cast<const void**>(base + values);
  work.ahead = reinterpret_cast<AttnRun*>(base + ahead);
  work.key_panel = floats(key_panel);
  work.key_columns = floats(key_columns);
  work.value_panel = floats(value_panel);
  return work;
}

// The state of no tile at all.
void clear(const AttnState& state, int64_t num_rows, int64_t row_stride) {
  std::fill(state.sums, state.sums + num_rows * row_stride, 0.0f);
  std::fill(state.tops, state.tops + num_rows, -std::numeric_limits<float>::infinity());
  std::fill(state.totals, state.totals + num_rows, 0.0f);
}

AttnState Attention::state_of(const Block& block, int64_t tile) const {
  float* at = block.states + (tile - block.tile_begin) * state_floats(block);
  const int64_t rows = num_rows(block);
  return {at, at + rows * row_stride_, at + rows * (row_stride_ + 1)};
}

// The tokens of a block, counted from its first, that see a key of the tile.
Range Attention::visible_tokens(const Block& block, int64_t tile) const {
  const int64_t start = tile * kAttnTile, end = start + kAttnTile;
  const int64_t begin = std::max<int64_t>(0, start - block.position);
  int64_t stop = block.num_tokens;
  while (stop > begin && first_key(block.position + stop - 1) >= end) --stop;
  return {begin, stop};
}

Place Attention::place_of(const Block& block, int64_t row) const {
  const int64_t of_head = row % rows_of_head(block);
  return {block.token + of_head / group_,
          (block.kv_head + row / rows_of_head(block)) * group_ + of_head % group_};
}

// Where nobody has prefetched what the part begins with, it is cold.
void Attention::run_part(const Part& part, const Part* next, bool is_cold) const {
  const Block& block = *part.block;
  const Work work = this->work();
  const int64_t item = item_bytes(q_.dtype);
  const auto widen_row = table_.cast[of_q_][0];
  for (int64_t row = 0; row < num_rows(block); ++row) {
    const Place place = place_of(block, row);
    const int64_t offset = place.token * q_.stride[0] + place.head * q_.stride[1];
    float* to = work.q + row * row_stride_;
    widen_row(to, static_cast<const char*>(q_.data) + offset * item, 0, head_dim_);
    std::fill(to + head_dim_, to + row_stride_, 0.0f);
  }
  if (!block.is_cut) clear(work.state, num_rows(block), row_stride_);
  for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile) {
    const Range tokens = visible_tokens(block, tile);
    const AttnState into = block.is_cut ? state_of(block, tile) : work.tile;
    Tile following = {nullptr, 0};
    if (tile + 1 < part.tile_end) {
      following = {&block, tile + 1};
    } else if (next != nullptr) {
      following = {next->block, next->tile_begin};
    }
    for (int64_t head = 0; head < block.num_kv_heads; ++head) {
      attend({&block, tile}, head, tokens, following, is_cold && tile == part.tile_begin, into,
             work);
    }
    if (!block.is_cut) fold(block, tokens, into, work.state);
  }
  if (block.is_cut) {
    if (block.num_parts_left->fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    clear(work.state, num_rows(block), row_stride_);
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      fold(block, visible_tokens(block, tile), state_of(block, tile), work.state);
    }
  }
  finish(block, work.state);
}

// One tile of keys of the block's KV head `head` against the rows of these tokens.
void Attention::attend(const Tile& at, int64_t head, Range tokens, const Tile& next, bool is_cold,
                       const AttnState& into, const Work& work) const {
  const Block& block = *at.block;
  const int64_t start = at.index * kAttnTile;
  int64_t begin = kAttnTile, end = 0;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int64_t position = block.position + t;
    const int64_t first = std::max<int64_t>(0, first_key(position) - start);
    const int64_t last = std::min<int64_t>(kAttnTile, position + 1 - start);
    begin = std::min(begin, first);
    end = std::max(end, last);
    for (int64_t row = t * group_; row < (t + 1) * group_; ++row) {
      work.first[row] = static_cast<int>(first);
      work.last[row] = static_cast<int>(last);
    }
  }
  const KvSpan span = {block.request, block.kv_head + head, at.index, begin, end};
  pages_.point(span, work.keys, work.values);
  const int64_t of_head = tokens.begin * group_, row = head * rows_of_head(block) + of_head;
  AttnTile args{};
  args.head_dim = head_dim_;
  args.num_rows = static_cast<int>((tokens.end - tokens.begin) * group_);
  args.scale = scale_;
  args.soft_cap = soft_cap_;
  args.q = work.q + row * row_stride_;
  args.row_stride = row_stride_;
  args.first = work.first + of_head;
  args.last = work.last + of_head;
  args.keys = work.keys;
  args.values = work.values;
  args.scores = work.scores;
  args.sums = into.sums + row * row_stride_;
  args.tops = into.tops + row;
  args.totals = into.totals + row;
  const bool is_direct = args.num_rows <= kDirectRows;
  if (is_direct) {
    const KvRuns ahead = runs_ahead(span, at, next, is_cold, work);
    args.ahead = ahead.runs;
    args.num_ahead = ahead.count;
    table_.attend_tile[of_cache_](args);
    return;
  }
  share(begin, end, work);
  args.key_columns = work.key_columns;
  args.value_columns = work.value_panel;
  args.value_width = value_width();
  table_.attend_tile[0](args);
}

// What is read in this tile and after it: the next KV head's, or what the next tile begins with.
KvRuns Attention::runs_ahead(const KvSpan& span, const Tile& at, const Tile& next, bool is_cold,
                             const Work& work) const {
  KvRuns ahead = {work.ahead, 0};
  pages_.add_runs(span, &ahead);
  KvSpan later = span;
  if (++later.kv_head < at.block->kv_head + at.block->num_kv_heads) {
    pages_.add_runs(later, &ahead);
  } else if (next.block != nullptr) {
    const Block& block = *next.block;
    const int64_t start = next.index * kAttnTile;
    later = {block.request, block.kv_head, next.index,
             std::max(start, first_key(block.position)) - start,
             std::min(start + kAttnTile, block.position + block.num_tokens) - start};
    pages_.add_runs(later, &ahead);
  }
  ahead.skip(kAheadLines, is_cold && span.kv_head == at.block->kv_head);
  return ahead;
}

// Makes what many rows read of keys and values [begin, end): f32, keys by columns, values by blocks
// of columns.
void Attention::share(int64_t begin, int64_t end, const Work& work) const {
  table_.spread_values[of_cache_](work.values, static_cast<int>(begin), static_cast<int>(end),
                                  head_dim_, value_width(), work.value_panel);
  // Rows end in whole vectors, and the elements behind a head are zeros.
  if (of_cache_ != 0 || row_stride_ != head_dim_) {
    const auto widen = of_cache_ == kNumFloats ? table_.widen_fp8 : table_.cast[of_cache_][0];
    for (int64_t j = begin; j < end; ++j) {
      float* row = work.key_panel + j * row_stride_;
      widen(row, work.keys[j], 0, head_dim_);
      std::fill(row + head_dim_, row + row_stride_, 0.0f);
      work.keys[j] = row;
    }
  }
  const int64_t group = kAttnKeyVectors * table_.attn_lanes;
  fill_group(work.keys, begin, end, group);
  table_.transpose_keys(work.keys, static_cast<int>(begin / group * group),
                        static_cast<int>(round_up(end, group)), row_stride_, work.key_columns);
}

void Attention::fold(const Block& block, Range tokens, const AttnState& from,
                     const AttnState& into) const {
  const int64_t count = (tokens.end - tokens.begin) * group_;
  for (int64_t head = 0; head < block.num_kv_heads; ++head) {
    const int64_t row = head * rows_of_head(block) + tokens.begin * group_;
    const auto at = [&](const AttnState& state) {
      return AttnState{state.sums + row * row_stride_, state.tops + row, state.totals + row};
    };
    table_.fold_tile(at(into), at(from), static_cast<int>(count), row_stride_);
  }
}

void Attention::finish(const Block& block, const AttnState& state) const {
  const int64_t item = item_bytes(out_.dtype);
  for (int64_t row = 0; row < num_rows(block); ++row) {
    const Place place = place_of(block, row);
    const int64_t offset = place.token * out_.stride[0] + place.head * out_.stride[1];
    const float total = state.totals[row];
    table_.divide_row[of_q_](static_cast<char*>(out_.data) + offset * item,
                             state.sums + row * row_stride_, total, head_dim_);
    if (!lse_.has_value()) continue;
    lse_.as<float>()[place.token * lse_.stride[0] + place.head * lse_.stride[1]] =
        total > 0 ? state.tops[row] + std::log(total) : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

void paged_attention(TensorView out, TensorView lse, TensorView q, TensorView k_cache,
                     TensorView v_cache, TensorView block_tables, TensorView seq_lens,
                     TensorView cu_seqlens_q, double scale, std::optional<int64_t> window,
                     std::optional<double> soft_cap) {
  Attention(out, lse, q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q, scale, window,
            soft_cap)
      .run();
}

}  // namespace pyvt::cpu
