// One half of the paged KV cache, keys or values, [B, S, Nk, D] of any stride.
#pragma once

#include "cuda/device/types.cuh"
#include "pyvt/check.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cuda {

struct Cache {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0, block_size = 0, num_heads = 0, head_dim = 0;
  int64_t block_stride = 0, token_stride = 0, head_stride = 0, stride = 1;

  // The first element of a head of a slot.
  PYVT_DEVICE int64_t at(int64_t block, int64_t token, int64_t head) const {
    return block * block_stride + token * token_stride + head * head_stride;
  }
};

inline bool is_kv_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kFP8;
}

inline int64_t item_bytes(DType dtype) {
  switch (dtype) {
#define PYVT_BYTES(name, text, number, block, bytes) \
  case DType::name:                                  \
    return bytes;
    PYVT_DTYPES(PYVT_BYTES)
#undef PYVT_BYTES
  }
  return 0;
}

// Any plain dtype: copies look at bytes.
inline Cache cache_of(const char* op, const char* name, const TensorView& view) {
  PYVT_CHECK(op, view.rank == 4, name, ": expected [B, S, Nk, D]");
  return {view.data,     view.dtype,     view.shape[0],  view.shape[1],  view.shape[2],
          view.shape[3], view.stride[0], view.stride[1], view.stride[2], view.stride[3]};
}

}  // namespace pyvt::cuda
