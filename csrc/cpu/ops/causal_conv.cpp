// Launcher of the causal_conv family: runs of channels of each request over threads.
#include <algorithm>
#include <cstring>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/state_slots.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Channels of a run: what a request brings before its first token, its taps and a few rows of
// inputs then stay in the first-level cache.
constexpr int64_t kRun = 512;
constexpr int64_t kMaxTaps = 64;
constexpr int kBiasSlot = 0, kBeforeSlot = 1;

class CausalConv {
 public:
  CausalConv(const TensorView& out, const TensorView& conv_state, const TensorView& x,
             const TensorView& weight, const float* bias, const StateSlots& slots)
      : out_(out),
        state_(conv_state),
        x_(x),
        weight_(weight),
        bias_(bias),
        slots_(slots),
        item_(item_bytes(x.dtype)),
        num_taps_(weight.shape[0]),
        kernel_(kernels().convolve[float_index("causal_conv1d", x.dtype)]
                                  [float_index("causal_conv1d", weight.dtype)]) {}

  // Channels [first, first + count) of a request. Outputs and states that are kept read inputs of
  // the request and a copy of the state before it, which one of those may overwrite.
  void run(int64_t request, int64_t first, int64_t count) const {
    const int64_t begin = slots_.cu_seqlens[request], end = slots_.cu_seqlens[request + 1];
    const int64_t num_before = num_taps_ - 1, row_bytes = count * item_;
    char* before = scratch<char>(kBeforeSlot, num_before * row_bytes);
    const int64_t initial = slots_.initial[request];
    for (int64_t j = 0; j < num_before; ++j) {
      char* row = before + j * row_bytes;
      if (initial < 0) {
        std::memset(row, 0, static_cast<size_t>(row_bytes));
      } else {
        std::memcpy(row, state_row(initial, j, first), static_cast<size_t>(row_bytes));
      }
    }
    const void* taps[kMaxTaps];
    for (int64_t j = 0; j < num_taps_; ++j) {
      taps[j] = at(weight_, j * weight_.stride[0] + first);
    }
    for (int64_t t = begin; t < end; ++t) {
      const void* inputs[kMaxTaps];
      for (int64_t j = 0; j < num_taps_; ++j) {
        const int64_t token = t - num_before + j;
        inputs[j] = token < begin ? before + (token - begin + num_before) * row_bytes
                                  : at(x_, token * x_.stride[0] + first);
      }
      kernel_(at(out_, t * out_.stride[0] + first), inputs, taps,
              bias_ == nullptr ? nullptr : bias_ + first, static_cast<int>(num_taps_), count);
      const int64_t kept = slots_.kept[t];
      for (int64_t j = 0; kept >= 0 && j < num_before; ++j) {
        std::memcpy(state_row(kept, j, first), inputs[j + 1], static_cast<size_t>(row_bytes));
      }
    }
  }

 private:
  static char* at(const TensorView& view, int64_t offset) {
    return static_cast<char*>(view.data) + offset * item_bytes(view.dtype);
  }
  char* state_row(int64_t slot, int64_t row, int64_t first) const {
    return at(state_, slot * state_.stride[0] + row * state_.stride[1] + first);
  }

  TensorView out_, state_, x_, weight_;
  const float* bias_;
  StateSlots slots_;
  int64_t item_, num_taps_;
  ConvKernel kernel_;
};

}  // namespace

void causal_conv1d(TensorView out, TensorView conv_state, TensorView x, TensorView weight,
                   TensorView bias, TensorView cu_seqlens_q, TensorView initial_slots,
                   TensorView state_slots) {
  const char* op = "causal_conv1d";
  for (const TensorView* view : {&out, &x, &weight}) {
    PYVT_CHECK(op, view->rank == 2 && view->is_dense(1),
               "out, x, weight: expected two dims, the last one dense");
  }
  const int64_t num_tokens = x.shape[0], num_channels = x.shape[1], num_taps = weight.shape[0];
  PYVT_CHECK(op, out.shape[0] == num_tokens && out.shape[1] == num_channels && out.dtype == x.dtype,
             "out: expected the shape and dtype of x");
  PYVT_CHECK(op, weight.shape[1] == num_channels && num_taps >= 2 && num_taps <= kMaxTaps,
             "weight: expected dims [Kc, C], Kc from 2 to ", kMaxTaps);
  PYVT_CHECK(op,
             conv_state.rank == 3 && conv_state.is_dense(1) &&
                 conv_state.shape[1] == num_taps - 1 && conv_state.shape[2] == num_channels &&
                 conv_state.dtype == x.dtype,
             "conv_state: expected dims [B, P, C], the last one dense, and the dtype of x");
  const StateSlots slots =
      state_slots_of(op, cu_seqlens_q, initial_slots, state_slots, num_tokens, conv_state.shape[0]);
  float* wide_bias = nullptr;
  if (bias.has_value()) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == num_channels && bias.is_dense(1),
               "bias: expected dims [C]");
    wide_bias = scratch<float>(kBiasSlot, num_channels);
    kernels().cast[float_index(op, bias.dtype)][0](wide_bias, bias.data, 0, num_channels);
  }
  const CausalConv conv(out, conv_state, x, weight, wide_bias, slots);
  const int64_t num_runs = (num_channels + kRun - 1) / kRun;
  parallel_for(slots.num_reqs() * num_runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % num_runs * kRun;
      conv.run(i / num_runs, first, std::min(kRun, num_channels - first));
    }
  });
}

}  // namespace pyvt::cpu
