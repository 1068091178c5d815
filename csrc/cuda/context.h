// Device, stream, memory. All work of this backend goes to one stream, so memory that an op has
// let go of may be given to the next one at once: order on the stream keeps them apart.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/runtime.h"

namespace pyvt::cuda {

class Context;

// Device memory by size, used again once nothing refers to it.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  explicit Pool(Context& context) : context_(context) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  class Buffer {
   public:
    Buffer(std::shared_ptr<Pool> pool, void* data, size_t size)
        : pool_(std::move(pool)), data_(data), size_(size) {}
    ~Buffer() { pool_->give_back(data_, size_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void* data() const { return data_; }
    size_t size() const { return size_; }

   private:
    std::shared_ptr<Pool> pool_;
    void* data_;
    size_t size_;
  };

  // Undefined content, 256-byte aligned. Throws OutOfMemory with the size asked for.
  std::shared_ptr<Buffer> take(size_t size);

  // Gives memory that nothing refers to back to the device, unless graphs use it.
  void trim();
  // A graph uses memory of this pool from now on: none of it goes back before the pool ends.
  void keep() { is_kept_ = true; }

  size_t num_bytes() const { return num_bytes_; }

 private:
  void give_back(void* data, size_t size);

  Context& context_;
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  size_t num_bytes_ = 0;  // of all buffers, given out or free
  bool is_kept_ = false;
};

using Buffer = Pool::Buffer;

// One device with its stream.
class Context {
 public:
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream() const { return stream_; }
  int num_processors() const { return num_processors_; }
  // 10 · major + minor; 0 for the emulator.
  int arch() const { return arch_; }
  const std::string& name() const { return name_; }

  // Memory for an op, from the pool that is in use. It may be dropped once the op is launched.
  std::shared_ptr<Buffer> take(size_t size) { return pool_->take(size); }

  // Kernels that ops have launched; a graph that is replayed counts as one.
  int64_t num_launches = 0;
  // Copies to the device, and how often the host waited for it.
  int64_t num_uploads = 0, num_waits = 0;
  bool is_capturing = false;

  template <typename... Params, typename... Args>
  void launch(const char* op, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
              Args&&... args) {
    ++num_launches;
    cuda::launch(op, kernel, grid, block, shared, stream_, std::forward<Args>(args)...);
  }

  // Throws inside of a capture: a graph would read the host's memory again when it runs.
  void upload(void* to, const void* from, size_t size);  // `from` may be changed at once
  void synchronize();

  // Gives back what no tensor and no graph uses.
  void trim() { base_pool_->trim(); }

  // The pool that ops and tensors take from; the old one is returned.
  std::shared_ptr<Pool> use_pool(std::shared_ptr<Pool> pool);
  const std::shared_ptr<Pool>& pool() const { return pool_; }

  // Pinned memory of the host, and what marks the last copy with it.
  struct Staging {
    void* data;
    size_t size;
    cudaEvent_t done;
    bool is_held = false;
  };

  // Staging that no copy uses any more and nobody holds.
  Staging& staging(size_t size);
  // Nobody holds it any more; what is large is given back.
  void release(Staging& staging);

 private:
  cudaStream_t stream_ = nullptr;
  int num_processors_ = 1, arch_ = 0;
  std::string name_;
  std::shared_ptr<Pool> base_pool_, pool_;
  std::vector<std::unique_ptr<Staging>> staging_;
};

// Pieces of device memory on their way to the host; the device goes on meanwhile.
class Download {
 public:
  explicit Download(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~Download();
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  // Starts the copy of `size` bytes from each place, to be called once.
  void start(const std::vector<std::pair<const void*, size_t>>& pieces);
  // Waits for the copies alone, not for work that was queued behind them.
  void wait();
  // Where piece `i` lies once it is here.
  const void* piece(size_t i) const { return static_cast<char*>(staging_->data) + offsets_[i]; }

 private:
  std::shared_ptr<Context> context_;
  Context::Staging* staging_ = nullptr;
  std::vector<size_t> offsets_;
  bool is_here_ = false;
};

// Throws Error with the reason where no device can be used.
int num_devices();

}  // namespace pyvt::cuda
