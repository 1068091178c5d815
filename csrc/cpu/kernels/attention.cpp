// what        attend_tile: for rows of queries, the softmax-weighted sum of the values of one tile
//             of keys, relative to the tile's own maximum
//             fold_tile: adds a tile to the state of its rows
//             divide_row: out = sums / total, rounded
//             merge_row: out = a · weight_a + b · weight_b
// layout      AttnTile (attn_tile.h); a key or value is head_dim elements side by side, anywhere
// numerics    a score is the sum over dims in kLanes chains, d rising, then over lanes in the order
//             of simd::sum; a tile's sums run over keys rising, in one chain for each dim. Every
//             row sees the same operations on the keys that it may see, whatever rows stand beside
//             it; keys that it may not see are not touched. Tiles are folded in rising order.
//             A row of −inf alone and a row with a NaN or +inf become NaN, as in the reference.
// work        few rows, in threes and pairs, share each loaded key and value. Many rows read copies
//             that the launcher has made for all of them: keys by columns, where a lane owns a key
//             and six rows share two vectors, and values by blocks of 4 vectors
// traffic     decode: keys and values once, memory bound; prefill: compute bound (12 FMA for 7 or 8
//             loads), copies in the first-level cache
// tried       decode, context 2000, D 128, one thread: no prefetch takes 2.0 times as long; a walk
//             of all tokens for one KV head after the other 2.3 times, where heads of a token lie
//             side by side
//             decode, context 128, D 128, 8 KV heads, two threads, cold: all of the next tile asked
//             for on the way 48 µs, 2 KiB ahead in the order of reading 43, 3/4 KiB 43, 4 and 8 KiB
//             47, none 63; the same walk without arithmetic 31. A core drops the prefetches that it
//             has no room for: all of a tile asked for at once comes for the smaller part. Loads in
//             their place block the core: 60. Values by columns of 32 dims over all keys of a tile
//             want a line of each key at a time; by 8 keys with all dims they are read in order
//             Prefill, in one profile, time of scores by that of values: lanes along dims 1.55, by
//             columns and their transposing 0.97 (D 64). Blocks of 48 rows: at context 4096
//             widening and transposing take 31 % of the time, of 128 rows 18 %. Values as they lie
//             in an f32 cache with 4 KiB between tokens take twice the time of scores: they share
//             few sets of the first-level cache
// source      Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135
#include "cpu/kernels/math-inl.h"
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

// Prefetches what a tile names as next, a few cache lines at a time.
class Prefetcher {
 public:
  explicit Prefetcher(const AttnTile& tile)
      : next_(tile.ahead), end_(tile.ahead + tile.num_ahead) {}

  void advance(int num_lines) {
    while (num_lines > 0) {
      if (left_ == 0) {
        if (next_ == end_) return;
        at_ = next_->data;
        left_ = next_->num_lines;
        ++next_;
      }
      const int count = num_lines < left_ ? num_lines : left_;
      const char* at = at_;
      for (int i = 0; i < count; ++i) __builtin_prefetch(at + i * 64);
      at_ = at + count * 64;
      left_ -= count;
      num_lines -= count;
    }
  }

 private:
  const AttnRun* next_;
  const AttnRun* end_;
  const char* at_ = nullptr;
  int left_ = 0;
};

// Cache lines of keys or of values that are read in order.
template <typename T>
int lines_of(const AttnTile& tile, int num_keys) {
  return static_cast<int>((num_keys * tile.head_dim * static_cast<int64_t>(sizeof(T)) + 63) / 64);
}

