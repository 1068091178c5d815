#include "cpu/ops/kv_pages.h"

#include <algorithm>

namespace pyvt::cpu {

void fill_group(const void** keys, int64_t begin, int64_t end, int64_t group) {
  for (int64_t j = begin / group * group; j < begin; ++j) keys[j] = keys[begin];
  for (int64_t j = end; j < (end + group - 1) / group * group; ++j) keys[j] = keys[end - 1];
}

int KvPages::lines_of_head() const {
  return static_cast<int>((k_cache_.shape[3] * item_bytes(k_cache_.dtype) + 63) / 64);
}

const char* KvPages::entry(const TensorView& cache, int64_t request, int64_t position,
                           int64_t kv_head) const {
  const int64_t id = block_id(request, position / cache.shape[1]);
  const int64_t offset = id * cache.stride[0] + position % cache.shape[1] * cache.stride[1] +
                         kv_head * cache.stride[2];
  return static_cast<const char*>(cache.data) + offset * item_bytes(cache.dtype);
}

template <typename F>
void KvPages::for_tokens(const KvSpan& span, F&& f) const {
  const int64_t item = item_bytes(k_cache_.dtype);
  const int64_t k_step = k_cache_.stride[1] * item, v_step = v_cache_.stride[1] * item;
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t position = span.tile * kAttnTile + j;
    const char* key = entry(k_cache_, span.request, position, span.kv_head);
    const char* value = entry(v_cache_, span.request, position, span.kv_head);
    const int64_t stop = std::min(span.end, j + block_size() - position % block_size());
    for (; j < stop; ++j, key += k_step, value += v_step) f(j, key, value);
  }
}

void KvPages::point(const KvSpan& span, const void** keys, const void** values) const {
  for_tokens(span, [&](int64_t j, const char* key, const char* value) {
    keys[j] = key;
    values[j] = value;
  });
  fill_group(keys, span.begin, span.end, kAttnKeyGroup);
}

void KvPages::add_runs(const KvSpan& span, KvRuns* list) const {
  const int64_t item = item_bytes(k_cache_.dtype);
  const int64_t k_step = k_cache_.stride[2] * item, v_step = v_cache_.stride[2] * item;
  for_tokens(span, [&](int64_t, const char* key, const char* value) {
    const void** runs = list->runs + list->count;
    for (int64_t head = 0; head < span.num_kv_heads; ++head) {
      runs[head] = key + head * k_step;
      runs[span.num_kv_heads + head] = value + head * v_step;
    }
    list->count += static_cast<int>(2 * span.num_kv_heads);
  });
}

}  // namespace pyvt::cpu
