// Slots of states of fixed size: where the requests of a step go on from, and what is kept.
#pragma once

#include "cuda/device/platform.cuh"
#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cuda {

struct Slots {
  const int32_t* cu_seqlens_q = nullptr;   // [R + 1]
  const int32_t* initial_slots = nullptr;  // [R], −1 for zeros
  const int32_t* state_slots = nullptr;    // [T], −1 for none
  int num_requests = 0, num_tokens = 0;

  // The request of a token; those without tokens have none.
  PYVT_DEVICE int request_of(int token) const {
    int low = 0, high = num_requests;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (cu_seqlens_q[middle] <= token) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

inline Slots slots_of(const char* op, const TensorView& cu_seqlens_q,
                      const TensorView& initial_slots, const TensorView& state_slots,
                      int64_t num_tokens) {
  const auto is_i32 = [](const TensorView& view, int64_t size) {
    return view.rank == 1 && view.dtype == DType::kI32 && view.is_dense() && view.shape[0] == size;
  };
  PYVT_CHECK(op, initial_slots.rank == 1, "initial_slots: expected [R]");
  const int64_t num_requests = initial_slots.shape[0];
  PYVT_CHECK(
      op,
      is_i32(cu_seqlens_q, num_requests + 1) && is_i32(initial_slots, num_requests) &&
          is_i32(state_slots, num_tokens),
      "cu_seqlens_q, initial_slots, state_slots: expected i32 [R + 1], [R], [T] side by side");
  return {cu_seqlens_q.as<int32_t>(), initial_slots.as<int32_t>(), state_slots.as<int32_t>(),
          static_cast<int>(num_requests), static_cast<int>(num_tokens)};
}

// Whether a step is mostly of requests with a token each, or few: told from sizes alone, so that a
// captured step stays valid.
inline bool has_short_requests(const Slots& slots) {
  return slots.num_tokens <= 4 * slots.num_requests;
}

}  // namespace pyvt::cuda
