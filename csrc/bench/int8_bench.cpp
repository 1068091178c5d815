// Speed of the int8 kernels against the limits of the machine, all measured in turn in one run.
//
//   cmake --build build/dev --target int8_bench && build/dev/csrc/int8_bench [repetitions]
//   [formats]
//
// Direct: one row of activations over 96 MiB of tiles, as a share of a plain read of 96 MiB. Panel:
// unpacking and 256 rows, as a share of the register-only loops vpmaddubsw + vpmaddwd + vpaddd
// (int8) and vpmaddubsw + vpaddw (4 bits). Rates are sums over threads of work per CPU time, so
// that a neighbour on the machine takes time and not speed; figures are medians over the
// repetitions.
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

constexpr int64_t kRows = 256;

// Columns; the rows of a weight do not matter, since its tiles are done one by one.
constexpr int64_t kColumns[] = {1024, 3072, 576};
constexpr DType kFormats[] = {
#define PYVT_FORMAT(name) DType::name,
    PYVT_INT8_FORMATS(PYVT_FORMAT)
#undef PYVT_FORMAT
};

const cpu::Int8Format& format_of(DType dtype) {
  return cpu::kernels().int8[std::max(0, cpu::int8_index(dtype))];
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

// Quantised activations and 96 MiB of tiles of one shape.
struct Case {
  const cpu::Int8Format& format;
  int64_t k, tile_bytes, num_tiles;
  Bytes tiles;
  std::vector<int8_t> q;
  std::vector<float> scales, sums;

  Case(DType dtype, int64_t columns)
      : format(format_of(dtype)),
        k(columns),
        tile_bytes(columns / format.block_cols * format.tile_block_bytes),
        num_tiles(kBytes / tile_bytes),
        tiles(aligned_bytes(kBytes)) {
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

  // GB/s of packed tiles with one row, kStreams at a time.
  double streams() const {
    return rate([&](int thread) {
      float out[cpu::kStreams * cpu::kTileRows];
      const int64_t part = num_tiles / cpu::num_threads() / cpu::kStreams;
      const uint8_t* first = tiles.get() + thread * part * cpu::kStreams * tile_bytes;
      const cpu::Q8Rows a = rows();
      for (int64_t i = 0; i < part; ++i) {
        format.streams(first + i * tile_bytes, part * tile_bytes, k, a, 0, out);
      }
      return static_cast<double>(part * cpu::kStreams * tile_bytes);
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

  // GMAC/s of `num_rows` rows, four at a time, with `num` tiles in all as they are packed.
  double rows_direct(int64_t num, int64_t num_rows) const {
    return rate([&](int thread) {
      std::vector<float> out(static_cast<size_t>(num_rows * cpu::kTileRows));
      const int64_t part = std::max<int64_t>(1, num / cpu::num_threads());
      const cpu::Q8Rows a = rows();
      for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
        for (int64_t m = 0; m < num_rows; m += 4) {
          format.direct[2](tiles.get() + i * tile_bytes, k, a, m, out.data() + m * cpu::kTileRows,
                           cpu::kTileRows);
        }
      }
      return static_cast<double>(part * cpu::kTileRows * num_rows * k);
    });
  }

  // The same through panels of columns that fit in the first-level cache, as packed_linear has it.
  double rows_panel(int64_t num, int64_t num_rows) const {
    const int64_t fitting = (20 << 10) * 256 / format.panel_bytes(256);
    const int64_t cols = std::max<int64_t>(256, fitting / 256 * 256);
    return rate([&](int thread) {
      const int64_t part = std::max<int64_t>(1, num / cpu::num_threads());
      const Bytes panel = aligned_bytes(format.panel_bytes(cols));
      std::vector<float> out(static_cast<size_t>(num_rows * cpu::kTileRows));
      for (int64_t i = thread * part; i < (thread + 1) * part; ++i) {
        for (int64_t from = 0; from < k; from += cols) {
          const int64_t count = std::min(cols, k - from);
          format.unpack_panel(
              tiles.get() + i * tile_bytes + from / format.block_cols * format.tile_block_bytes,
              count, panel.get());
          const cpu::Q8Rows a = {q.data() + from, scales.data() + from / 32,
                                 sums.data() + from / 32, k, k / 32};
          const int step = format.panel[2] == nullptr ? 4 : 8;
          for (int64_t m = 0; m < num_rows; m += step) {
            format.panel[step / 4](panel.get(), count, a, m, out.data() + m * cpu::kTileRows,
                                   cpu::kTileRows, from == 0);
          }
        }
      }
      return static_cast<double>(part * cpu::kTileRows * num_rows * k);
    });
  }
};

// Repetitions of each figure, by name.
using Figures = std::map<std::string, std::vector<double>>;

Figures measure(const Case& each, const uint8_t* plain, int repetitions) {
  Figures all;
  for (int i = 0; i < repetitions; ++i) {
    const double read = rate([&](int thread) { return read_limit(plain, thread); });
    const double direct = each.direct(0), cached = each.direct_cached();
    const double streams = each.format.streams == nullptr ? 0 : each.streams();
    const double int8 = rate(int8_limit), flipped = rate(xor_limit), int4 = rate(int4_limit);
    const double panel = each.rows_panel(64, kRows);
    const double direct8 = each.rows_direct(1024, 8), panel8 = each.rows_panel(1024, 8);
    const double direct16 = each.rows_direct(512, 16), panel16 = each.rows_panel(512, 16);
    const double four = each.direct(2) * 4 * static_cast<double>(cpu::kTileRows * each.k) /
                        static_cast<double>(each.tile_bytes);
    const std::pair<const char*, double> figures[] = {
        {"read", read},
        {"direct", direct},
        {"direct of read %", 100 * direct / read},
        {"streams of direct %", 100 * streams / direct},
        {"cached", cached},
        {"4 rows", four},
        {"4 rows of int8 %", 100 * four / int8},
        {"8 direct %", 100 * direct8 / int8},
        {"8 panel %", 100 * panel8 / int8},
        {"16 direct %", 100 * direct16 / int8},
        {"16 panel %", 100 * panel16 / int8},
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
  std::printf(
      "%-7s %5ld | %5.1f %6.1f %5.0f%% %5.0f%% %6.1f | %6.0f %4.0f%% | %5.0f%% %5.0f%% | %5.0f%% "
      "%5.0f%% | ",
      dtype_name(dtype), static_cast<long>(k), middle("read"), middle("direct"),
      middle("direct of read %"), middle("streams of direct %"), middle("cached"), middle("4 rows"),
      middle("4 rows of int8 %"), middle("8 direct %"), middle("8 panel %"), middle("16 direct %"),
      middle("16 panel %"));
  std::printf("%6.0f %4.0f%% %4.0f%% %4.0f%% %4.0f%%\n", middle("panel"), middle("panel of int8 %"),
              *std::max_element(shares.begin(), shares.end()), middle("panel of int4 %"),
              middle("panel of xor %"));
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  const Bytes plain = aligned_bytes(kBytes);
  std::memset(plain.get(), 1, kBytes);
  std::printf("level %s, %d threads, %d repetitions, medians\n", cpu::kernels().isa,
              cpu::num_threads(), repetitions);
  std::printf("%-13s | %-33s | %-12s | %-13s | %-13s | %s\n", "", "1 row, GB/s", "4 rows, GMAC",
              "8 rows, int8", "16 rows, int8", "256 rows, GMAC/s, share of int8, best, int4, xor");
  std::printf("%-7s %5s | %5s %6s %6s %6s %6s | %6s %5s | %6s %6s | %6s %6s |\n", "", "K", "read",
              "direct", "share", "four", "cached", "", "int8", "direct", "panel", "direct",
              "panel");
  for (int64_t k : kColumns) {
    for (DType dtype : kFormats) {
      if (argc > 2 && std::strstr(argv[2], dtype_name(dtype)) == nullptr) continue;
      const cpu::Int8Format& format = format_of(dtype);
      if (k % format.block_cols != 0 || format.direct[0] == nullptr) continue;
      const Case each(dtype, k);
      Figures all = measure(each, plain.get(), repetitions);
      print(dtype, k, all);
    }
  }
  cpu::shutdown_threads();
  return 0;
}
