// The arguments of the gated delta rule as its kernels take them.
#pragma once

#include "cuda/context.h"
#include "cuda/device/attention.cuh"
#include "cuda/device/slots.cuh"

namespace pyvt::cuda {

constexpr float kL2Eps = 1e-6f;

// [T, Hv] of any stride.
struct Gates {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t token_stride = 0, head_stride = 0;

  PYVT_DEVICE float get(int64_t token, int64_t head) const {
    return load_any(data, dtype, token * token_stride + head * head_stride);
  }
};

struct PerHead {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;

  PYVT_DEVICE float get(int64_t i) const { return load_any(data, dtype, i * stride); }
};

// Columns of a row lie side by side.
struct States {
  float* data = nullptr;
  int64_t slot_stride = 0, head_stride = 0, row_stride = 0;

  PYVT_DEVICE float* at(int64_t slot, int64_t head, int64_t row, int64_t column) const {
    return data + slot * slot_stride + head * head_stride + row * row_stride + column;
  }
};

// `a` and `b` are g and beta of the rule.
struct DeltaCall {
  Heads out, q, k, v, z;
  Gates a, b;
  PerHead decay_rate, dt_bias, weight;
  States states;
  Slots slots;
  float scale = 1.0f, eps = 0.0f;
  bool is_tiled = false;
  bool is_net = false;           // keys and queries are normed, a and b are raw
  int most_tokens = 0x7fffffff;  // requests of more are left to others

  PYVT_DEVICE int key_head(int head) const {
    const int num_keys = static_cast<int>(k.num_heads);
    return is_tiled ? head % num_keys : head / (static_cast<int>(v.num_heads) / num_keys);
  }
};

PYVT_DEVICE float log_decay(float a, float rate, float bias) {
  const float x = a + bias;
  return rate * (x > 20.0f ? x : log1pf(expf(x)));
}
PYVT_DEVICE float step_size(float b) { return 1.0f / (1.0f + expf(-b)); }

// Requests of so many tokens go by chunks where they can.
constexpr int kLeastOfChunks = 32;

// Whether chunks on tensor cores take a call.
bool takes_chunks(const Context& context, const DeltaCall& call);
// Moves requests of at least kLeastOfChunks tokens on by chunks; the others are left.
void launch_chunks(Context& context, const char* op, const DeltaCall& call);

}  // namespace pyvt::cuda
