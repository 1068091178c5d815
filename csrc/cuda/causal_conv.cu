// causal_conv1d: the short convolution before linear attention, with its states.
//
// contract  the reference of pyvt/ops/causal_conv.py; sums in f32, one rounding
// layout    channels of x, out, states and taps any distance apart, as views of a wider row are
// work      a thread per channel walks over tokens with the last inputs in registers: all tokens of
//           a request where requests are short; else 16 tokens, with the states that requests
//           start from copied aside first, since a token may take the slot that another reads
// estimate  2·C·2 bytes a token in bf16 and 2·P·C·2 of the state: Qwen3.6-35B-A3B, C = 8192, has
//           131 kB a decode token and layer, 0.03 us at 4.3 TB/s, so a launch of few is latency;
//           8,192 tokens of prefill 268 MB, 62 us, and 0.7 GFLOP, 10 operations an element
// launches  1; 2 for long requests
// source    Gu & Dao 2023, arXiv:2312.00752
#include "cuda/device/rows.cuh"
#include "cuda/device/slots.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = 16;  // of a tile
constexpr int kMostTaps = 8;

// States [B, P, C], or the copies [R, P, C] of those that requests start from.
struct States {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t slot_stride = 0, row_stride = 0, stride = 1;

  PYVT_DEVICE float get(int64_t slot, int row, int64_t channel) const {
    return load_any(data, dtype, slot * slot_stride + row * row_stride + channel * stride);
  }
  PYVT_DEVICE void set(int64_t slot, int row, int64_t channel, float value) const {
    store_any(data, dtype, slot * slot_stride + row * row_stride + channel * stride, value);
  }
};

// [T, C] or [Kc, C].
struct Channels {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int num_rows = 0;
  int64_t length = 0, row_stride = 0, stride = 1;

  PYVT_DEVICE float get(int row, int64_t channel) const {
    return load_any(data, dtype, row * row_stride + channel * stride);
  }
  PYVT_DEVICE void set(int row, int64_t channel, float value) const {
    store_any(data, dtype, row * row_stride + channel * stride, value);
  }
};

struct Convolution {
  Channels out, x, taps;
  States states, starts;  // starts.data: null where slots are read as they are
  const void* bias;
  DType bias_type;
  int64_t bias_stride;
  Slots slots;

  // Input `row` of those before the first token of a request, oldest first.
  PYVT_DEVICE float before(int request, int row, int64_t channel) const {
    const int slot = slots.initial_slots[request];
    if (slot < 0) return 0.0f;
    return starts.data == nullptr ? states.get(slot, row, channel)
                                  : starts.get(request, row, channel);
  }
};

// Takes in a new input, the last; the first goes.
template <int kTaps>
PYVT_DEVICE void push(float (&window)[kTaps], float value) {
#pragma unroll
  for (int j = 1; j < kTaps; ++j) window[j - 1] = window[j];
  window[kTaps - 1] = value;
}

// `kTaps` inputs in registers; of fewer taps the first ones count as none.
template <int kTaps>
PYVT_DEVICE void walk(const Convolution& c, int64_t channel, int first, int stop, int request) {
  const int num_taps = c.taps.num_rows, skip = kTaps - num_taps;
  float taps[kTaps], window[kTaps] = {};
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    taps[j] = j < skip ? 0.0f : c.taps.get(j - skip, channel);
  }
  const float bias =
      c.bias == nullptr ? 0.0f : load_any(c.bias, c.bias_type, channel * c.bias_stride);
  int begin = -1, end = first;
  for (int t = first; t < stop; ++t) {
    if (t >= end) {  // another request: what is before its token t
      if (begin >= 0) ++request;
      while (c.slots.cu_seqlens_q[request + 1] <= t) ++request;
      begin = c.slots.cu_seqlens_q[request];
      end = c.slots.cu_seqlens_q[request + 1];
      for (int at = t - num_taps + 1; at < t; ++at) {
        push(window, at >= begin ? c.x.get(at, channel)
                                 : c.before(request, num_taps - 1 + at - begin, channel));
      }
    }
    push(window, c.x.get(t, channel));
    float total = bias;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (j >= skip) total += taps[j] * window[j];
    }
    c.out.set(t, channel, total / (1.0f + expf(-total)));
    const int slot = c.slots.state_slots[t];
    if (slot < 0) continue;
#pragma unroll
    for (int j = 1; j < kTaps; ++j) {
      if (j > skip) c.states.set(slot, j - skip - 1, channel, window[j]);
    }
  }
}