// Scores of kRows rows against kAttnKeyGroup keys. Without a tail the sums never leave registers.
template <int kRows, bool kHasTail, typename T>
inline void score_group(float* scores, const float* q, int64_t q_stride, const T* const* keys,
                        int64_t head_dim) {
  static_assert(kAttnKeyGroup == 4, "four sums at a time");
  simd::Vec sums[kRows][4];
  const auto add = [&](const simd::Vec(&query)[kRows], const auto& key_at) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const simd::Vec key = key_at(keys[k]);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r][k] = simd::fma(query[r], key, sums[r][k]);
    }
  };
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[r][k] = simd::zero();
  }
  const int64_t end = kHasTail ? head_dim / simd::kLanes * simd::kLanes : head_dim;
  simd::Vec query[kRows];
  for (int64_t d = 0; d < end; d += simd::kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) query[r] = simd::load(q + r * q_stride + d);
    add(query, [&](const T* key) { return simd::load(key + d); });
  }
  if (kHasTail) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) query[r] = simd::load(q + r * q_stride + end);
    const int num_dims = static_cast<int>(head_dim - end);
    add(query, [&](const T* key) { return simd::load_first(key + end, num_dims); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    simd::sum4(scores + r * kAttnTile, sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
  }
}

constexpr int kColumnKeys = kAttnKeyVectors * simd::kLanes;

// The i-th of kLanes chains in the order in which simd::sum adds lanes: halves first.
constexpr int chain_at(int i) {
  int chain = 0;
  for (int bit = 1, half = simd::kLanes / 2; half > 0; bit *= 2, half /= 2) {
    if (i & bit) chain += half;
  }
  return chain;
}

// Scores of kRows rows against a group of keys in columns: a lane owns a key. Chain by chain, and
// added as simd::sum adds lanes, so that every score has the bits of score_group.
template <int kRows>
void score_columns(float* scores, const float* q, int64_t q_stride, const float* columns,
                   int64_t num_dims) {
  simd::Vec parts[8][kRows][kAttnKeyVectors];
  static_assert(simd::kLanes <= 64, "a part for each halving");
  int depth = 0;
  for (int i = 0; i < simd::kLanes; ++i) {
    simd::Vec sums[kRows][kAttnKeyVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kAttnKeyVectors; ++v) sums[r][v] = simd::zero();
    }
    for (int64_t d = chain_at(i); d < num_dims; d += simd::kLanes) {
      simd::Vec key[kAttnKeyVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kAttnKeyVectors; ++v) {
        key[v] = simd::load(columns + d * kColumnKeys + v * simd::kLanes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const simd::Vec query = simd::set1(q[r * q_stride + d]);
#pragma GCC unroll 2
        for (int v = 0; v < kAttnKeyVectors; ++v) sums[r][v] = simd::fma(query, key[v], sums[r][v]);
      }
    }
    const auto for_sums = [&](auto&& f) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kAttnKeyVectors; ++v) f(sums[r][v], parts[depth][r][v]);
      }
    };
    for (int n = i + 1; n % 2 == 0; n /= 2) {
      --depth;
      for_sums([](simd::Vec& sum, simd::Vec& part) { sum = simd::add(part, sum); });
    }
    for_sums([](simd::Vec& sum, simd::Vec& part) { part = sum; });
    ++depth;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kAttnKeyVectors; ++v) {
      simd::store(scores + r * kAttnTile + v * simd::kLanes, parts[0][r][v]);
    }
  }
}

void transpose_keys(const void* const* keys, int begin, int end, int64_t row_stride,
                    float* columns) {
  for (int key = begin; key < end; key += simd::kLanes) {
    const auto* rows = reinterpret_cast<const uint8_t* const*>(keys + key);
    float* group = columns + key / kColumnKeys * kColumnKeys * row_stride + key % kColumnKeys;
    for (int64_t d = 0; d < row_stride; d += simd::kLanes) {
      simd::transpose_words(rows, d * 4, reinterpret_cast<uint8_t*>(group + d * kColumnKeys),
                            kColumnKeys * 4);
    }
  }
}

template <typename T>
void spread_values(const void* const* values, int begin, int end, int64_t head_dim, int64_t width,
                   float* columns) {
  for (int j = begin; j < end; ++j) {
    const T* value = static_cast<const T*>(values[j]);
    for (int64_t d = 0; d < head_dim; d += simd::kLanes) {
      float* to = columns + d / width * width * kAttnTile + j * width + d % width;
      const int64_t left = head_dim - d;
      simd::store(to, left >= simd::kLanes ? simd::load(value + d)
                                           : simd::load_first(value + d, static_cast<int>(left)));
    }
  }
}

