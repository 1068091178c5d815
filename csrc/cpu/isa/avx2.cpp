// The kernel table of the level avx2: every kernel body compiled with its flags, nothing exported
// but the table.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/kernel_table.h"
#include "pyvt/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pyvt::cpu {
namespace {

#include "cpu/simd/avx2.h"

#include "cpu/simd/int8_avx2.h"

#include "cpu/kernels/math-inl.h"

#include "cpu/kernels/attention-inl.h"
#include "cpu/kernels/block_decode-inl.h"
#include "cpu/kernels/elementwise-inl.h"
#include "cpu/kernels/linear-inl.h"
#include "cpu/kernels/logits-inl.h"
#include "cpu/kernels/norm-inl.h"
#include "cpu/kernels/quant-inl.h"
#include "cpu/kernels/rope-inl.h"

// Traits of a format have its name, here and in block_decode-inl.h.
namespace int8 {
#include "cpu/kernels/int8_pack-inl.h"
#include "cpu/kernels/int8_tile-inl.h"

#include "cpu/kernels/linear_k-inl.h"
#include "cpu/kernels/linear_q4-inl.h"
#include "cpu/kernels/linear_q5-inl.h"
#include "cpu/kernels/linear_q6_k-inl.h"
#include "cpu/kernels/linear_q8-inl.h"

#include "cpu/kernels/int8_linear-inl.h"
}  // namespace int8

KernelTable make() {
  KernelTable table = {};
  table.isa = "avx2";
  fill_attention(table);
  fill_block_decode(table);
  fill_elementwise(table);
  fill_linear(table);
  fill_logits(table);
  int8::fill_int8(table);
  fill_norm(table);
  fill_quant(table);
  fill_rope(table);
  return table;
}

}  // namespace

const KernelTable& avx2_table() {
  static const KernelTable table = make();
  return table;
}

}  // namespace pyvt::cpu
