// KernelTable: one function pointer per kernel and dtype combination, filled once per ISA.
//
// A kernel is a template in kernels/<family>-inl.h over its element types. The table holds it for
// the three float dtypes f32, bf16, f16 as an array indexed by `float_index`.
#pragma once

#include <cstdint>
#include <string>

#include "cpu/packed_format.h"
#include "pyvt/check.h"
#include "pyvt/dtype.h"

namespace pyvt::cpu {

constexpr int kNumFloats = 3;

// Index of a float dtype in a table row: f32 0, bf16 1, f16 2.
inline int float_index(const char* op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kBF16:
      return 1;
    case DType::kF16:
      return 2;
    default:
      detail::fail(op, "dtype: expected f32|bf16|f16, got ", dtype_name(dtype));
  }
}

struct KernelTable {
  const char* isa;

  // norm-inl.h: [x][weight][out]
  void (*rms_norm[kNumFloats][kNumFloats][kNumFloats])(void* out, const void* x, const void* weight,
                                                       float eps, int64_t n);
  // norm-inl.h: [x][residual]
  void (*add_rows[kNumFloats][kNumFloats])(void* residual, const void* x, int64_t n);

  // quant-inl.h: [x]
  void (*quantize_row[kNumFloats])(const void* x, int8_t* codes, float* scales, float* sums,
                                   int64_t n);
  // int8_linear-inl.h: by int8_index
  Int8Format int8[kNumInt8Formats];
};

// The table of the ISA that this process runs on; chosen at first use, PYVT_CPU_ISA forces it.
const KernelTable& kernels();

// The levels that this CPU has and this build holds, best first, separated by spaces.
std::string isa_names();

// Switches the table, for tests that compare levels. Throws for a level that is not there.
void use_isa(const char* name);

}  // namespace pyvt::cpu
