// paged_attention: causal attention of new tokens over the paged cache, prefill and decode alike;
// in bf16 and f16 with dims of 64, 128 or 256, prefill goes to attention_prefill.cu, decode to
// attention_decode.cu.
//
// contract  the reference of pyvt/ops/attention.py: window, soft cap, lse; f32, one rounding
// layout    q, out [T, N, D]; cache [B, S, Nk, D] of any stride, in f32, bf16, f16 or fp8
// work      a block has 16 rows of one KV head: a row is a query token and a query head of the
//           group, so a group of 8 heads reads each key once. Tiles of 32 keys go through shared
//           memory: 4 threads a row make scores and the online softmax, then a thread has a column
//           of the output for all rows. With few blocks the keys are split over the grid and a
//           second kernel merges the parts; the number of parts depends on shapes alone, so a
//           captured graph stays right
// estimate  decode in f32: 8·Nk·D bytes a cached token and layer; 64 requests of 4096 tokens with 8
//           heads of 128 read 2.1 GB, 500 us a layer at 4.3 TB/s, but a tile of 32 keys takes some
//           28,000 instructions of warps for its 33 kB, so about 1 TB/s, 2 ms, is to be expected.
//           Prefill: 4·N·D operations a pair of query and key; 4096 tokens of 32 heads of 128 are
//           137 GFLOP, about 2.3 ms at 60 TFLOP/s
// launches  1, or 2 with split keys
// source    Dao 2023, arXiv:2307.08691; Ye et al. 2025, arXiv:2501.01005
#include "cuda/attention.h"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kRows = kDecodeRows, kKeys = 32, kThreads = 128;
constexpr int kPerRow = kThreads / kRows;  // threads that share a row's scores
constexpr int kOwnKeys = kKeys / kPerRow;  // scores of a thread
constexpr int kMaxSplits = 32;
// Blocks that fill the device twice; with fewer the keys are split.
constexpr int64_t kWavesWanted = 2;
// Keys of a part: less is not worth the merge.
constexpr int64_t kLeastKeys = 256;
// Tokens of a request up to which its keys are split.
constexpr int64_t kShortRequest = 4;

struct Scratch {
  float* queries;  // [kRows][D]
  float* sums;     // [kRows][D]
  float* scores;   // [kRows][kKeys + 1]
  float* factors;  // [kRows]: what old sums are multiplied by
  float* best;     // [kRows]
  float* total;    // [kRows]
  float* tile;     // [kKeys][D + 1]
};

inline size_t shared_bytes(int64_t head_dim) {
  return static_cast<size_t>(2 * kRows * head_dim + kRows * (kKeys + 1) + 3 * kRows +
                             kKeys * (head_dim + 1)) *
         sizeof(float);
}

PYVT_DEVICE Scratch scratch_of(float* shared, int64_t head_dim) {
  Scratch s;
  s.queries = shared;
  s.sums = s.queries + kRows * head_dim;
  s.scores = s.sums + kRows * head_dim;
  s.factors = s.scores + kRows * (kKeys + 1);
  s.best = s.factors + kRows;
  s.total = s.best + kRows;
  s.tile = s.total + kRows;
  return s;
}

// Copies keys `first` … of the request into the tile; those before `low` and from `stop` on are
// zero: the block table may hold anything there.
template <typename T>
PYVT_DEVICE void load_tile(float* tile, const Cache& cache, const int32_t* table, int64_t head,
                           int first, int low, int stop) {
  const int dims = static_cast<int>(cache.head_dim), size = static_cast<int>(cache.block_size);
  for (int i = threadIdx.x; i < kKeys * dims; i += kThreads) {
    const int key = i / dims, dim = i % dims, place = first + key;
    float value = 0.0f;
    if (place >= low && place < stop) {
      const int64_t at = cache.at(table[place / size], place % size, head) + dim * cache.stride;
      value = load(static_cast<const T*>(cache.data)[at]);
    }
    tile[key * (dims + 1) + dim] = value;
  }
}

