// cuBLAS, opened when a product first needs it; the emulator has a plain product in its place.
#pragma once

#include "cuda/context.h"
#include "pyvt/dtype.h"

namespace pyvt::cuda {

// out [M, N] = x [M, K] · weightᵀ, weight [N, K]; sums in f32. Rows lie `ld` elements apart.
struct Product {
  void* out;
  const void* x;
  const void* weight;
  int64_t m, n, k;
  int64_t out_stride, x_stride, weight_stride;
  DType dtype;  // of all three
};

// Where the library is looked for besides the system's paths; before its first use.
void set_cublas_path(const std::string& path);

// Why there is no cuBLAS, empty where there is.
std::string why_no_cublas();

// Lets products go to kernels of this backend alone; for tests.
void use_cublas(bool is_used);

// Queues the product on the stream; false where there is no cuBLAS.
bool cublas_product(Context& context, const Product& product);

}  // namespace pyvt::cuda
