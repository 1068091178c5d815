// Elements: the walk over views of one shape in the longest runs that are dense in all of them.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/ops/rows.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {

template <int kNumViews>
struct Elements {
  char* data[kNumViews];
  int64_t item[kNumViews];  // bytes of an element
  int64_t run;              // elements of a run
  int64_t num_runs;
  int rank;  // of the dims that number the runs
  int64_t shape[kMaxRank];
  int64_t stride_bytes[kNumViews][kMaxRank];

  void* at(int view, int64_t run_index, int64_t first) const {
    int64_t offset = first * item[view];
    for (int i = rank - 1; i >= 0; --i) {
      offset += run_index % shape[i] * stride_bytes[view][i];
      run_index /= shape[i];
    }
    return data[view] + offset;
  }
};

// Throws where the shapes differ or a tensor is missing.
template <int kNumViews>
Elements<kNumViews> elements_of(const char* op, const TensorView (&views)[kNumViews]) {
  Elements<kNumViews> elements{};
  const TensorView& lead = views[0];
  for (int v = 0; v < kNumViews; ++v) {
    PYVT_CHECK(op,
               views[v].rank == lead.rank &&
                   std::equal(lead.shape, lead.shape + lead.rank, views[v].shape),
               "tensors: expected one shape");
    PYVT_CHECK(op, views[v].data != nullptr || views[v].size() == 0,
               "tensors: expected an array each, got none");
    elements.data[v] = static_cast<char*>(views[v].data);
    elements.item[v] = item_bytes(views[v].dtype);
  }
  elements.rank = lead.rank;
  elements.run = 1;
  while (elements.rank > 0) {
    const int dim = elements.rank - 1;
    bool is_dense = true;
    for (const TensorView& view : views) {
      is_dense = is_dense && (view.shape[dim] == 1 || view.stride[dim] == elements.run);
    }
    if (!is_dense) break;
    elements.run *= lead.shape[dim];
    elements.rank = dim;
  }
  elements.num_runs = 1;
  for (int i = 0; i < elements.rank; ++i) {
    elements.num_runs *= lead.shape[i];
    elements.shape[i] = lead.shape[i];
    for (int v = 0; v < kNumViews; ++v) {
      elements.stride_bytes[v][i] = views[v].stride[i] * elements.item[v];
    }
  }
  return elements;
}

// Calls f(run index, first element, number of elements) on all threads, about `grain` elements a
// piece; how a run is cut does not depend on the number of threads.
template <int kNumViews, typename F>
void for_each_piece(const Elements<kNumViews>& elements, int64_t grain, F&& f) {
  if (elements.run == 0) return;
  const int64_t pieces = (elements.run + grain - 1) / grain;
  const int64_t length = std::min(elements.run, grain);
  parallel_for(elements.num_runs * pieces, std::max<int64_t>(1, grain / length),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t first = i % pieces * grain;
                   f(i / pieces, first, std::min(grain, elements.run - first));
                 }
               });
}

// Copies a view into another of the same shape and item size, on the calling thread.
inline void copy_view(const char* op, const TensorView& to, const TensorView& from) {
  PYVT_CHECK(op, to.dtype == from.dtype, "tensors: expected one dtype");
  const auto elements = elements_of<2>(op, {to, from});
  for (int64_t i = 0; i < elements.num_runs; ++i) {
    std::memcpy(elements.at(0, i, 0), elements.at(1, i, 0),
                static_cast<size_t>(elements.run * elements.item[0]));
  }
}

}  // namespace pyvt::cpu
