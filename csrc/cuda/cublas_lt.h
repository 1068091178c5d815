// cuBLASLt, opened when a product first needs it; on the emulator emu/cublas_lt.cpp is in its
// place.
#pragma once

#include <string>

#include "cuda/context.h"
#include "pyvt/dtype.h"

namespace pyvt::cuda {

// out [M, N] = x [M, K] · weightᵀ + bias, weight [N, K]; sums in f32, one rounding. Rows lie
// `stride` elements apart.
struct Product {
  void* out;
  const void* x;
  const void* weight;
  const void* bias;  // [N], or null
  int64_t m, n, k;
  int64_t out_stride, x_stride, weight_stride;
  DType dtype;  // of all four
};

// Where the library is looked for besides the system's paths; before its first use.
void set_cublas_path(const std::string& path);

// Why there is no cuBLASLt, empty where there is.
std::string why_no_cublas();

// Lets products go to kernels of this backend alone; for tests.
void use_cublas(bool is_used);

// Queues the product on the stream; false where there is no cuBLASLt, or it has no way for it.
bool cublas_product(Context& context, const Product& product);

}  // namespace pyvt::cuda
