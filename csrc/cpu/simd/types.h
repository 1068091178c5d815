// Storage types of half precision, apart from integers so that load and store choose by type.
// Included inside the anonymous namespace of an ISA file.
#pragma once

#include <cstdint>

#include "pyvt/half.h"

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

// Of KV caches; loads alone.
struct E4m3 {
  uint8_t bits;
};

// A float type with its place in a row of the kernel table.
template <typename T, int kIndex>
struct FloatAt {
  using type = T;
  static constexpr int index = kIndex;
};

// Calls f with each float type, in the order of pyvt::cpu::float_index.
template <typename F>
inline void for_floats(F&& f) {
  f(FloatAt<float, 0>{});
  f(FloatAt<Bf16, 1>{});
  f(FloatAt<F16, 2>{});
}
