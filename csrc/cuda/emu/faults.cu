// Kernels that are wrong on purpose; see faults.h. Each writes one number a thread.
#include "cuda/emu/faults.h"

#include "cuda/device/platform.cuh"

namespace pyvt::emu {
namespace {

constexpr int kThreads = 64;

// Right: every thread reads what its neighbour wrote before the barrier.
__global__ void neighbour(float* out) {
  PYVT_SHARED(values, float[kThreads]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
}

__global__ void missing_barrier(float* out) {
  PYVT_SHARED(values, float[kThreads]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
}

__global__ void missing_warp_barrier(float* out) {
  PYVT_SHARED(values, float[kThreads]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

__global__ void unwritten_shared(float* out) {
  PYVT_SHARED(values, float[kThreads]);
  if (threadIdx.x != 7) values[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

__global__ void divergent_barrier(float* out) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 0.0f;
}

__global__ void early_end(float* out) {
  out[threadIdx.x] = 0.0f;
  if (threadIdx.x == 3) return;
  __syncthreads();
}

__global__ void absent_lane(float* out) {
  out[threadIdx.x] = 0.0f;
  if (threadIdx.x % 2 == 0) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 2);
}

__global__ void lane_outside_mask(float* out) {
  out[threadIdx.x] = __shfl_sync(0x55555555u, 1.0f, 0);
}

__global__ void too_much_shared(float* out) {
  PYVT_SHARED(values, float[64 * 1024]);
  values[threadIdx.x] = 0.0f;
  out[threadIdx.x] = values[threadIdx.x];
}

struct Fault {
  const char* name;
  void (*kernel)(float*);
};

constexpr Fault kFaults[] = {
    {"neighbour", neighbour},
    {"missing_barrier", missing_barrier},
    {"missing_warp_barrier", missing_warp_barrier},
    {"unwritten_shared", unwritten_shared},
    {"divergent_barrier", divergent_barrier},
    {"early_end", early_end},
    {"absent_lane", absent_lane},
    {"lane_outside_mask", lane_outside_mask},
    {"too_much_shared", too_much_shared},
};

}  // namespace

std::vector<float> run_fault(const std::string& name) {
  for (const Fault& fault : kFaults) {
    if (name != fault.name) continue;
    std::vector<float> out(kThreads);
    const Call<float*> call{fault.kernel, {out.data()}};
    run_grid(Body{fault.name, &Call<float*>::run, &call}, dim3(1), dim3(kThreads), 0);
    return out;
  }
  throw Error("no fault is called " + name);
}

}  // namespace pyvt::emu
