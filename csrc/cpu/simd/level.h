// What every kernel file starts with: the table and the vector vocabulary of the level that it is
// compiled for. The build compiles each file once a level with PYVT_ISA, the namespace of the
// level, and PYVT_ISA_<NAME>; all but the fill functions has internal linkage, so that no code with
// the flags of one level is ever linked into another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/kernel_table.h"
#include "pyvt/half.h"

#if defined(PYVT_SIMDE)
#include "cpu/simd/simde.h"
#elif defined(PYVT_ISA_AVX2) || defined(PYVT_ISA_AVX512)
#include <immintrin.h>
#elif defined(PYVT_ISA_NEON) || defined(PYVT_ISA_I8MM)
#include <arm_neon.h>
#endif

namespace pyvt::cpu::PYVT_ISA {
namespace {

#if defined(PYVT_ISA_AVX2)
#include "cpu/simd/avx2.h"
//
#include "cpu/simd/int8_avx2.h"
#elif defined(PYVT_ISA_AVX512)
#include "cpu/simd/avx512.h"
//
#include "cpu/simd/int8_avx512.h"
#elif defined(PYVT_ISA_NEON) || defined(PYVT_ISA_I8MM)
#include "cpu/simd/neon.h"
//
#include "cpu/simd/int8_neon.h"
#elif defined(PYVT_ISA_SCALAR)
#include "cpu/simd/scalar.h"
//
#include "cpu/simd/int8_scalar.h"
#else
#error "a level without a vocabulary"
#endif

}  // namespace
}  // namespace pyvt::cpu::PYVT_ISA
