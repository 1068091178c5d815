// The packed formats that the CPU backend decodes, and their places in a row of the kernel table.
#pragma once

#include "pyvt/check.h"
#include "pyvt/dtype.h"

namespace pyvt::cpu {

// X(place, name: DType::k<name> and the struct that decodes it)
#define PYVT_DECODED_FORMATS(X) \
  X(0, Q4_0)                    \
  X(1, Q4_1)                    \
  X(2, Q5_0)                    \
  X(3, Q5_1)                    \
  X(4, Q8_0)                    \
  X(5, Q4_K)                    \
  X(6, Q5_K)                    \
  X(7, Q6_K)

constexpr int kNumDecodedFormats = 8;

struct BlockSize {
  int64_t elements;
  int64_t bytes;
};

inline BlockSize block_size(DType dtype) {
  switch (dtype) {
#define PYVT_BLOCK_SIZE(name, text, number, block, bytes) \
  case DType::name:                                       \
    return {block, bytes};
    PYVT_DTYPES(PYVT_BLOCK_SIZE)
#undef PYVT_BLOCK_SIZE
  }
  return {1, 0};
}

inline int format_index(const char* op, DType dtype) {
  switch (dtype) {
#define PYVT_PLACE(place, name) \
  case DType::k##name:          \
    return place;
    PYVT_DECODED_FORMATS(PYVT_PLACE)
#undef PYVT_PLACE
    default:
      detail::fail(op, "weight: expected a packed format that the CPU backend decodes, got number ",
                   static_cast<int>(dtype));
  }
}

}  // namespace pyvt::cpu