// Adds weight · value over the keys [first, last) to kVectors vectors of kRows rows of sums;
// `value_at(j)` is where the vectors of key j lie. Without `has_sums` they start at zero.
template <int kRows, int kVectors, typename ValueAt>
inline void value_group(float* sums, int64_t stride, const float* weights, const ValueAt& value_at,
                        int first, int last, bool has_sums) {
  simd::Vec acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = has_sums ? simd::load(sums + r * stride + v * simd::kLanes) : simd::zero();
    }
  }
  for (int j = first; j < last; ++j) {
    simd::Vec weight[kRows];
    for (int r = 0; r < kRows; ++r) weight[r] = simd::set1(weights[r * kAttnTile + j]);
    const auto* value = value_at(j);
    for (int v = 0; v < kVectors; ++v) {
      const simd::Vec x = simd::load(value + v * simd::kLanes);
      for (int r = 0; r < kRows; ++r) acc[r][v] = simd::fma(weight[r], x, acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      simd::store(sums + r * stride + v * simd::kLanes, acc[r][v]);
    }
  }
}

// The dims behind the last whole vector; the rest of that vector stays zero.
template <int kRows, typename T>
inline void value_tail(float* sums, int64_t stride, const float* weights, const T* const* values,
                       int64_t d, int num_dims, int first, int last, bool has_sums) {
  simd::Vec acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    acc[r] = has_sums ? simd::load(sums + r * stride + d) : simd::zero();
  }
  for (int j = first; j < last; ++j) {
    const simd::Vec x = simd::load_first(values[j] + d, num_dims);
    for (int r = 0; r < kRows; ++r) {
      acc[r] = simd::fma(simd::set1(weights[r * kAttnTile + j]), x, acc[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) simd::store(sums + r * stride + d, acc[r]);
}

// Turns a row's scores over the keys [first, last) into exp(score − top).
inline void softmax_tile_row(float* scores, int first, int last, float scale, float soft_cap,
                             float* top_out, float* total_out) {
  const float infinity = __builtin_inff();
  const int begin = first / simd::kLanes * simd::kLanes;
  const simd::Vec factor = simd::set1(scale), cap = simd::set1(soft_cap);
  for (int i = begin; i < last; i += simd::kLanes) {
    simd::Vec x = simd::mul(simd::load(scores + i), factor);
    if (soft_cap != 0) x = simd::mul(tanh_of(simd::div(x, cap)), cap);
    simd::store(scores + i, x);
  }
  for (int i = begin; i < first; ++i) scores[i] = -infinity;
  const int end = (last + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
  for (int i = last; i < end; ++i) scores[i] = -infinity;
  simd::Vec tops = simd::load(scores + begin);
  for (int i = begin + simd::kLanes; i < end; i += simd::kLanes) {
    tops = simd::max(tops, simd::load(scores + i));
  }
  const float top = simd::max_lane(tops);
  const simd::Vec shift = simd::set1(top == -infinity ? 0.0f : top);
  simd::Vec total = simd::zero();
  for (int i = begin; i < end; i += simd::kLanes) {
    const simd::Vec weight = simd::exp(simd::sub(simd::load(scores + i), shift));
    simd::store(scores + i, weight);
    total = simd::add(total, weight);
  }
  *top_out = top;
  *total_out = simd::sum(total);
}

// Rows that go together: threes, but four as two pairs.
inline int rows_together(int num_left) {
  if (num_left == 4 || num_left == 2) return 2;
  return num_left >= 3 ? 3 : 1;
}

template <bool kHasTail, typename T>
void score_rows(const AttnTile& tile, int begin_key, int end_key, Prefetcher* ahead) {
  const T* const* keys = reinterpret_cast<const T* const*>(tile.keys);
  const int pace = lines_of<T>(tile, kAttnKeyGroup);
  for (int key = begin_key; key < end_key; key += kAttnKeyGroup) {
    ahead->advance(pace);
    for (int row = 0; row < tile.num_rows;) {
      const int together = rows_together(tile.num_rows - row);
      float* scores = tile.scores + row * kAttnTile + key;
      const float* q = tile.q + row * tile.row_stride;
      if (together == 3) {
        score_group<3, kHasTail>(scores, q, tile.row_stride, keys + key, tile.head_dim);
      } else if (together == 2) {
        score_group<2, kHasTail>(scores, q, tile.row_stride, keys + key, tile.head_dim);
      } else {
        score_group<1, kHasTail>(scores, q, tile.row_stride, keys + key, tile.head_dim);
      }
      row += together;
    }
  }
}

void score_rows_by_columns(const AttnTile& tile, int begin_key, int end_key) {
  for (int key = begin_key / kColumnKeys * kColumnKeys; key < end_key; key += kColumnKeys) {
    const float* columns = tile.key_columns + key * tile.row_stride;
    for (int row = 0; row < tile.num_rows;) {
      const int left = tile.num_rows - row, together = left >= 6 ? 6 : rows_together(left);
      float* scores = tile.scores + row * kAttnTile + key;
      const float* q = tile.q + row * tile.row_stride;
      row += together;
      // Later rows see as many keys or more.
      if (tile.last[row - 1] <= key) continue;
      if (together == 6) {
        score_columns<6>(scores, q, tile.row_stride, columns, tile.row_stride);
      } else if (together == 3) {
        score_columns<3>(scores, q, tile.row_stride, columns, tile.row_stride);
      } else if (together == 2) {
        score_columns<2>(scores, q, tile.row_stride, columns, tile.row_stride);
      } else {
        score_columns<1>(scores, q, tile.row_stride, columns, tile.row_stride);
      }
    }
  }
}

// Rows and keys of a tile: rows that see the same keys, and some of those.
struct Piece {
  int row, row_end;
  int first, last;
  bool has_sums;  // of earlier keys
};

// The sums of a piece in kVectors vectors from dim d on; none stands for the masked tail.
template <int kVectors, typename T>
void value_rows(const AttnTile& tile, const Piece& piece, int64_t d) {
  const T* const* values = reinterpret_cast<const T* const*>(tile.values);
  const int num_dims = static_cast<int>(tile.head_dim - d);
  const float* columns = tile.value_columns + (tile.value_columns == nullptr ? 0 : d * kAttnTile);
  for (int row = piece.row; row < piece.row_end;) {
    const int together = rows_together(piece.row_end - row);
    float* sums = tile.sums + row * tile.row_stride;
    const float* weights = tile.scores + row * kAttnTile;
    const auto add = [&](auto num_rows) {
      constexpr int kRows = decltype(num_rows)::value;
      if constexpr (kVectors == 0) {
        value_tail<kRows>(sums, tile.row_stride, weights, values, d, num_dims, piece.first,
                          piece.last, piece.has_sums);
      } else if (tile.value_columns != nullptr) {
        value_group<kRows, kVectors>(
            sums + d, tile.row_stride, weights,
            [&](int j) { return columns + j * tile.value_width; }, piece.first, piece.last,
            piece.has_sums);
      } else {
        value_group<kRows, kVectors>(
            sums + d, tile.row_stride, weights, [&](int j) { return values[j] + d; }, piece.first,
            piece.last, piece.has_sums);
      }
    };
    if (together == 3) {
      add(std::integral_constant<int, 3>{});
    } else if (together == 2) {
      add(std::integral_constant<int, 2>{});
    } else {
      add(std::integral_constant<int, 1>{});
    }
    row += together;
  }
}

// All dims of a piece, as values lie or from columns.
template <typename T>
void value_piece(const AttnTile& tile, const Piece& piece) {
  int64_t d = 0;
  if (tile.value_columns != nullptr && tile.value_width == simd::kLanes) {
    for (; d < tile.row_stride; d += simd::kLanes) value_rows<1, T>(tile, piece, d);
    return;
  }
  constexpr int kWidth = kAttnValueVectors * simd::kLanes;
  for (; d + kWidth <= tile.head_dim; d += kWidth) {
    value_rows<kAttnValueVectors, T>(tile, piece, d);
  }
  for (; d + simd::kLanes <= tile.head_dim; d += simd::kLanes) value_rows<1, T>(tile, piece, d);
  if (d < tile.head_dim) value_rows<0, T>(tile, piece, d);
}

// Values that are read as they lie are read in order, some keys with all their dims at a time.
template <typename T>
void add_values(const AttnTile& tile, Prefetcher* ahead) {
  constexpr int kKeys = 8;
  for (int row = 0; row < tile.num_rows;) {
    int end = row + 1;
    const int first = tile.first[row], last = tile.last[row];
    while (end < tile.num_rows && tile.first[end] == first && tile.last[end] == last) ++end;
    const int step = tile.value_columns == nullptr ? kKeys : kAttnTile;
    for (int j = first; j < last; j += step) {
      if (row == 0) ahead->advance(lines_of<T>(tile, kKeys));
      value_piece<T>(tile, {row, end, j, j + step < last ? j + step : last, j != first});
    }
    row = end;
  }
}

template <typename T>
void attend_tile(const AttnTile& tile) {
  int begin_key = kAttnTile, end_key = 0;
  for (int row = 0; row < tile.num_rows; ++row) {
    begin_key = tile.first[row] < begin_key ? tile.first[row] : begin_key;
    end_key = tile.last[row] > end_key ? tile.last[row] : end_key;
  }
  Prefetcher ahead(tile);
  const int first_key = begin_key / kAttnKeyGroup * kAttnKeyGroup;
  if (tile.key_columns != nullptr) {
    score_rows_by_columns(tile, begin_key, end_key);
  } else if (tile.head_dim % simd::kLanes == 0) {
    score_rows<false, T>(tile, first_key, end_key, &ahead);
  } else {
    score_rows<true, T>(tile, first_key, end_key, &ahead);
  }
  for (int row = 0; row < tile.num_rows; ++row) {
    softmax_tile_row(tile.scores + row * kAttnTile, tile.first[row], tile.last[row], tile.scale,
                     tile.soft_cap, tile.tops + row, tile.totals + row);
  }
  add_values<T>(tile, &ahead);
}

inline void fold_tile(const AttnState& state, const AttnState& tile, int num_rows,
                      int64_t row_stride) {
  for (int row = 0; row < num_rows; ++row) {
    const float old_top = state.tops[row], tile_top = tile.tops[row];
    const float top = old_top > tile_top ? old_top : tile_top;
    const simd::Vec shift = simd::set1(top == -__builtin_inff() ? 0.0f : top);
    const simd::Vec old_weight = simd::exp(simd::sub(simd::set1(old_top), shift));
    const simd::Vec tile_weight = simd::exp(simd::sub(simd::set1(tile_top), shift));
    float* sums = state.sums + row * row_stride;
    const float* added = tile.sums + row * row_stride;
    for (int64_t d = 0; d < row_stride; d += simd::kLanes) {
      const simd::Vec old = simd::mul(simd::load(sums + d), old_weight);
      simd::store(sums + d, simd::fma(simd::load(added + d), tile_weight, old));
    }
    const simd::Vec total = simd::mul(simd::set1(state.totals[row]), old_weight);
    state.totals[row] = simd::max_lane(simd::fma(simd::set1(tile.totals[row]), tile_weight, total));
    state.tops[row] = top;
  }
}

template <typename O>
void divide_row(void* out, const float* sums, float total, int64_t n) {
  O* to = static_cast<O*>(out);
  const simd::Vec divisor = simd::set1(total);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(to + i, simd::div(simd::load(sums + i), divisor));
  }
  if (i < n) {
    simd::store_first(to + i, simd::div(simd::load(sums + i), divisor), static_cast<int>(n - i));
  }
}

// A part of weight 0 is not read; it may hold anything.
template <typename X>
void merge_row(void* out, const void* a, const void* b, float weight_a, float weight_b, int64_t n) {
  const X* first = static_cast<const X*>(a);
  const X* second = static_cast<const X*>(b);
  X* to = static_cast<X*>(out);
  const simd::Vec scale_a = simd::set1(weight_a), scale_b = simd::set1(weight_b);
  for (int64_t i = 0; i < n; i += simd::kLanes) {
    const int count = n - i < simd::kLanes ? static_cast<int>(n - i) : simd::kLanes;
    const auto part = [&](const X* x, simd::Vec scale) {
      return simd::mul(count == simd::kLanes ? simd::load(x) : simd::load_first(x, count), scale);
    };
    simd::Vec sum = weight_a == 0 ? simd::zero() : part(first + i, scale_a);
    if (weight_b != 0) sum = simd::add(sum, part(second + i, scale_b));
    if (count == simd::kLanes) {
      simd::store(to + i, sum);
    } else {
      simd::store_first(to + i, sum, count);
    }
  }
}

}  // namespace

void fill_attention(KernelTable& table) {
  table.attn_lanes = simd::kLanes;
  table.fold_tile = &fold_tile;
  table.transpose_keys = &transpose_keys;
  for_floats([&](auto x) {
    using X = typename decltype(x)::type;
    table.attend_tile[x.index] = &attend_tile<X>;
    table.spread_values[x.index] = &spread_values<X>;
    table.divide_row[x.index] = &divide_row<X>;
    table.merge_row[x.index] = &merge_row<X>;
  });
  table.attend_tile[kNumFloats] = &attend_tile<E4m3>;
  table.spread_values[kNumFloats] = &spread_values<E4m3>;
}

}  // namespace pyvt::cpu::PYVT_ISA
