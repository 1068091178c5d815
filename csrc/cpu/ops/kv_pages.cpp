#include "cpu/ops/kv_pages.h"

#include <algorithm>

namespace pyvt::cpu {

void fill_group(const void** keys, int64_t begin, int64_t end, int64_t group) {
  for (int64_t j = begin / group * group; j < begin; ++j) keys[j] = keys[begin];
  for (int64_t j = end; j < (end + group - 1) / group * group; ++j) keys[j] = keys[end - 1];
}

void KvRuns::skip(int num_lines, bool is_cold) {
  while (num_lines > 0 && count > 0) {
    const int taken = std::min(num_lines, runs->num_lines);
    for (int line = 0; is_cold && line < taken; ++line) __builtin_prefetch(runs->data + line * 64);
    *runs = {runs->data + taken * 64, runs->num_lines - taken};
    num_lines -= taken;
    if (runs->num_lines > 0) return;
    ++runs;
    --count;
  }
}

const char* KvPages::entry(const TensorView& cache, int64_t request, int64_t position,
                           int64_t kv_head) const {
  const int64_t id = block_id(request, position / cache.shape[1]);
  const int64_t offset = id * cache.stride[0] + position % cache.shape[1] * cache.stride[1] +
                         kv_head * cache.stride[2];
  return static_cast<const char*>(cache.data) + offset * item_bytes(cache.dtype);
}

template <typename F>
void KvPages::for_blocks(const KvSpan& span, F&& f) const {
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t position = span.tile * kAttnTile + j;
    const int64_t count = std::min(span.end - j, block_size() - position % block_size());
    f(j, count, entry(k_cache_, span.request, position, span.kv_head),
      entry(v_cache_, span.request, position, span.kv_head));
    j += count;
  }
}

void KvPages::point(const KvSpan& span, const void** keys, const void** values) const {
  const int64_t item = item_bytes(k_cache_.dtype);
  const int64_t k_step = k_cache_.stride[1] * item, v_step = v_cache_.stride[1] * item;
  for_blocks(span, [&](int64_t j, int64_t count, const char* key, const char* value) {
    for (int64_t i = 0; i < count; ++i) {
      keys[j + i] = key + i * k_step;
      values[j + i] = value + i * v_step;
    }
  });
  fill_group(keys, span.begin, span.end, kAttnKeyGroup);
}

void KvPages::add_runs(const KvSpan& span, KvRuns* list) const {
  const int64_t row_bytes = k_cache_.shape[3] * item_bytes(k_cache_.dtype);
  const auto add = [&](const TensorView& cache, const char* data, int64_t num_tokens) {
    // Tokens that lie side by side are one run.
    const int64_t step = cache.stride[1] * item_bytes(cache.dtype);
    const int64_t length = step == row_bytes ? num_tokens : 1;
    for (int64_t i = 0; i < num_tokens; i += length) list->add(data + i * step, length * row_bytes);
  };
  for_blocks(span, [&](int64_t, int64_t count, const char* key, const char*) {
    add(k_cache_, key, count);
  });
  for_blocks(span, [&](int64_t, int64_t count, const char*, const char* value) {
    add(v_cache_, value, count);
  });
}

}  // namespace pyvt::cpu