// Scores of a tile for the row of this thread, then the online softmax of that row.
PYVT_DEVICE void softmax_step(const Scratch& s, const Settings& settings, int dims, int64_t first,
                              int64_t low, int64_t high) {
  const int row = threadIdx.x / kPerRow, part = threadIdx.x % kPerRow;
  float own[kOwnKeys];
  float best = -INFINITY;
#pragma unroll
  for (int i = 0; i < kOwnKeys; ++i) {
    const int key = part + i * kPerRow;
    float dot = 0.0f;
    for (int d = 0; d < dims; ++d) dot += s.queries[row * dims + d] * s.tile[key * (dims + 1) + d];
    const bool is_seen = first + key >= low && first + key <= high;
    own[i] = is_seen ? settings.score(dot) : -INFINITY;
    best = fmaxf(best, own[i]);
  }
#pragma unroll
  for (int bits = kPerRow / 2; bits > 0; bits /= 2) {
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, bits));
  }
  const float before = s.best[row];
  const float now = fmaxf(before, best);
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwnKeys; ++i) {
    // A row that has seen no key yet stays at zero.
    const float weight = own[i] == -INFINITY ? 0.0f : expf(own[i] - now);
    s.scores[row * (kKeys + 1) + part + i * kPerRow] = weight;
    total += weight;
  }
#pragma unroll
  for (int bits = kPerRow / 2; bits > 0; bits /= 2) {
    total += __shfl_xor_sync(kAllLanes, total, bits);
  }
  if (part == 0) {
    const float factor = before == -INFINITY ? 0.0f : expf(before - now);
    s.factors[row] = factor;
    s.total[row] = s.total[row] * factor + total;
    s.best[row] = now;
  }
}

// sums = sums · factor + weights · values: a thread has one column of 8 rows at a time.
PYVT_DEVICE void add_values(const Scratch& s, int dims) {
  constexpr int kGroup = 8;
  for (int i = threadIdx.x; i < dims * (kRows / kGroup); i += kThreads) {
    const int dim = i % dims, first = i / dims * kGroup;
    float sums[kGroup];
#pragma unroll
    for (int r = 0; r < kGroup; ++r)
      sums[r] = s.sums[(first + r) * dims + dim] * s.factors[first + r];
    for (int key = 0; key < kKeys; ++key) {
      const float value = s.tile[key * (dims + 1) + dim];
#pragma unroll
      for (int r = 0; r < kGroup; ++r) sums[r] += s.scores[(first + r) * (kKeys + 1) + key] * value;
    }
#pragma unroll
    for (int r = 0; r < kGroup; ++r) s.sums[(first + r) * dims + dim] = sums[r];
  }
}

PYVT_DEVICE void write_rows(const AttentionArguments& a, const Scratch& s, const Tile& tile,
                            int64_t kv_head, int split) {
  const int dims = static_cast<int>(a.q.head_dim), group = a.settings.group;
  for (int i = threadIdx.x; i < kRows * dims; i += kThreads) {
    const int row = i / dims, dim = i % dims;
    if (row >= tile.num_rows) break;
    const int64_t token = tile.token(row, group), head = kv_head * group + tile.head(row, group);
    if (a.num_splits > 1) {
      const int64_t at = (token * a.q.num_heads + head) * a.num_splits + split;
      a.part_sums[at * dims + dim] = s.sums[i];
      if (dim == 0) {
        a.part_stats[2 * at] = s.best[row];
        a.part_stats[2 * at + 1] = s.total[row];
      }
      continue;
    }
    store_any(a.out, a.out_dtype, token * a.out_token_stride + head * a.out_head_stride + dim,
              s.sums[i] / s.total[row]);
    if (dim == 0 && a.lse != nullptr) {
      a.lse[token * a.lse_token_stride + head * a.lse_head_stride] =
          s.best[row] + logf(s.total[row]);
    }
  }
}

