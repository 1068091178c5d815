// Element types, the twin of pyvt/tensor/dtype.py; a test compares both through the bound table.
#pragma once

#include <cstdint>

namespace pyvt {

// X(name in C++, name in Python, number, elements of a block, bytes of a block).
// A number is that of the GGUF format where there is one.
#define PYVT_DTYPES(X)                       \
  X(kF64, "f64", 28, 1, 8)                   \
  X(kF32, "f32", 0, 1, 4)                    \
  X(kF16, "f16", 1, 1, 2)                    \
  X(kBF16, "bf16", 30, 1, 2)                 \
  X(kI64, "i64", 27, 1, 8)                   \
  X(kI32, "i32", 26, 1, 4)                   \
  X(kI8, "i8", 24, 1, 1)                     \
  X(kU8, "u8", 100, 1, 1)                    \
  X(kU64, "u64", 101, 1, 8)                  \
  X(kBool, "bool", 102, 1, 1)                \
  X(kFP8, "fp8_e4m3", 103, 1, 1)             \
  X(kQ4_0, "q4_0", 2, 32, 18)                \
  X(kQ4_1, "q4_1", 3, 32, 20)                \
  X(kQ5_0, "q5_0", 6, 32, 22)                \
  X(kQ5_1, "q5_1", 7, 32, 24)                \
  X(kQ8_0, "q8_0", 8, 32, 34)                \
  X(kQ2_K, "q2_k", 10, 256, 84)              \
  X(kQ3_K, "q3_k", 11, 256, 110)             \
  X(kQ4_K, "q4_k", 12, 256, 144)             \
  X(kQ5_K, "q5_k", 13, 256, 176)             \
  X(kQ6_K, "q6_k", 14, 256, 210)             \
  X(kIQ2_XXS, "iq2_xxs", 16, 256, 66)        \
  X(kIQ2_XS, "iq2_xs", 17, 256, 74)          \
  X(kIQ3_XXS, "iq3_xxs", 18, 256, 98)        \
  X(kIQ4_NL, "iq4_nl", 20, 32, 18)           \
  X(kIQ3_S, "iq3_s", 21, 256, 110)           \
  X(kIQ2_S, "iq2_s", 22, 256, 82)            \
  X(kIQ4_XS, "iq4_xs", 23, 256, 136)         \
  X(kMXFP4, "mxfp4", 39, 32, 17)             \
  X(kNVFP4, "nvfp4", 40, 64, 36)             \
  X(kINT4_G128, "int4_g128", 110, 128, 69)   \
  X(kINT4_G32, "int4_g32", 111, 32, 21)      \
  X(kINT8_G128, "int8_g128", 112, 128, 132)  \
  X(kINT8_G32, "int8_g32", 113, 32, 36)      \
  X(kNVFP4_G128, "nvfp4_g128", 114, 128, 76) \
  X(kNVFP4_G32, "nvfp4_g32", 115, 32, 22)    \
  X(kFP8_G128, "fp8_g128", 116, 128, 132)    \
  X(kFP8_G32, "fp8_g32", 117, 32, 36)

enum class DType : int32_t {
#define PYVT_ENUM(name, text, number, block, bytes) name = number,
  PYVT_DTYPES(PYVT_ENUM)
#undef PYVT_ENUM
};

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
#define PYVT_NAME(name, text, number, block, bytes) \
  case DType::name:                                 \
    return text;
    PYVT_DTYPES(PYVT_NAME)
#undef PYVT_NAME
  }
  return "?";
}

}  // namespace pyvt
