// Scratch memory of a thread, kept between calls: it grows, and is freed when the thread ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace pyvt::cpu {

constexpr int kNumScratchSlots = 8;
constexpr int64_t kScratchAlignment = 64;
constexpr int64_t kMaxScratchBytes = int64_t{1} << 46;

namespace detail {

struct FreeScratch {
  void operator()(unsigned char* p) const {
    ::operator delete[](p, std::align_val_t{kScratchAlignment});
  }
};

inline void* scratch_bytes(int slot, size_t num_bytes) {
  struct Buffer {
    std::unique_ptr<unsigned char[], FreeScratch> data;
    size_t size = 0;
  };
  static thread_local Buffer buffers[kNumScratchSlots];
  Buffer& buffer = buffers[slot];
  if (buffer.size < num_bytes) {
    buffer.data.reset();
    buffer.size = 0;
    auto* made = static_cast<unsigned char*>(
        ::operator new[](num_bytes, std::align_val_t{kScratchAlignment}));
    buffer.data.reset(made);
    buffer.size = num_bytes;
  }
  return buffer.data.get();
}

}  // namespace detail

// `count` items, 64-byte aligned, content undefined, valid until this thread asks for the slot
// again. A buffer that a launcher shares with its region and those of the region's threads need
// slots of their own, since the caller is one of these threads.
template <typename T>
T* scratch(int slot, int64_t count) {
  if (count < 0 || count > kMaxScratchBytes / static_cast<int64_t>(sizeof(T))) {
    throw std::bad_alloc();
  }
  return static_cast<T*>(detail::scratch_bytes(slot, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace pyvt::cpu
