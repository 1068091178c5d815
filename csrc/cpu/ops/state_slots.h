// StateSlots: which tokens belong to a request, and the slots of its states.
#pragma once

#include "cpu/ops/indices.h"

namespace pyvt::cpu {

struct StateSlots {
  Indices cu_seqlens;  // [R + 1]
  Indices initial;     // [R]
  Indices kept;        // [T]

  int64_t num_reqs() const { return initial.size; }
};

// Throws where the arrays contradict each other or name what is not there.
inline StateSlots state_slots_of(const char* op, const TensorView& cu_seqlens_q,
                                 const TensorView& initial_slots, const TensorView& state_slots,
                                 int64_t num_tokens, int64_t num_slots) {
  const StateSlots slots = {indices_of(op, "cu_seqlens_q", cu_seqlens_q),
                            indices_of(op, "initial_slots", initial_slots),
                            indices_of(op, "state_slots", state_slots)};
  PYVT_CHECK(op, slots.cu_seqlens.size == slots.num_reqs() + 1,
             "cu_seqlens_q: expected one value more than requests");
  PYVT_CHECK(op, slots.kept.size == num_tokens, "state_slots: expected a slot for each token");
  check_range(op, "initial_slots", slots.initial, -1, num_slots);
  check_range(op, "state_slots", slots.kept, -1, num_slots);
  int64_t last = 0;
  for (int64_t r = 0; r <= slots.num_reqs(); ++r) {
    const int64_t next = slots.cu_seqlens[r];
    PYVT_CHECK(op, next >= last && (r > 0 || next == 0),
               "cu_seqlens_q: expected rising values from 0");
    last = next;
  }
  PYVT_CHECK(op, last == num_tokens, "cu_seqlens_q: expected values up to T");
  return slots;
}

}  // namespace pyvt::cpu
