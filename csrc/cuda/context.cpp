// Device, stream, memory; see context.h.
#include "cuda/context.h"

#include <algorithm>
#include <cstring>

namespace pyvt::cuda {
namespace {

constexpr size_t kSmallest = 512;
// Sizes have eight steps from one power of two to the next, so little is lost and much is shared.
constexpr size_t kSteps = 8;
// Weights and KV are large and stay: what rounding adds to them is lost.
constexpr size_t kLargestStep = size_t{2} << 20;
// A buffer may be so many times as large as what was asked for.
constexpr size_t kMostSpare = 2;
constexpr size_t kAlignment = 16;  // of the pieces of a download
// Pinned memory of one copy to the device, and the most that is kept after a copy from there.
constexpr size_t kStagingBytes = size_t{8} << 20;
constexpr double kMiB = 1024.0 * 1024.0;

size_t rounded(size_t size) {
  size_t power = kSmallest;
  while (power < size) power *= 2;
  const size_t step = power / 2 / kSteps < kLargestStep ? power / 2 / kSteps : kLargestStep;
  return step < kSmallest ? power : (size + step - 1) / step * step;
}

}  // namespace

Pool::~Pool() {
  is_kept_ = false;
  trim();
}

std::shared_ptr<Buffer> Pool::take(size_t size) {
  size_t full = rounded(size);
  void* data = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A step of other sizes takes what a larger one left, so that few steps ask the device.
    const auto found = free_.lower_bound(full);
    if (found != free_.end() && found->first <= kMostSpare * full) {
      full = found->first;
      data = found->second;
      free_.erase(found);
    }
  }
  if (data == nullptr) {
    cudaError_t status = cudaMalloc(&data, full);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      trim();
      context_.trim();
      status = cudaMalloc(&data, full);
    }
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      size_t free = 0, total = 0;
      (void)cudaMemGetInfo(&free, &total);
      std::ostringstream text;
      text.precision(1);
      text << std::fixed << "[cuda] memory: expected " << static_cast<double>(full) / kMiB
           << " MiB on " << context_.name() << ", got " << static_cast<double>(free) / kMiB
           << " MiB free of " << static_cast<double>(total) / kMiB
           << "; lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs";
      throw OutOfMemory(text.str());
    }
    check(status, "cudaMalloc");
    const std::lock_guard<std::mutex> lock(mutex_);
    num_bytes_ += full;
  }
#ifdef PYVT_CUDA_EMU
  // What was there before must not be read.
  check(cudaMemsetAsync(data, 0xff, full, context_.stream()), "poison");
#endif
  return std::make_shared<Buffer>(shared_from_this(), data, full);
}

void Pool::give_back(void* data, size_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.emplace(size, data);
}

void Pool::trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty() || is_kept_) return;
  // cudaFree waits for the device by itself; a stream that is captured cannot be waited for.
  if (!context_.is_capturing) (void)cudaStreamSynchronize(context_.stream());
  for (const auto& [size, data] : free_) {
    (void)cudaFree(data);
    num_bytes_ -= size;
  }
  free_.clear();
}

Context::Context(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
#ifdef PYVT_CUDA_EMU
  name_ = "emulator";
#else
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  name_ = properties.name;
  num_processors_ = properties.multiProcessorCount;
  arch_ = 10 * properties.major + properties.minor;
#endif
  base_pool_ = pool_ = std::make_shared<Pool>(*this);
}

Context::~Context() {
  pool_.reset();
  base_pool_.reset();
  for (const auto& each : staging_) {
    (void)cudaEventDestroy(each->done);
    (void)cudaFreeHost(each->data);
  }
  (void)cudaStreamDestroy(stream_);
}

Context::Staging& Context::staging(size_t size) {
  for (const auto& each : staging_) {
    if (each->is_held || each->size < size) continue;
    if (cudaEventQuery(each->done) == cudaSuccess) return *each;
  }
  auto made = std::make_unique<Staging>();
  made->size = rounded(size);
  check(cudaMallocHost(&made->data, made->size), "cudaMallocHost");
  check(cudaEventCreateWithFlags(&made->done, cudaEventDisableTiming), "cudaEventCreate");
  staging_.push_back(std::move(made));
  return *staging_.back();
}

void Context::release(Staging& staging) {
  staging.is_held = false;
  if (staging.size <= kStagingBytes) return;
  (void)cudaEventSynchronize(staging.done);
  (void)cudaEventDestroy(staging.done);
  (void)cudaFreeHost(staging.data);
  const auto is_it = [&](const auto& each) { return each.get() == &staging; };
  staging_.erase(std::find_if(staging_.begin(), staging_.end(), is_it));
}

void Context::upload(void* to, const void* from, size_t size) {
  PYVT_CHECK("cuda", !is_capturing, "copy to the device: not permitted inside of a capture");
  for (size_t start = 0; start < size; start += kStagingBytes) {
    const size_t part = size - start < kStagingBytes ? size - start : kStagingBytes;
    Staging& stage = staging(part);
    std::memcpy(stage.data, static_cast<const char*>(from) + start, part);
    check(cudaMemcpyAsync(static_cast<char*>(to) + start, stage.data, part, cudaMemcpyHostToDevice,
                          stream_),
          "copy to the device");
    check(cudaEventRecord(stage.done, stream_), "cudaEventRecord");
    ++num_uploads;
    if (size > kStagingBytes) check(cudaEventSynchronize(stage.done), "copy to the device");
  }
}

void Context::synchronize() {
  ++num_waits;
  check(cudaStreamSynchronize(stream_), "device");
}

std::shared_ptr<Pool> Context::use_pool(std::shared_ptr<Pool> pool) {
  pool_.swap(pool);
  return pool;
}

Download::~Download() {
  if (staging_ != nullptr) context_->release(*staging_);
}

void Download::start(const std::vector<std::pair<const void*, size_t>>& pieces) {
  PYVT_CHECK("cuda", !context_->is_capturing,
             "copy from the device: not permitted while the stream is captured");
  size_t total = 0;
  for (const auto& piece : pieces) {
    offsets_.push_back(total);
    total += (piece.second + kAlignment - 1) / kAlignment * kAlignment;
  }
  staging_ = &context_->staging(total);
  staging_->is_held = true;
#ifdef PYVT_CUDA_EMU
  // What lies here before the copies are done must not be read.
  std::memset(staging_->data, 0xff, total);
#endif
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].second == 0) continue;
    check(cudaMemcpyAsync(static_cast<char*>(staging_->data) + offsets_[i], pieces[i].first,
                          pieces[i].second, cudaMemcpyDeviceToHost, context_->stream()),
          "copy from the device");
  }
  check(cudaEventRecord(staging_->done, context_->stream()), "cudaEventRecord");
}

void Download::wait() {
  if (is_here_) return;
  ++context_->num_waits;
  check(cudaEventSynchronize(staging_->done), "device");
  is_here_ = true;
}

int num_devices() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "no device can be used");
  if (count == 0) detail::fail("cuda", "no device can be used: the driver knows none");
  return count;
}

}  // namespace pyvt::cuda
