// Sums and maxima over a warp and over a block, in a fixed order.
#pragma once

#include "cuda/device/platform.cuh"

namespace pyvt::cuda {

// The sum over the lanes of a warp, in every lane.
template <typename T>
PYVT_DEVICE T warp_sum(T value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

template <typename T>
PYVT_DEVICE T warp_max(T value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, bits);
    value = other > value ? other : value;
  }
  return value;
}

// The sum over a block of whole warps, in every thread; `parts` is shared, one for each warp.
// Ends with a barrier, so that `parts` may be used again.
template <typename T>
PYVT_DEVICE T block_sum(T value, T* parts) {
  const int warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) parts[warp] = value;
  __syncthreads();
  T total = parts[0];
  for (int i = 1; i < num_warps; ++i) total += parts[i];
  __syncthreads();
  return total;
}

template <typename T>
PYVT_DEVICE T block_max(T value, T* parts) {
  const int warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) parts[warp] = value;
  __syncthreads();
  T best = parts[0];
  for (int i = 1; i < num_warps; ++i) best = parts[i] > best ? parts[i] : best;
  __syncthreads();
  return best;
}

}  // namespace pyvt::cuda
