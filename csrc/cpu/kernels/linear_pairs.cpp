// what        products of rows of bf16 activations with one tile of 16 weight rows of bf16, on CPUs
//             with an instruction that takes two columns at once (vdpbf16ps); elsewhere, and for
//             activations in other dtypes, linear.cpp
// layout      tile: packed_format.h, FloatFormat; x [rows][ldx] as it lies, out [rows][ldo], 16
//             outputs a row; nothing may alias
// numerics    products are exact; one f32 sum an output, pairs ascending, of a pair the second
//             column first, each with one fma: the same bits for any number of rows. The
//             instruction takes subnormals for zero
// work        a lane owns an output; kRows rows of x share the loaded weights
// traffic     the tile once, prefetched 1 KiB ahead; memory bound up to 4 rows, then bound by the
//             instruction: 8 rows reach 91 % of it in the first-level cache (Zen 4)
// tried       12, 16, 24 rows: 83, 76, 81 %; 8 rows of two tiles: 97 % in the first-level cache, no
//             faster in a product of 256 rows, with 256 or 512 columns at a time
#include <iterator>
#include <utility>

#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {

#if defined(PYVT_ISA_AVX512)

namespace {

#if defined(PYVT_SIMDE)
#define PYVT_PAIRS
bool has_pairs() { return true; }
#else
#define PYVT_PAIRS __attribute__((target("avx512bf16")))
bool has_pairs() { return __builtin_cpu_supports("avx512bf16"); }
#endif

constexpr int64_t kPrefetchBytes = 1024;
constexpr int64_t kTileWordBytes = 4 * kTileRows;

// One word of every row of x, two columns or the last one, times a word of the tile.
template <int kRows, typename Bits>
PYVT_INLINE PYVT_PAIRS void add_word(const uint8_t* tile, const uint16_t* x, int64_t ldx,
                                     simd::Vec (&sums)[kRows]) {
  const __m512i weights = _mm512_loadu_si512(tile);
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) {
    Bits bits;
    std::memcpy(&bits, x + m * ldx, sizeof bits);
    const __m512i columns = _mm512_set1_epi32(static_cast<int>(bits));
    sums[m].v = _mm512_dpbf16_ps(sums[m].v, (__m512bh)columns, (__m512bh)weights);
  }
}

template <int kRows>
PYVT_PAIRS void pair_product(const uint8_t* __restrict tile, int64_t num_cols,
                             const uint16_t* __restrict x, int64_t ldx, float* __restrict out,
                             int64_t ldo, bool is_first) {
  simd::Vec sums[kRows];
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) sums[m] = is_first ? simd::zero() : simd::load(out + m * ldo);
#pragma GCC unroll 4
  for (int64_t k = 0; k + 2 <= num_cols; k += 2, tile += kTileWordBytes, x += 2) {
    simd::prefetch(tile + kPrefetchBytes);
    add_word<kRows, uint32_t>(tile, x, ldx, sums);
  }
  if (num_cols % 2 == 1) add_word<kRows, uint16_t>(tile, x, ldx, sums);
  PYVT_UNROLL
  for (int m = 0; m < kRows; ++m) simd::store(out + m * ldo, sums[m]);
}

template <size_t... kSteps>
void fill_pairs(FloatFormat& format, std::index_sequence<kSteps...>) {
  ((format.pairs[kSteps] = &pair_product<static_cast<int>(kPairSteps[kSteps])>), ...);
}

}  // namespace

void fill_linear_pairs(KernelTable& table) {
  if (!has_pairs()) return;
  FloatFormat& format = table.floats[FloatAt<Bf16, 1>::index];
  fill_pairs(format, std::make_index_sequence<std::size(kPairSteps)>{});
}

#else

void fill_linear_pairs(KernelTable&) {}

#endif

}  // namespace pyvt::cpu::PYVT_ISA