template <int kTaps>
__global__ void __launch_bounds__(kThreads) conv_kernel(Convolution c, bool by_request) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= c.x.length) return;
  const int index = static_cast<int>(blockIdx.y);
  if (by_request) {
    const int first = c.slots.cu_seqlens_q[index], stop = c.slots.cu_seqlens_q[index + 1];
    return walk<kTaps>(c, channel, first, stop, index);
  }
  const int first = index * kTokens, rest = c.slots.num_tokens - first;
  walk<kTaps>(c, channel, first, first + (rest < kTokens ? rest : kTokens),
              c.slots.request_of(first));
}

__global__ void __launch_bounds__(kThreads) copy_kernel(Convolution c, int num_rows) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int request = static_cast<int>(blockIdx.y), slot = c.slots.initial_slots[request];
  if (channel >= c.x.length || slot < 0) return;
  for (int row = 0; row < num_rows; ++row) {
    c.starts.set(request, row, channel, c.states.get(slot, row, channel));
  }
}

Channels channels_of(const char* op, const char* name, const TensorView& x, int64_t num_rows,
                     int64_t length) {
  PYVT_CHECK(op, x.rank == 2 && is_float(x.dtype) && x.shape[0] == num_rows && x.shape[1] == length,
             name, ": expected floats [", num_rows, ", ", length, "]");
  return {x.data, x.dtype, static_cast<int>(num_rows), length, x.stride[0], x.stride[1]};
}

void run(Context& context, Convolution c) {
  const char* op = "causal_conv1d";
  const unsigned blocks = blocks_for(c.x.length, kThreads);
  const auto num_requests = static_cast<unsigned>(c.slots.num_requests);
  const bool by_request = has_short_requests(c.slots);
  std::shared_ptr<Buffer> copies;
  if (!by_request) {
    const int64_t num_before = c.taps.num_rows - 1, size = num_before * c.x.length;
    const int64_t item = c.states.dtype == DType::kF32 ? 4 : 2;
    copies = context.take(static_cast<size_t>(c.slots.num_requests * size * item));
    c.starts = {copies->data(), c.states.dtype, size, c.x.length, 1};
    context.launch(op, &copy_kernel, dim3(blocks, num_requests), dim3(kThreads), 0, c,
                   static_cast<int>(num_before));
  }
  const dim3 grid(blocks, by_request ? num_requests : blocks_for(c.slots.num_tokens, kTokens));
  if (c.taps.num_rows <= 4) {
    context.launch(op, &conv_kernel<4>, grid, dim3(kThreads), 0, c, by_request);
  } else {
    context.launch(op, &conv_kernel<kMostTaps>, grid, dim3(kThreads), 0, c, by_request);
  }
}

}  // namespace

void causal_conv1d(Context& context, TensorView out, TensorView conv_state, TensorView x,
                   TensorView weight, TensorView bias, TensorView cu_seqlens_q,
                   TensorView initial_slots, TensorView state_slots) {
  const char* op = "causal_conv1d";
  Convolution c = {};
  PYVT_CHECK(op, x.rank == 2 && weight.rank == 2, "x, weight: expected [T, C] and [Kc, C]");
  PYVT_CHECK(op, weight.shape[0] >= 2 && weight.shape[0] <= kMostTaps, "weight: expected 2 to ",
             kMostTaps, " taps, got ", weight.shape[0]);
  c.x = channels_of(op, "x", x, x.shape[0], x.shape[1]);
  c.out = channels_of(op, "out", out, x.shape[0], x.shape[1]);
  c.taps = channels_of(op, "weight", weight, weight.shape[0], x.shape[1]);
  PYVT_CHECK(op,
             conv_state.rank == 3 && conv_state.dtype == x.dtype &&
                 conv_state.shape[1] == c.taps.num_rows - 1 && conv_state.shape[2] == c.x.length,
             "conv_state: expected [B, ", c.taps.num_rows - 1, ", ", c.x.length, "]");
  c.states = {conv_state.data, conv_state.dtype, conv_state.stride[0], conv_state.stride[1],
              conv_state.stride[2]};
  if (bias.has_value()) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == c.x.length && is_float(bias.dtype),
               "bias: expected floats [", c.x.length, "]");
    c.bias = bias.data;
    c.bias_type = bias.dtype;
    c.bias_stride = bias.stride[0];
  }
  c.slots = slots_of(op, cu_seqlens_q, initial_slots, state_slots, c.x.num_rows);
  if (c.slots.num_tokens == 0 || c.x.length == 0) return;
  run(context, c);
}

}  // namespace pyvt::cuda
