// The runtime on the CPU; see runtime.h. One lock around everything: one core runs all streams.
#include "cuda/emu/runtime.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

using Work = std::function<void()>;

struct EmuGraph {
  std::vector<Work> work;
};

struct EmuStream {
  std::deque<Work> waiting;
  std::unique_ptr<EmuGraph> captured;  // what is being captured, null where nothing is
};

struct EmuEvent {
  EmuStream* stream = nullptr;  // where it was recorded last
  std::shared_ptr<bool> is_done = std::make_shared<bool>(true);
};

namespace {

constexpr int kPoison = 0xff;
constexpr size_t kAlignment = 256;
constexpr size_t kDefaultLimit = size_t{4} << 30;

struct Runtime {
  std::recursive_mutex mutex;
  std::unordered_map<void*, size_t> sizes;
  std::unordered_set<EmuStream*> streams;
  size_t used = 0, limit = kDefaultLimit;
  std::string failure;
  cudaError_t status = cudaSuccess;

  Runtime() {
    const char* text = std::getenv("PYVT_EMU_MEMORY_MIB");
    if (text != nullptr) limit = static_cast<size_t>(std::strtoull(text, nullptr, 10)) << 20;
  }
};

Runtime& runtime() {
  static Runtime one;
  return one;
}

using Lock = std::lock_guard<std::recursive_mutex>;

// Runs what a stream has to do, no more of it once `is_done`. A failure leaves the rest out, as on
// a device.
cudaError_t drain(EmuStream* stream, const bool& is_done = false) {
  Runtime& r = runtime();
  while (!stream->waiting.empty() && !is_done) {
    const Work work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    try {
      work();
    } catch (const std::exception& error) {
      r.failure = error.what();
      r.status = cudaErrorLaunchFailure;
      stream->waiting.clear();
    }
  }
  const cudaError_t status = r.status;
  r.status = cudaSuccess;  // unlike on a device the process may go on
  return status;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "not permitted while the stream is captured";
    case cudaErrorLaunchFailure:
      return runtime().failure.c_str();
    default:
      return "invalid argument";
  }
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaMalloc(void** data, size_t size) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const size_t padded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (r.used + padded > r.limit) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, padded);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, kPoison, padded);
  r.used += padded;
  r.sizes[*data] = padded;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  const auto known = r.sizes.find(data);
  if (known == r.sizes.end()) return data == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  // As on a device: what is queued may use the memory.
  cudaError_t status = cudaSuccess;
  for (EmuStream* stream : r.streams) {
    if (drain(stream) != cudaSuccess) status = cudaErrorLaunchFailure;
  }
  r.used -= known->second;
  r.sizes.erase(known);
  std::free(data);
  return status;
}

cudaError_t cudaMallocHost(void** data, size_t size) {
  *data = std::malloc(size);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, kPoison, size);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  *free = r.limit > r.used ? r.limit - r.used : 0;
  *total = r.limit;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  pyvt::emu::enqueue(stream, [to, from, size] {
    if (size > 0) std::memmove(to, from, size);
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t stream) {
  pyvt::emu::enqueue(stream, [data, value, size] {
    if (size > 0) std::memset(data, value, size);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(runtime().mutex);
  *stream = new EmuStream;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  const cudaError_t status = drain(stream);
  runtime().streams.erase(stream);
  delete stream;
  return status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  if (stream->captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  return drain(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  EmuStream* other = event->stream;
  const std::shared_ptr<bool> is_done = event->is_done;
  pyvt::emu::enqueue(stream, [other, is_done] {
    if (!*is_done && drain(other) != cudaSuccess) throw pyvt::emu::Error(runtime().failure);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmuEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  event->is_done = std::make_shared<bool>(false);
  pyvt::emu::enqueue(stream, [is_done = event->is_done] { *is_done = true; });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  const std::shared_ptr<bool> is_done = event->is_done;
  return *is_done ? cudaSuccess : drain(event->stream, *is_done);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(runtime().mutex);
  return *event->is_done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(runtime().mutex);
  if (stream->captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->captured = std::make_unique<EmuGraph>();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(runtime().mutex);
  if (stream->captured == nullptr) return cudaErrorInvalidValue;
  *graph = stream->captured.release();
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, size_t* count) {
  *count = graph->work.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, uint64_t) {
  *exec = new EmuGraph{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  pyvt::emu::enqueue(stream, [work = exec->work] {
    for (const Work& each : work) each();
  });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

namespace pyvt::emu {

void enqueue(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(runtime().mutex);
  if (stream->captured != nullptr) {
    stream->captured->work.push_back(std::move(work));
  } else {
    stream->waiting.push_back(std::move(work));
  }
}

std::string last_failure() {
  const Lock lock(runtime().mutex);
  return runtime().failure;
}

void set_memory_limit(size_t bytes) {
  const Lock lock(runtime().mutex);
  runtime().limit = bytes;
}

}  // namespace pyvt::emu
