// KvPages: where the keys and values of cached tokens lie.
#pragma once

#include <cstdint>

#include "cpu/attn_tile.h"
#include "cpu/ops/tiles.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

// The keys and values [begin, end) of one tile of a request, for KV heads from kv_head on.
struct KvSpan {
  int64_t request;
  int64_t kv_head;
  int64_t num_kv_heads;
  int64_t tile;
  int64_t begin;
  int64_t end;
};

// What is read later: the keys or values of one head of one token each.
struct KvRuns {
  const void** runs;
  int count;
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
  int lines_of_head() const;
  bool has_heads_side_by_side() const { return k_cache_.stride[2] < k_cache_.stride[1]; }

  // Points keys[j] and values[j] at those of the span's first head.
  void point(const KvSpan& span, const void** keys, const void** values) const;

  // Adds the keys and values of a span to a list, in the order in which they lie.
  void add_runs(const KvSpan& span, KvRuns* list) const;

 private:
  // Calls f(j, key, value) with where the first head's lie, for the tokens of a span.
  template <typename F>
  void for_tokens(const KvSpan& span, F&& f) const;
  const char* entry(const TensorView& cache, int64_t request, int64_t position,
                    int64_t kv_head) const;

  TensorView k_cache_, v_cache_, block_tables_;
};

// Repeats a neighbour in the rest of a group of keys.
void fill_group(const void** keys, int64_t begin, int64_t end, int64_t group);

}  // namespace pyvt::cpu
