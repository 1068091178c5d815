// cuBLAS by dlopen; see cublas_dl.h. The few declarations are those of cuBLAS 13's interface.
#include "cuda/cublas_dl.h"

#ifdef PYVT_CUDA_EMU
#include "pyvt/half.h"
#else
#include <dlfcn.h>
#endif

namespace pyvt::cuda {
namespace {

bool is_switched_off = false;

#ifndef PYVT_CUDA_EMU

constexpr int kTransposed = 1, kAsItIs = 0;         // cublasOperation_t
constexpr int kComputeF32 = 68, kDefaultAlgo = -1;  // cublasComputeType_t, cublasGemmAlgo_t
// What cuBLAS advises for sm_90.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr const char* kLibrary = "libcublas.so.13";

using Handle = void*;
using Create = int (*)(Handle*);
using SetStream = int (*)(Handle, cudaStream_t);
using SetWorkspace = int (*)(Handle, void*, size_t);
using Gemm = int (*)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType, int,
                     const void*, cudaDataType, int, const void*, void*, cudaDataType, int, int,
                     int);

std::string& path() {
  static std::string text;
  return text;
}

struct Library {
  Handle handle = nullptr;
  Gemm gemm = nullptr;
  SetStream set_stream = nullptr;
  SetWorkspace set_workspace = nullptr;
  std::string reason;

  Library() {
    void* library = path().empty() ? nullptr : dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason = dlerror();
      return;
    }
    const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
    set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
    set_workspace = reinterpret_cast<SetWorkspace>(dlsym(library, "cublasSetWorkspace_v2"));
    gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || set_stream == nullptr || set_workspace == nullptr || gemm == nullptr) {
      reason = std::string(kLibrary) + " lacks a symbol";
    } else if (create(&handle) != 0) {
      reason = "cublasCreate failed";
    }
  }
};

Library& library() {
  static Library one;
  return one;
}

cudaDataType type_of(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

#else

float get(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::kBF16) return bf16_to_f32(static_cast<const uint16_t*>(data)[at]);
  if (dtype == DType::kF16) return f16_to_f32(static_cast<const uint16_t*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

void set(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::kBF16) {
    static_cast<uint16_t*>(data)[at] = f32_to_bf16(value);
  } else if (dtype == DType::kF16) {
    static_cast<uint16_t*>(data)[at] = f32_to_f16(value);
  } else {
    static_cast<float*>(data)[at] = value;
  }
}

void plain_product(const Product& p) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < p.k; ++k) {
        sum +=
            get(p.x, p.dtype, i * p.x_stride + k) * get(p.weight, p.dtype, j * p.weight_stride + k);
      }
      set(p.out, p.dtype, i * p.out_stride + j, sum);
    }
  }
}

#endif

}  // namespace

void use_cublas(bool is_used) { is_switched_off = !is_used; }

#ifdef PYVT_CUDA_EMU

void set_cublas_path(const std::string&) {}

std::string why_no_cublas() { return is_switched_off ? "switched off" : ""; }

bool cublas_product(Context& context, const Product& product) {
  if (is_switched_off) return false;
  ++context.num_launches;
  emu::enqueue(context.stream(), [product] { plain_product(product); });
  return true;
}

#else

void set_cublas_path(const std::string& text) { path() = text; }

std::string why_no_cublas() { return is_switched_off ? "switched off" : library().reason; }

bool cublas_product(Context& context, const Product& p) {
  if (is_switched_off || !library().reason.empty()) return false;
  // Set anew each time: it also resets the workspace, which graphs share with their pool.
  const int is_set = library().set_stream(library().handle, context.stream());
  const auto workspace = context.take(kWorkspaceBytes);
  const int is_given =
      library().set_workspace(library().handle, workspace->data(), kWorkspaceBytes);
  PYVT_CHECK("linear", is_set == 0 && is_given == 0, "cublasSetStream: status ", is_set);
  const float one = 1.0f, zero = 0.0f;
  const cudaDataType type = type_of(p.dtype);
  // Column by column of outᵀ [N, M] = weight [N, K] · xᵀ.
  const int status =
      library().gemm(library().handle, kTransposed, kAsItIs, static_cast<int>(p.n),
                     static_cast<int>(p.m), static_cast<int>(p.k), &one, p.weight, type,
                     static_cast<int>(p.weight_stride), p.x, type, static_cast<int>(p.x_stride),
                     &zero, p.out, type, static_cast<int>(p.out_stride), kComputeF32, kDefaultAlgo);
  PYVT_CHECK("linear", status == 0, "cublasGemmEx: status ", status);
  ++context.num_launches;
  return true;
}

#endif

}  // namespace pyvt::cuda
