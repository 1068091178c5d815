// Scratch memory of a thread: buffers aligned to 64 bytes that only grow, one for each slot.
//
// A buffer keeps its bytes until the thread asks for the same slot again. A launcher and the bodies
// that it runs in parallel may share a thread, so they take different slots.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace pyvt::cpu {

constexpr int kNumScratchSlots = 8;
constexpr size_t kScratchAlignment = 64;

namespace detail {

struct ScratchBuffers {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
  };
  Buffer buffers[kNumScratchSlots];

  ~ScratchBuffers() {
    for (Buffer& buffer : buffers) std::free(buffer.data);
  }
};

inline ScratchBuffers& scratch_buffers() {
  static thread_local ScratchBuffers buffers;
  return buffers;
}

}  // namespace detail

// At least `bytes` bytes of this thread's slot. Throws std::bad_alloc.
inline float* scratch(size_t bytes, int slot) {
  detail::ScratchBuffers::Buffer& buffer = detail::scratch_buffers().buffers[slot];
  if (buffer.size < bytes || buffer.data == nullptr) {
    std::free(buffer.data);
    buffer.size = (bytes + bytes / 4) / kScratchAlignment * kScratchAlignment + kScratchAlignment;
    buffer.data = std::aligned_alloc(kScratchAlignment, buffer.size);
    if (buffer.data == nullptr) {
      buffer.size = 0;
      throw std::bad_alloc();
    }
  }
  return static_cast<float*>(buffer.data);
}

}  // namespace pyvt::cpu
