// Products by cuBLASLt; see cublas_lt.h.
//
// tried  cublasGemmEx: no bias, so one more launch that reads and rounds the product again, and a
//        stream and a workspace to be set before each call
#include "cuda/cublas_lt.h"

#include "cuda/cublas_lt_api.h"

#ifdef PYVT_CUDA_EMU
#include "cuda/emu/cublas_lt.h"
#else
#include <dlfcn.h>
#endif

namespace pyvt::cuda {
namespace {

// What cuBLAS advises for sm_90.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kMaxAlignment = 256;

bool is_switched_off = false;

std::string& path() {
  static std::string text;
  return text;
}

struct Library {
  lt::Api api{};
  lt::Handle handle = nullptr;
  std::string reason = load();

  Library() {
    if (!reason.empty()) return;
    if (const lt::Status status = api.Create(&handle); status != lt::kSuccess) {
      reason = std::string("cublasLtCreate: ") + api.GetStatusString(status);
    }
  }

  // Fills the table; returns why it cannot, or nothing.
  std::string load();
};

#ifdef PYVT_CUDA_EMU

std::string Library::load() {
  api = emu::cublas_lt();
  return "";
}

#else

std::string Library::load() {
  constexpr const char* kLibrary = "libcublasLt.so.13";
  void* library = path().empty() ? nullptr : dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  std::string missing;
  lt::each_function(api, [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)> >(dlsym(library, name));
    if (function == nullptr) missing = std::string(kLibrary) + " lacks " + name;
  });
  return missing;
}

#endif

Library& library() {
  static Library one;
  return one;
}

void expect(lt::Status status, const char* what) {
  PYVT_CHECK("linear", status == lt::kSuccess, what, ": ", library().api.GetStatusString(status));
}

int type_of(DType dtype) {
  return dtype == DType::kBF16 ? lt::kBF16 : dtype == DType::kF16 ? lt::kF16 : lt::kF32;
}

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | kMaxAlignment;
  return static_cast<uint32_t>(address & (~address + 1));
}

// Column by column it is outᵀ [N, M] = weight [N, K] · xᵀ: A is the weight, B is x, C and D are
// out.
struct Call {
  lt::Layout weight, x, out;
  lt::Operation operation;
  lt::Preference preference;

  explicit Call(const Product& p) {
    layout(&weight, p, p.k, p.n, p.weight_stride);
    layout(&x, p, p.k, p.m, p.x_stride);
    layout(&out, p, p.n, p.m, p.out_stride);
    expect(api.MatmulDescInit_internal(&operation, sizeof(operation), lt::kComputeF32, lt::kF32),
           "cublasLtMatmulDescInit");
    set(lt::kTransA, lt::kTransposed);
    if (p.bias != nullptr) {
      set(lt::kEpilogue, lt::kEpilogueBias);
      set(lt::kBiasPointer, p.bias);
    }
    expect(api.MatmulPreferenceInit_internal(&preference, sizeof(preference)),
           "cublasLtMatmulPreferenceInit");
    prefer(lt::kMaxWorkspaceBytes, kWorkspaceBytes);
    prefer(lt::kReductionSchemes, lt::kReductionInF32);
    const void* operands[] = {p.weight, p.x, p.out, p.out};
    for (int i = 0; i < 4; ++i) prefer(lt::kMinAlignmentA + i, alignment_of(operands[i]));
  }

  // The way that the library's heuristic gives; false where it has none.
  bool find(lt::Heuristic* found) {
    int num_found = 0;
    const lt::Status status = api.MatmulAlgoGetHeuristic(
        library().handle, &operation, &weight, &x, &out, &out, &preference, 1, found, &num_found);
    if (status == lt::kNotSupported) return false;
    expect(status, "cublasLtMatmulAlgoGetHeuristic");
    return num_found > 0 && found->state == lt::kSuccess;
  }

  void queue(Context& context, const Product& p, const lt::Heuristic& found) {
    // One size for all products: the pool gives the same memory again.
    const auto workspace = found.workspace_bytes > 0 ? context.take(kWorkspaceBytes) : nullptr;
    const float one = 1.0f, zero = 0.0f;
    expect(api.Matmul(library().handle, &operation, &one, p.weight, &weight, p.x, &x, &zero, p.out,
                      &out, p.out, &out, &found.algorithm,
                      workspace == nullptr ? nullptr : workspace->data(),
                      workspace == nullptr ? 0 : kWorkspaceBytes, context.stream()),
           "cublasLtMatmul");
    ++context.num_launches;
  }

 private:
  const lt::Api& api = library().api;

  void layout(lt::Layout* to, const Product& p, int64_t rows, int64_t columns, int64_t stride) {
    expect(api.MatrixLayoutInit_internal(to, sizeof(*to), type_of(p.dtype),
                                         static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(columns), stride),
           "cublasLtMatrixLayoutInit");
  }
  template <typename T>
  void set(int attribute, const T& value) {
    expect(api.MatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)),
           "cublasLtMatmulDescSetAttribute");
  }
  template <typename T>
  void prefer(int attribute, const T& value) {
    expect(api.MatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
           "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace

void set_cublas_path(const std::string& text) { path() = text; }

std::string why_no_cublas() { return is_switched_off ? "switched off" : library().reason; }

void use_cublas(bool is_used) { is_switched_off = !is_used; }

bool cublas_product(Context& context, const Product& product) {
  if (is_switched_off || !library().reason.empty()) return false;
  Call call(product);
  lt::Heuristic found{};
  if (!call.find(&found)) return false;
  call.queue(context, product, found);
  return true;
}

}  // namespace pyvt::cuda
