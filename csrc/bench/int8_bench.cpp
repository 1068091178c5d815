// Speed of the int8 kernels against the limits of the machine, all measured in turn in one run.
//
//   cmake --build build/dev --target int8_bench && build/dev/csrc/int8_bench [repetitions]
//
// Direct: one row of activations over 96 MiB of tiles, as a share of a plain read of 96 MiB. Panel:
// unpacking and 256 rows, as a share of the register-only loops vpmaddubsw + vpmaddwd + vpaddd
// (int8) and vpmaddubsw + vpaddw (4 bits). Rates are sums over threads of work per CPU time, so
// that a neighbour on the machine takes time and not speed; figures are medians over the
// repetitions.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/thread_pool.h"

using namespace pyvt;

namespace {

constexpr int64_t kBytes = 96 << 20;
constexpr int64_t kRows = 256;

// Columns; the rows of a weight do not matter, since its tiles are done one by one.
constexpr int64_t kColumns[] = {1024, 3072, 576};
constexpr DType kFormats[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                              DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

const cpu::Int8Format& format_of(DType dtype) {
  return cpu::kernels().int8[std::max(0, cpu::int8_index(dtype))];
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Sum over threads of work(thread) per second, in units of 10^9.
double rate(const std::function<double(int)>& work) {
  std::vector<double> rates(static_cast<size_t>(cpu::num_threads()));
  cpu::parallel_all([&](int thread) {
    const double start = cpu_seconds();
    const double done = work(thread);
    rates[static_cast<size_t>(thread)] = done / (cpu_seconds() - start) * 1e-9;
  });
  double sum = 0;
  for (double each : rates) sum += each;
  return sum;
}

#define PYVT_REGISTERS                                                                     \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", \
      "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"
#define PYVT_EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define PYVT_INT8(k)                     \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n" \
  "vpmaddwd %%ymm13,%%ymm12,%%ymm12\n"   \
  "vpaddd %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_XOR(k)                      \
  "vpxor %%ymm14,%%ymm13,%%ymm12\n"      \
  "vpmaddubsw %%ymm12,%%ymm15,%%ymm12\n" \
  "vpmaddwd %%ymm13,%%ymm12,%%ymm12\n"   \
  "vpaddd %%ymm12,%%ymm" #k ",%%ymm" #k "\n"
#define PYVT_INT4(k)                     \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n" \
  "vpaddw %%ymm12,%%ymm" #k ",%%ymm" #k "\n"

constexpr int64_t kTurns = 2000000;
constexpr double kTurnProducts = 8.0 * 32;

double int8_limit(int) {
  for (int64_t i = 0; i < kTurns; ++i) asm volatile(PYVT_EIGHT(PYVT_INT8) : : : PYVT_REGISTERS);
  return static_cast<double>(kTurns) * kTurnProducts;
}
double xor_limit(int) {
  for (int64_t i = 0; i < kTurns; ++i) asm volatile(PYVT_EIGHT(PYVT_XOR) : : : PYVT_REGISTERS);
  return static_cast<double>(kTurns) * kTurnProducts;
}
double int4_limit(int) {
  for (int64_t i = 0; i < kTurns; ++i) asm volatile(PYVT_EIGHT(PYVT_INT4) : : : PYVT_REGISTERS);
  return static_cast<double>(kTurns) * kTurnProducts;
}

double read_limit(const uint8_t* data, int thread) {
  const int64_t part = kBytes / cpu::num_threads();
  const __m256i* p = reinterpret_cast<const __m256i*>(data + thread * part);
  __m256i a[4] = {};
  for (int64_t i = 0; i < part / 32; i += 4) {
    for (int j = 0; j < 4; ++j) a[j] = _mm256_or_si256(a[j], _mm256_load_si256(p + i + j));
  }
  volatile int sink = _mm256_extract_epi32(
      _mm256_or_si256(_mm256_or_si256(a[0], a[1]), _mm256_or_si256(a[2], a[3])), 0);
  (void)sink;
  return static_cast<double>(part);
}

// Quantised activations and 96 MiB of tiles of one shape.
struct Case {
  const cpu::Int8Format& format;
  int64_t k, tile_bytes, num_tiles;
  std::unique_ptr<uint8_t, void (*)(void*)> tiles;
  std::vector<int8_t> q;
  std::vector<float> scales, sums;

  Case(DType dtype, int64_t columns)
      : format(format_of(dtype)),
        k(columns),
        tile_bytes(columns / format.block_cols * format.tile_block_bytes),
        num_tiles(kBytes / tile_bytes),
        tiles(static_cast<uint8_t*>(std::aligned_alloc(64, kBytes)), std::free) {
    // Bytes of 0x22 to 0x2d make f16 scales ordinary numbers.
    std::vector<uint8_t> block(
        static_cast<size_t>(k / format.block_cols * format.file_block_bytes));
    for (uint8_t& byte : block) byte = static_cast<uint8_t>(0x22 + std::rand() % 12);
    const uint8_t* rows[cpu::kTileRows];
    std::fill(std::begin(rows), std::end(rows), block.data());
    format.pack_tile(rows, k, tiles.get());
    for (int64_t i = 1; i < num_tiles; ++i) {
      std::memcpy(tiles.get() + i * tile_bytes, tiles.get(), static_cast<size_t>(tile_bytes));
    }
    std::vector<float> x(static_cast<size_t>(k));
    for (float& value : x) value = static_cast<float>(std::rand()) / RAND_MAX - 0.5f;
    q.resize(static_cast<size_t>(kRows * k));
    scales.resize(static_cast<size_t>(kRows * k / 32));
    sums.resize(scales.size());
    for (int64_t m = 0; m < kRows; ++m) {
      cpu::kernels().quantize_row[0](x.data(), q.data() + m * k, scales.data() + m * (k / 32),
                                     sums.data() + m * (k / 32), k);
    }
  }

  cpu::Q8Rows rows() const { return {q.data(), scales.data(), sums.data(), k, k / 32}; }

  // GB/s of packed tiles with 1, 2 or 4 rows at once.
  double direct(int index) const {
    return rate([&](int thread) {
      float out[4 * cpu::kTileRows];
      const int64_t part = num_tiles / cpu::num_threads();
      const cpu::Q8Rows a = rows();
      for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
        format.direct[index](tiles.get() + i * tile_bytes, k, a, 0, out, cpu::kTileRows);
      }
      return static_cast<double>(part * tile_bytes);
    });
  }

  // GB/s of tiles that stay in the cache: what the arithmetic alone allows.
  double direct_cached() const {
    return rate([&](int thread) {
      float out[cpu::kTileRows];
      const int64_t part = std::max<int64_t>(1, (192 << 10) / tile_bytes);
      const cpu::Q8Rows a = rows();
      double done = 0;
      for (int turn = 0; turn < 200; ++turn) {
        for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
          format.direct[0](tiles.get() + i * tile_bytes, k, a, 0, out, cpu::kTileRows);
        }
        done += static_cast<double>(part * tile_bytes);
      }
      return done;
    });
  }

  // GMAC/s of `num` tiles in all with 256 rows.
  double panel(int64_t num) const {
    return rate([&](int thread) {
      const int64_t part = std::max<int64_t>(1, num / cpu::num_threads());
      std::unique_ptr<uint8_t, void (*)(void*)> unpacked(
          static_cast<uint8_t*>(
              std::aligned_alloc(64, static_cast<size_t>(format.panel_bytes(k) + 63) / 64 * 64)),
          std::free);
      std::vector<float> out(kRows * cpu::kTileRows);
      const cpu::Q8Rows a = rows();
      for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
        format.unpack_panel(tiles.get() + i * tile_bytes, k, unpacked.get());
        for (int64_t m = 0; m < kRows; m += 4) {
          format.panel[1](unpacked.get(), k, a, m, out.data() + m * cpu::kTileRows, cpu::kTileRows);
        }
      }
      return static_cast<double>(part * cpu::kTileRows * kRows * k);
    });
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Repetitions of each figure, by name.
using Figures = std::map<std::string, std::vector<double>>;

Figures measure(const Case& each, const uint8_t* plain, int repetitions) {
  Figures all;
  for (int i = 0; i < repetitions; ++i) {
    const double read = rate([&](int thread) { return read_limit(plain, thread); });
    const double direct = each.direct(0), cached = each.direct_cached();
    const double int8 = rate(int8_limit), flipped = rate(xor_limit), int4 = rate(int4_limit);
    const double panel = each.panel(64);
    const double four = each.direct(2) * 4 * static_cast<double>(cpu::kTileRows * each.k) /
                        static_cast<double>(each.tile_bytes);
    const std::pair<const char*, double> figures[] = {{"read", read},
                                                      {"direct", direct},
                                                      {"direct of read %", 100 * direct / read},
                                                      {"cached", cached},
                                                      {"4 rows", four},
                                                      {"4 rows of int8 %", 100 * four / int8},
                                                      {"panel", panel},
                                                      {"panel of int8 %", 100 * panel / int8},
                                                      {"panel of int4 %", 100 * panel / int4},
                                                      {"panel of xor %", 100 * panel / flipped}};
    for (const auto& [name, value] : figures) all[name].push_back(value);
  }
  return all;
}

void print(DType dtype, int64_t k, Figures& all) {
  const auto middle = [&](const char* name) { return median(all[name]); };
  const std::vector<double>& shares = all["panel of int8 %"];
  std::printf("%-5s %5ld | %5.1f %6.1f %5.0f%% %6.1f | %6.0f %4.0f%% | ", dtype_name(dtype),
              static_cast<long>(k), middle("read"), middle("direct"), middle("direct of read %"),
              middle("cached"), middle("4 rows"), middle("4 rows of int8 %"));
  std::printf("%6.0f %4.0f%% %4.0f%% %4.0f%% %4.0f%%\n", middle("panel"), middle("panel of int8 %"),
              *std::max_element(shares.begin(), shares.end()), middle("panel of int4 %"),
              middle("panel of xor %"));
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  std::unique_ptr<uint8_t, void (*)(void*)> plain(
      static_cast<uint8_t*>(std::aligned_alloc(64, kBytes)), std::free);
  std::memset(plain.get(), 1, kBytes);
  std::printf("level %s, %d threads, %d repetitions, medians\n", cpu::kernels().isa,
              cpu::num_threads(), repetitions);
  std::printf("%-11s | %-26s | %-12s | %s\n", "", "1 row, GB/s", "4 rows, GMAC",
              "256 rows, GMAC/s, share of int8, best, int4, xor");
  std::printf("%-5s %5s | %5s %6s %6s %6s | %6s %5s |\n", "", "K", "read", "direct", "share",
              "cached", "", "int8");
  for (int64_t k : kColumns) {
    for (DType dtype : kFormats) {
      if (k % format_of(dtype).block_cols != 0) continue;
      const Case each(dtype, k);
      Figures all = measure(each, plain.get(), repetitions);
      print(dtype, k, all);
    }
  }
  cpu::shutdown_threads();
  return 0;
}
