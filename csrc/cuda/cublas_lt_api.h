// The part of cuBLASLt 13's interface that products use. Declared here, so that building needs no
// package of several hundred MB; csrc/tests/cublas_header.cpp holds it to the library's own header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime.h"

namespace pyvt::cuda::lt {

using Handle = void*;
using Status = int;

constexpr Status kSuccess = 0, kInvalidValue = 7, kNotSupported = 15;
constexpr int kF32 = 0, kF16 = 2, kBF16 = 14;  // cudaDataType
constexpr int kComputeF32 = 68;                // cublasComputeType_t
constexpr int32_t kTransposed = 1;             // cublasOperation_t
// cublasLtMatmulDescAttributes_t
constexpr int kTransA = 3, kEpilogue = 7, kBiasPointer = 8;
constexpr uint32_t kEpilogueBias = 4;  // cublasLtEpilogue_t
// cublasLtMatmulPreferenceAttributes_t; the alignments of B, C and D follow that of A.
constexpr int kMaxWorkspaceBytes = 1, kReductionSchemes = 3, kMinAlignmentA = 5;
// cublasLtReductionScheme_t: parts of a sum are added in f32. The others round them to D's type.
constexpr uint32_t kReductionInF32 = 2, kAllReductions = 7;

struct Layout {
  uint64_t data[14];
};
struct Operation {
  uint64_t data[32];
};
struct Preference {
  uint64_t data[12];
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// The functions, under their names without the prefix cublasLt. Matrices lie column by column.
struct Api {
  Status (*Create)(Handle* handle);
  const char* (*GetStatusString)(Status status);
  Status (*MatrixLayoutInit_internal)(Layout* layout, size_t size, int type, uint64_t rows,
                                      uint64_t columns, int64_t stride);
  Status (*MatmulDescInit_internal)(Operation* operation, size_t size, int compute, int scale);
  Status (*MatmulDescSetAttribute)(Operation* operation, int attribute, const void* value,
                                   size_t size);
  Status (*MatmulPreferenceInit_internal)(Preference* preference, size_t size);
  Status (*MatmulPreferenceSetAttribute)(Preference* preference, int attribute, const void* value,
                                         size_t size);
  Status (*MatmulAlgoGetHeuristic)(Handle handle, Operation* operation, Layout* a, Layout* b,
                                   Layout* c, Layout* d, Preference* preference, int num_asked,
                                   Heuristic* found, int* num_found);
  Status (*Matmul)(Handle handle, Operation* operation, const void* alpha, const void* a,
                   Layout* a_layout, const void* b, Layout* b_layout, const void* beta,
                   const void* c, Layout* c_layout, void* d, Layout* d_layout,
                   const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                   cudaStream_t stream);
};

// Calls `f(name, pointer)` for each function.
template <typename F>
void each_function(Api& api, F&& f) {
  f("cublasLtCreate", api.Create);
  f("cublasLtGetStatusString", api.GetStatusString);
  f("cublasLtMatrixLayoutInit_internal", api.MatrixLayoutInit_internal);
  f("cublasLtMatmulDescInit_internal", api.MatmulDescInit_internal);
  f("cublasLtMatmulDescSetAttribute", api.MatmulDescSetAttribute);
  f("cublasLtMatmulPreferenceInit_internal", api.MatmulPreferenceInit_internal);
  f("cublasLtMatmulPreferenceSetAttribute", api.MatmulPreferenceSetAttribute);
  f("cublasLtMatmulAlgoGetHeuristic", api.MatmulAlgoGetHeuristic);
  f("cublasLtMatmul", api.Matmul);
}

}  // namespace pyvt::cuda::lt
