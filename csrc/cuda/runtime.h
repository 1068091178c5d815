// The CUDA runtime, or the emulator's in its place; and the one way to launch a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#ifdef PYVT_CUDA_EMU
#include "cuda/emu/runtime.h"
#else
#include <cuda_runtime.h>
#endif

#include "pyvt/check.h"

namespace pyvt::cuda {

// A device has no more memory; apart from Error, so that a caller may free some and go on.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// Throws where a call of the runtime failed. What a kernel did wrong shows in a later call.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) detail::fail("cuda", what, ": ", cudaGetErrorString(status));
}

// Launches `kernel` with `args`; `name` is the op's, for errors.
template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
            cudaStream_t stream, Args&&... args) {
  if (static_cast<uint64_t>(grid.x) * grid.y * grid.z == 0) return;
#ifdef PYVT_CUDA_EMU
  emu::launch(name, kernel, grid, block, shared, stream, std::forward<Args>(args)...);
#else
  constexpr size_t kDefaultShared = 48 * 1024;
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (shared > kDefaultShared) {
    check(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          name);
  }
  std::tuple<Params...> values(std::forward<Args>(args)...);
  const cudaError_t status = std::apply(
      [&](auto&... each) {
        void* pointers[] = {static_cast<void*>(&each)...};
        return cudaLaunchKernel(entry, grid, block, pointers, shared, stream);
      },
      values);
  check(status, name);
#endif
}

}  // namespace pyvt::cuda
