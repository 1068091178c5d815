// The largest entries of a row in their one order: value falling, ties by the lowest id.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace pyvt::cpu {

struct Candidate {
  float value;
  int64_t id;

  bool operator<(const Candidate& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
};

// Replaces `found` by the `num` largest entries in order; NaN counts as −inf. A heap keeps the
// best ones so far with the worst in front, and few entries of a row beat that.
inline void largest(const float* row, int64_t length, int64_t num, std::vector<Candidate>* found) {
  found->clear();
  if (num == 0) return;
  const auto value_at = [&](int64_t i) {
    return std::isnan(row[i]) ? -std::numeric_limits<float>::infinity() : row[i];
  };
  for (int64_t i = 0; i < num; ++i) found->push_back({value_at(i), i});
  std::make_heap(found->begin(), found->end());
  for (int64_t i = num; i < length; ++i) {
    if (!(row[i] > found->front().value)) continue;
    std::pop_heap(found->begin(), found->end());
    found->back() = {row[i], i};
    std::push_heap(found->begin(), found->end());
  }
  std::sort_heap(found->begin(), found->end());
}

}  // namespace pyvt::cpu