// grid: tiles of rows, KV heads, parts of the keys.
template <typename T>
__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionArguments a) {
  PYVT_DYNAMIC_SHARED(float, shared);
  const int dims = static_cast<int>(a.q.head_dim), group = a.settings.group;
  const Scratch s = scratch_of(shared, dims);
  const int64_t kv_head = blockIdx.y;
  const Tile tile = find_tile(a.tables, blockIdx.x, group, kRows);
  if (tile.num_rows <= 0) return;
  for (int i = threadIdx.x; i < kRows * dims; i += kThreads) {
    const int row = i / dims, dim = i % dims;
    s.sums[i] = 0.0f;
    s.queries[i] = row >= tile.num_rows ? 0.0f
                                        : a.q.get(tile.token(row, group),
                                                  kv_head * group + tile.head(row, group), dim);
  }
  if (threadIdx.x < kRows) {
    s.best[threadIdx.x] = -INFINITY;
    s.total[threadIdx.x] = 0.0f;
  }
  // The keys that any row of the tile sees, and of these the part of this block.
  const int last_row = tile.num_rows - 1;
  const int64_t low = a.settings.first_key(tile.position(0, group));
  const int64_t stop = tile.position(last_row, group) + 1;
  const Span span = part_of(low / kKeys, (stop + kKeys - 1) / kKeys, blockIdx.z, a.num_splits);
  const int own_row = threadIdx.x / kPerRow;
  const bool is_row = own_row < tile.num_rows;
  const int64_t high = is_row ? tile.position(own_row, group) : -1;
  const int64_t own_low = is_row ? a.settings.first_key(high) : 0;
  const int32_t* table = a.tables.block_table(tile.request);
  for (int64_t t = span.first; t < span.stop; ++t) {
    const int first = static_cast<int>(t * kKeys), end = static_cast<int>(stop);
    __syncthreads();
    load_tile<T>(s.tile, a.k, table, kv_head, first, static_cast<int>(low), end);
    __syncthreads();
    softmax_step(s, a.settings, dims, first, own_low, high);
    __syncthreads();
    load_tile<T>(s.tile, a.v, table, kv_head, first, static_cast<int>(low), end);
    __syncthreads();
    add_values(s, dims);
  }
  __syncthreads();
  write_rows(a, s, tile, kv_head, blockIdx.z);
}

// A block per token and head merges its parts.
__global__ void __launch_bounds__(kThreads) merge_parts_kernel(AttentionArguments a) {
  const int64_t token = blockIdx.x, head = blockIdx.y;
  const int64_t first = (token * a.q.num_heads + head) * a.num_splits;
  const int64_t dims = a.q.head_dim;
  float best = -INFINITY, total = 0.0f;
  for (int i = 0; i < a.num_splits; ++i) best = fmaxf(best, a.part_stats[2 * (first + i)]);
  for (int i = 0; i < a.num_splits; ++i) {
    const float own = a.part_stats[2 * (first + i)];
    if (own != -INFINITY) total += expf(own - best) * a.part_stats[2 * (first + i) + 1];
  }
  for (int64_t d = threadIdx.x; d < dims; d += blockDim.x) {
    float sum = 0.0f;
    for (int i = 0; i < a.num_splits; ++i) {
      const float own = a.part_stats[2 * (first + i)];
      if (own != -INFINITY) sum += expf(own - best) * a.part_sums[(first + i) * dims + d];
    }
    store_any(a.out, a.out_dtype, token * a.out_token_stride + head * a.out_head_stride + d,
              sum / total);
  }
  if (threadIdx.x == 0 && a.lse != nullptr) {
    a.lse[token * a.lse_token_stride + head * a.lse_head_stride] = best + logf(total);
  }
}

bool is_aligned(const void* data, std::initializer_list<int64_t> strides) {
  bool is_whole = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (const int64_t stride : strides) is_whole = is_whole && stride % 8 == 0;
  return is_whole;
}

// Whether kernels on tensor cores take the dtypes and the layout of a call.
bool fits_tensor_cores(const AttentionArguments& a) {
  const DType dtype = a.q.dtype;
  const int64_t dims = a.q.head_dim;
  return (dtype == DType::kBF16 || dtype == DType::kF16) && a.out_dtype == dtype &&
         (a.k.dtype == dtype || a.k.dtype == DType::kFP8) &&
         (dims == 64 || dims == 128 || dims == 256) && a.q.stride == 1 && a.k.stride == 1 &&
         a.v.stride == 1 && is_aligned(a.q.data, {a.q.token_stride, a.q.head_stride}) &&
         is_aligned(a.k.data, {a.k.block_stride, a.k.token_stride, a.k.head_stride}) &&
         is_aligned(a.v.data, {a.v.block_stride, a.v.token_stride, a.v.head_stride}) &&
         is_aligned(a.out, {a.out_token_stride, a.out_head_stride});
}

enum class Way { kPlainTiles, kWideTiles, kSplitKeys };

// By shapes alone: a captured step stays valid.
Way way_of(const AttentionArguments& a) {
  if (!fits_tensor_cores(a)) return Way::kPlainTiles;
  const bool is_short = a.tables.num_tokens <= kShortRequest * a.tables.num_reqs;
  return is_short ? Way::kSplitKeys : Way::kWideTiles;
}

// The longest sequence that the block tables allow, and the blocks of the grid.
int splits_for(const Context& context, const AttentionArguments& a, int64_t num_tiles) {
  if (a.tables.num_tokens > kShortRequest * a.tables.num_reqs) return 1;
  const int64_t blocks = num_tiles * a.k.num_heads;
  const int64_t wanted = kWavesWanted * context.num_processors() / (blocks > 0 ? blocks : 1);
  const int64_t most = a.tables.max_blocks * a.k.block_size / kLeastKeys;
  const int64_t splits = wanted < most ? wanted : most;
  return static_cast<int>(splits < 1 ? 1 : splits > kMaxSplits ? kMaxSplits : splits);
}

