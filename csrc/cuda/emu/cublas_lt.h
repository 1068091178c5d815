// cuBLASLt of the emulator: plain products behind the same calls. It is stricter than the library:
//
//  1. Sizes, strides, alignments and attributes that do not fit each other are an invalid value.
//  2. Products of halves whose rows do not all begin at multiples of 4 bytes are not supported, so
//     that callers show what they do then.
//  3. A bias is added to the f32 sum, before its one rounding.
#pragma once

#include "cuda/cublas_lt_api.h"

namespace pyvt::emu {

cuda::lt::Api cublas_lt();

}  // namespace pyvt::emu
