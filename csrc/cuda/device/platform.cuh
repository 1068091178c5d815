// What makes one source compile for a device and for the emulator.
//
// PYVT_SHARED(name, type) stands for `__shared__ type name`: the emulator gives the threads of a
// block one place for it. PYVT_DYNAMIC_SHARED(type, name) is the memory that the launch asks for.
#pragma once

#include <cstdint>

#ifdef PYVT_CUDA_EMU

#include "cuda/emu/device.h"

#define PYVT_DEVICE inline
#define PYVT_SHARED(name, ...)                                   \
  static const char name##_key = 0;                              \
  auto& name = *static_cast<::pyvt::cuda::TypeOf<__VA_ARGS__>*>( \
      ::pyvt::emu::static_shared(&name##_key, sizeof(::pyvt::cuda::TypeOf<__VA_ARGS__>)))
#define PYVT_DYNAMIC_SHARED(type, name) \
  auto* name = static_cast<type*>(::pyvt::emu::dynamic_shared())

#else

#include <cuda_runtime.h>

#define PYVT_DEVICE __device__ __forceinline__
#define PYVT_SHARED(name, ...) __shared__ __align__(16)::pyvt::cuda::TypeOf<__VA_ARGS__> name
#define PYVT_DYNAMIC_SHARED(type, name)                         \
  extern __shared__ __align__(16) unsigned char pyvt_dynamic[]; \
  auto* name = reinterpret_cast<type*>(pyvt_dynamic)

#endif

namespace pyvt::cuda {

template <typename T>
using TypeOf = T;

// 1 / x to two units in the last place and without a call, which costs spills; 0 from 2^126 on.
#ifdef PYVT_CUDA_EMU
inline float inverse(float x) { return 1.0f / x; }
#else
PYVT_DEVICE float inverse(float x) { return __fdividef(1.0f, x); }
#endif

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

}  // namespace pyvt::cuda
