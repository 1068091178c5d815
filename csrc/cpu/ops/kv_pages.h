// KvPages: where the keys and values of cached tokens lie.
#pragma once

#include <cstdint>

#include "cpu/attn_tile.h"
#include "cpu/ops/tiles.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

// The keys and values [begin, end) of one tile of a request and KV head.
struct KvSpan {
  int64_t request;
  int64_t kv_head;
  int64_t tile;
  int64_t begin;
  int64_t end;
};

// How far ahead of the arithmetic memory is asked for, in cache lines. A core has some 24 requests
// under way, and drops those beyond.
constexpr int kAheadLines = 32;

// What is read later, in the order in which it lies.
struct KvRuns {
  AttnRun* runs;
  int count;

  void add(const char* data, int64_t num_bytes) {
    runs[count++] = {data, static_cast<int>((num_bytes + 63) / 64)};
  }
  // Takes the first lines off the list, and asks for them at once where `is_cold`.
  void skip(int num_lines, bool is_cold);
};

class KvPages {
 public:
  KvPages(TensorView k_cache, TensorView v_cache, TensorView block_tables)
      : k_cache_(k_cache), v_cache_(v_cache), block_tables_(block_tables) {}

  int64_t block_size() const { return k_cache_.shape[1]; }
  int64_t num_heads() const { return k_cache_.shape[2]; }
  int64_t block_id(int64_t request, int64_t entry) const {
    return block_tables_
        .as<int32_t>()[request * block_tables_.stride[0] + entry * block_tables_.stride[1]];
  }

  // Points keys[j] and values[j] at those of the span.
  void point(const KvSpan& span, const void** keys, const void** values) const;

  // Adds the keys, then the values of a span to a list: at most two runs for each token.
  void add_runs(const KvSpan& span, KvRuns* list) const;

 private:
  // Calls f(j, count, key, value) for the tokens of a span that lie in one block, `count` of them
  // from j on, with where they begin.
  template <typename F>
  void for_blocks(const KvSpan& span, F&& f) const;
  const char* entry(const TensorView& cache, int64_t request, int64_t position,
                    int64_t kv_head) const;

  TensorView k_cache_, v_cache_, block_tables_;
};

// Repeats a neighbour in the rest of a group of keys.
void fill_group(const void** keys, int64_t begin, int64_t end, int64_t group);

}  // namespace pyvt::cpu
