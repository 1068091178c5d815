// The emulator's runtime: the calls of the CUDA runtime that this backend makes, on the CPU.
//
//  1. Work of a stream waits until somebody synchronises, so a missing synchronisation shows.
//  2. Memory from cudaMalloc and cudaMallocHost holds 0xff bytes; the first is bounded by
//     PYVT_EMU_MEMORY_MIB.
//  3. While a stream is captured its work is kept as closures, which a launched graph runs.
//  4. A kernel that fails fails the synchronisation behind it; `last_failure` says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/emu/block.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDefault = 4
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };

using cudaStream_t = struct EmuStream*;
using cudaEvent_t = struct EmuEvent*;
using cudaGraph_t = struct EmuGraph*;
using cudaGraphExec_t = struct EmuGraph*;

constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** data, size_t size);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t size);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes, size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, uint64_t flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

namespace pyvt::emu {

// Puts work behind what the stream has to do, or into the graph that it is captured in.
void enqueue(cudaStream_t stream, std::function<void()> work);

// What the last failed kernel said.
std::string last_failure();

// Bytes that cudaMalloc gives in all.
void set_memory_limit(size_t bytes);

template <typename... Params>
struct Call {
  void (*kernel)(Params...);
  std::tuple<Params...> arguments;

  static void run(const void* self) {
    const auto* call = static_cast<const Call*>(self);
    std::apply(call->kernel, call->arguments);
  }
};

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
            cudaStream_t stream, Args&&... args) {
  Call<Params...> call{kernel, std::tuple<Params...>(std::forward<Args>(args)...)};
  enqueue(stream, [name, call, grid, block, shared] {
    run_grid(Body{name, &Call<Params...>::run, &call}, grid, block, shared);
  });
}

}  // namespace pyvt::emu
