// Speed of the float products against a loop of fused multiply-adds, measured in turn in one run.
//
//   cmake --build build/dev --target float_bench && build/dev/csrc/float_bench [repetitions]
//
// Direct: rows six at a time on packed tiles. Panel: tiles unpacked to f32 by 512 columns, then six
// rows at a time. Rates as in int8_bench.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "cpu/kernel_table.h"

using namespace pyvt;
using namespace pyvt::bench;

namespace {

constexpr int64_t kMaxRows = 264;
constexpr int64_t kPanelCols = 512;
constexpr int64_t kColumns[] = {1024, 3072, 576};
constexpr DType kFormats[] = {DType::kBF16, DType::kF16, DType::kF32};

double fma_limit(int) {
  constexpr int64_t kTurns = 4000000;
  __m256 sums[12];
  const __m256 x = _mm256_set1_ps(1e-9f), y = _mm256_set1_ps(1.0f);
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < kTurns; ++i) {
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(x, y, sum);
      asm("" : "+x"(sum));
    }
  }
  return static_cast<double>(kTurns) * 12 * 8;
}

struct Case {
  const cpu::FloatFormat& format;
  int64_t k, tile_bytes, num_tiles;
  Bytes tiles;
  std::vector<float> x;

  Case(DType dtype, int64_t columns)
      : format(cpu::kernels().floats[cpu::float_index("bench", dtype)]),
        k(columns),
        tile_bytes(columns / format.word_cols * 4 * cpu::kTileRows),
        num_tiles(kBytes / tile_bytes),
        tiles(aligned_bytes(kBytes)),
        x(static_cast<size_t>(kMaxRows * columns), 0.5f) {
    std::memset(tiles.get(), 0x3c, static_cast<size_t>(kBytes));
  }

  // GMAC/s of rows [0, num_rows) with `num` tiles in all.
  double products(int64_t num, int64_t num_rows, bool is_direct) const {
    return rate([&](int thread) {
      std::vector<float> out(static_cast<size_t>(num_rows * cpu::kTileRows));
      const Bytes panel = aligned_bytes(kPanelCols * cpu::kTileRows * 4);
      const int64_t part = num / cpu::num_threads(), step = is_direct ? k : kPanelCols;
      for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
        for (int64_t from = 0; from < k; from += step) {
          const int64_t count = std::min(step, k - from);
          const uint8_t* words =
              tiles.get() + i * tile_bytes + from / format.word_cols * 4 * cpu::kTileRows;
          const bool is_unpacked = !is_direct && format.unpack_panel != nullptr;
          if (is_unpacked) {
            format.unpack_panel(words, count, reinterpret_cast<float*>(panel.get()));
            words = panel.get();
          }
          const auto& kernels = is_direct ? format.direct : cpu::kernels().float_panel;
          for (int64_t m = 0; m < num_rows;) {
            const size_t index = cpu::float_step(num_rows - m);
            kernels[index](words, count, x.data() + m * k + from, k,
                           out.data() + m * cpu::kTileRows, cpu::kTileRows, from == 0);
            m += cpu::kFloatSteps[index];
          }
        }
      }
      return static_cast<double>(part * cpu::kTileRows * num_rows * k);
    });
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  std::printf("level %s, %d threads, %d repetitions, medians, share of the fma loop in %%\n",
              cpu::kernels().isa, cpu::num_threads(), repetitions);
  for (int64_t k : kColumns) {
    for (DType dtype : kFormats) {
      const Case each(dtype, k);
      std::map<std::string, std::vector<double>> all;
      for (int i = 0; i < repetitions; ++i) {
        const double fma = rate(fma_limit);
        for (int64_t num_rows : {int64_t{4}, int64_t{8}, int64_t{16}, int64_t{96}, kMaxRows}) {
          for (bool is_direct : {true, false}) {
            const std::string name = std::to_string(num_rows) + (is_direct ? " direct" : " panel");
            const int64_t num = std::clamp<int64_t>(400000000 / (num_rows * k * 16), 4, 512);
            all[name].push_back(100 * each.products(num, num_rows, is_direct) / fma);
          }
        }
      }
      std::printf("%-5s K %4ld |", dtype_name(dtype), static_cast<long>(k));
      for (const char* name : {"4 direct", "4 panel", "8 direct", "8 panel", "16 direct",
                               "16 panel", "96 direct", "96 panel", "264 direct", "264 panel"}) {
        std::printf(" %s %3.0f |", name, median(all[name]));
      }
      std::printf("\n");
    }
  }
  cpu::shutdown_threads();
  return 0;
}