void attend_by_plain_tiles(Context& context, const AttentionArguments& a, int64_t num_tiles) {
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(a.k.num_heads),
                  static_cast<unsigned>(a.num_splits));
  const size_t shared = shared_bytes(a.q.head_dim);
  const auto run = [&](auto type) {
    context.launch("paged_attention", &attention_kernel<decltype(type)>, grid, dim3(kThreads),
                   shared, a);
  };
  if (!with_float(a.k.dtype, run)) run(fp8{});
}

}  // namespace

void paged_attention(Context& context, TensorView out, TensorView lse, TensorView q,
                     TensorView k_cache, TensorView v_cache, TensorView block_tables,
                     TensorView seq_lens, TensorView cu_seqlens_q, double scale,
                     std::optional<int64_t> window, std::optional<double> soft_cap) {
  const char* op = "paged_attention";
  AttentionArguments a{};
  a.q = heads_of(op, "q", q);
  a.k = cache_of(op, "k_cache", k_cache);
  a.v = cache_of(op, "v_cache", v_cache);
  PYVT_CHECK(op, is_kv_dtype(a.k.dtype) && a.v.dtype == a.k.dtype && a.k.head_dim == a.q.head_dim,
             "k_cache: expected [B, S, Nk, ", a.q.head_dim, "] of a float");
  PYVT_CHECK(op, a.k.num_heads > 0 && a.q.num_heads % a.k.num_heads == 0,
             "q: expected heads a multiple of ", a.k.num_heads);
  const int64_t group = a.q.num_heads / a.k.num_heads;
  PYVT_CHECK(op, group <= kRows, "q: expected at most ", kRows, " heads for each KV head");
  a.tables = tables_of(op, block_tables, seq_lens, cu_seqlens_q, q.shape[0]);
  a.settings = {static_cast<int>(group), static_cast<float>(scale), window.value_or(0),
                static_cast<float>(soft_cap.value_or(0.0))};
  PYVT_CHECK(op, out.rank == 3 && is_float(out.dtype) && (a.q.head_dim == 1 || out.stride[2] == 1),
             "out: expected floats [T, N, D], dims side by side");
  a.out = out.data;
  a.out_dtype = out.dtype;
  a.out_token_stride = out.stride[0];
  a.out_head_stride = out.stride[1];
  if (lse.has_value()) {
    PYVT_CHECK(op, lse.rank == 2 && lse.dtype == DType::kF32, "lse: expected f32 [T, N]");
    a.lse = lse.as<float>();
    a.lse_token_stride = lse.stride[0];
    a.lse_head_stride = lse.stride[1];
  }
  if (a.tables.num_tokens == 0 || a.q.num_heads == 0) return;
  const Way way = way_of(a);
  if (way == Way::kWideTiles) return attend_by_wide_tiles(context, a);
  // A request has as many tiles as its tokens fill, so one more each at most.
  const int64_t num_tiles = a.tables.num_tokens <= a.tables.num_reqs
                                ? a.tables.num_reqs
                                : a.tables.num_tokens / (kRows / group) + a.tables.num_reqs;
  a.num_splits = splits_for(context, a, num_tiles);
  std::shared_ptr<Buffer> sums, stats;
  if (a.num_splits > 1) {
    const size_t parts = static_cast<size_t>(a.tables.num_tokens * a.q.num_heads * a.num_splits);
    sums = context.take(parts * static_cast<size_t>(a.q.head_dim) * sizeof(float));
    stats = context.take(parts * 2 * sizeof(float));
    a.part_sums = static_cast<float*>(sums->data());
    a.part_stats = static_cast<float*>(stats->data());
  }
  if (way == Way::kSplitKeys) {
    attend_by_split_keys(context, a, num_tiles);
  } else {
    attend_by_plain_tiles(context, a, num_tiles);
  }
  if (a.num_splits > 1) {
    context.launch(
        op, &merge_parts_kernel,
        dim3(static_cast<unsigned>(a.tables.num_tokens), static_cast<unsigned>(a.q.num_heads)),
        dim3(threads_for(a.q.head_dim, 1, kThreads)), 0, a);
  }
}

}  // namespace pyvt::cuda
