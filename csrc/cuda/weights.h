// Weights as ops take them on a device.
#pragma once

#include "pyvt/tensor_view.h"

namespace pyvt::cuda {

// Rows of blocks as in a file: `blocks` is u8 [N, bytes of a row], or [E, N, bytes] in a stack.
struct BlockMatrix {
  DType dtype = DType::kF32;
  TensorView blocks;
  int64_t num_cols = 0;
};

// The matrices of the experts of a layer, plain [E, N, K] or in blocks.
struct ExpertStack {
  TensorView plain;  // without value where they are in blocks
  BlockMatrix blocks;
  int64_t num_experts = 0;
};

// No op of this backend takes tiles.
struct NoTiles {};

}  // namespace pyvt::cuda
