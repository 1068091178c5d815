// Rows of logits in f32, parameters a row, and the order of tokens: value falling, then lowest id.
#pragma once

#include "cuda/device/index.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/rows.cuh"

namespace pyvt::cuda {

constexpr int kLogitThreads = 512;
constexpr int64_t kNoToken = -1;

// [R, V] f32, tokens of a row side by side or a constant distance apart.
struct Logits {
  float* data = nullptr;
  int64_t num_rows = 0, vocab = 0, row_stride = 0, stride = 1;

  PYVT_DEVICE float& at(int64_t row, int64_t token) const {
    return data[row * row_stride + token * stride];
  }
};

inline Logits logits_of(const char* op, const char* name, const TensorView& x) {
  PYVT_CHECK(op, x.rank == 2 && x.dtype == DType::kF32, name, ": expected f32 [R, V]");
  return {x.as<float>(), x.shape[0], x.shape[1], x.stride[0], x.stride[1]};
}

inline Logits logits_like(const char* op, const char* name, const TensorView& x, const Logits& as) {
  const Logits found = logits_of(op, name, x);
  PYVT_CHECK(op, found.num_rows == as.num_rows && found.vocab == as.vocab, name,
             ": expected the shape of logits");
  return found;
}

// One number a row, f32 or f64.
struct PerRow {
  const void* data = nullptr;
  int64_t stride = 0;
  bool is_f64 = false;

  PYVT_DEVICE double operator[](int64_t row) const {
    return is_f64 ? static_cast<const double*>(data)[row * stride]
                  : static_cast<const float*>(data)[row * stride];
  }
};

inline PerRow per_row(const char* op, const char* name, const TensorView& x, int64_t num_rows) {
  PYVT_CHECK(
      op,
      x.rank == 1 && x.shape[0] == num_rows && (x.dtype == DType::kF32 || x.dtype == DType::kF64),
      name, ": expected f32 or f64 [R]");
  return {x.data, x.stride[0], x.dtype == DType::kF64};
}

// A whole number that is greater for a greater value; −0 and 0 are one, NaN is the greatest.
PYVT_DEVICE uint32_t order_of(float value) {
  if (isnan(value)) return 0xffffffffu;
  value += 0.0f;
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

PYVT_DEVICE float value_of(uint32_t order) {
  const uint32_t bits = (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Greater for a token that comes earlier; 0 is none.
PYVT_DEVICE unsigned long long rank_key(float value, int64_t token) {
  return static_cast<unsigned long long>(order_of(value)) << 32 |
         (0xffffffffu - static_cast<uint32_t>(token));
}
PYVT_DEVICE int64_t token_of(unsigned long long key) {
  return 0xffffffffu - static_cast<uint32_t>(key & 0xffffffffu);
}
PYVT_DEVICE float value_of_key(unsigned long long key) {
  return value_of(static_cast<uint32_t>(key >> 32));
}

// The key of the first token of a row, in every thread; `parts` is shared.
PYVT_DEVICE unsigned long long best_key(const Logits& logits, int64_t row,
                                        unsigned long long* parts) {
  unsigned long long best = 0;
  for (int64_t i = threadIdx.x; i < logits.vocab; i += blockDim.x) {
    const unsigned long long key = rank_key(logits.at(row, i), i);
    best = key > best ? key : best;
  }
  return block_max(best, parts);
}

inline unsigned logit_threads(int64_t vocab) { return threads_for(vocab, 8, kLogitThreads); }

}  // namespace pyvt::cuda
