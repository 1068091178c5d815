// Compiles where cuda/cublas_lt_api.h says what the library's own header says. Run, it prints the
// names of the functions.
#include <cublasLt.h>

#include <cstdio>
#include <type_traits>

#include "cuda/cublas_lt_api.h"

namespace lt = pyvt::cuda::lt;

static_assert(lt::kSuccess == CUBLAS_STATUS_SUCCESS, "");
static_assert(lt::kInvalidValue == CUBLAS_STATUS_INVALID_VALUE, "");
static_assert(lt::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED, "");
static_assert(lt::kF32 == CUDA_R_32F && lt::kF16 == CUDA_R_16F && lt::kBF16 == CUDA_R_16BF, "");
static_assert(lt::kComputeF32 == CUBLAS_COMPUTE_32F, "");
static_assert(lt::kTransposed == CUBLAS_OP_T, "");
static_assert(lt::kTransA == CUBLASLT_MATMUL_DESC_TRANSA, "");
static_assert(lt::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE, "");
static_assert(lt::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER, "");
static_assert(lt::kEpilogueBias == CUBLASLT_EPILOGUE_BIAS, "");
static_assert(lt::kMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, "");
static_assert(lt::kReductionSchemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, "");
static_assert(lt::kReductionInF32 == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, "");
static_assert(lt::kAllReductions == CUBLASLT_REDUCTION_SCHEME_MASK, "");
static_assert(lt::kMinAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, "");
static_assert(lt::kMinAlignmentA + 1 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, "");
static_assert(lt::kMinAlignmentA + 2 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, "");
static_assert(lt::kMinAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, "");

static_assert(sizeof(lt::Layout) == sizeof(cublasLtMatrixLayoutOpaque_t), "");
static_assert(sizeof(lt::Operation) == sizeof(cublasLtMatmulDescOpaque_t), "");
static_assert(sizeof(lt::Preference) == sizeof(cublasLtMatmulPreferenceOpaque_t), "");
static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t), "");
using Theirs = cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(lt::Heuristic) == sizeof(Theirs), "");
static_assert(offsetof(lt::Heuristic, workspace_bytes) == offsetof(Theirs, workspaceSize), "");
static_assert(offsetof(lt::Heuristic, state) == offsetof(Theirs, state), "");
static_assert(offsetof(lt::Heuristic, waves) == offsetof(Theirs, wavesCount), "");

// Passed alike: both pointers, both floats, or both whole numbers of one size.
template <typename A, typename B>
constexpr bool is_alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                          std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <typename A, typename B>
struct Compared;
template <typename A, typename... As, typename B, typename... Bs>
struct Compared<A (*)(As...), B (*)(Bs...)> {
  static constexpr bool is_one = [] {
    if constexpr (sizeof...(As) == sizeof...(Bs)) {
      return is_alike<A, B> && (is_alike<As, Bs> && ...);
    }
    return false;
  }();
};

#define PYVT_SAME(name) \
  static_assert(Compared<decltype(lt::Api::name), decltype(&cublasLt##name)>::is_one, #name)
PYVT_SAME(Create);
PYVT_SAME(GetStatusString);
PYVT_SAME(MatrixLayoutInit_internal);
PYVT_SAME(MatmulDescInit_internal);
PYVT_SAME(MatmulDescSetAttribute);
PYVT_SAME(MatmulPreferenceInit_internal);
PYVT_SAME(MatmulPreferenceSetAttribute);
PYVT_SAME(MatmulAlgoGetHeuristic);
PYVT_SAME(Matmul);

int main() {
  lt::Api api{};
  lt::each_function(api, [](const char* name, auto&) { std::puts(name); });
}
