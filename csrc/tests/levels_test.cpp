// Compares the kernels of every level that runs here with those of scalar, without Python, so that
// it also runs where only an emulator does: int8 and float products, packing, quantisation and
// every number of e4m3 to the bit, sums of exponentials within rounding.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"

namespace {

using namespace pyvt::cpu;

constexpr int64_t kCols = 512, kGroups = kCols / 32;
constexpr int kRows = 8;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

int num_wrong = 0;

template <typename T>
void expect_same(const char* isa, const char* what, int index, const std::vector<T>& got,
                 const std::vector<T>& want) {
  if (std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  std::printf("%s: %s of format %d differs from scalar\n", isa, what, index);
  ++num_wrong;
}

struct Activations {
  std::vector<int8_t> codes;
  Floats scales, sums;

  Q8Rows rows() const { return {codes.data(), scales.data(), sums.data(), kCols, kGroups}; }
};

Activations quantized(const KernelTable& table, const Floats& x) {
  Activations a{std::vector<int8_t>(x.size()), Floats(x.size() / 32), Floats(x.size() / 32)};
  for (int m = 0; m < kRows; ++m) {
    table.quantize_row[0](x.data() + m * kCols, a.codes.data() + m * kCols,
                          a.scales.data() + m * kGroups, a.sums.data() + m * kGroups, kCols);
  }
  return a;
}

// Random blocks whose numbers of f16 would overflow now and then: the bits must agree even so,
// but for NaN, whose sign and payload a CPU may choose.
Bytes packed(const KernelTable& table, int index, std::mt19937& random) {
  const Int8Format& format = table.int8[index];
  const int64_t row_bytes = kCols / format.block_cols * format.file_block_bytes;
  std::vector<Bytes> rows(kTileRows, Bytes(static_cast<size_t>(row_bytes)));
  const uint8_t* pointers[kTileRows];
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (uint8_t& byte : rows[r]) byte = static_cast<uint8_t>(random() & 0x3b);
    if (index == places::kINT4_G128Place || index == places::kINT4_G32Place) {
      // 16 less the zero is at most 16.
      for (int64_t at = 4; at < row_bytes; at += format.file_block_bytes) {
        rows[r][static_cast<size_t>(at)] &= 15;
      }
    }
    pointers[r] = rows[r].data();
  }
  Bytes tile(static_cast<size_t>(kCols / format.block_cols * format.tile_block_bytes));
  format.pack_tile(pointers, kCols, tile.data());
  return tile;
}

Floats products(const KernelTable& table, int index, const Bytes& tile, const Q8Rows& a,
                const Floats& x) {
  const Int8Format& format = table.int8[index];
  Floats out;
  const auto append = [&](int num_rows, auto&& multiply) {
    Floats sums(static_cast<size_t>(num_rows * kTileRows));
    multiply(sums.data());
    out.insert(out.end(), sums.begin(), sums.end());
  };
  const int direct_rows[] = {1, 2, 4}, panel_rows[] = {1, 4, 8};
  const bool has_codes = format.direct[0] != nullptr;
  for (int i = 0; has_codes && i < 3; ++i) {
    append(direct_rows[i],
           [&](float* sums) { format.direct[i](tile.data(), kCols, a, 0, sums, kTileRows); });
  }
  Bytes panel(has_codes ? static_cast<size_t>(format.panel_bytes(kCols)) : 0);
  if (has_codes) format.unpack_panel(tile.data(), kCols, panel.data());
  for (int i = 0; has_codes && i < 3; ++i) {
    // Eight rows are two steps of four where a level has no kernel for them.
    const int step = i == 2 && format.panel[i] == nullptr ? 1 : i;
    append(panel_rows[i], [&](float* sums) {
      for (int m = 0; m < panel_rows[i]; m += panel_rows[step]) {
        format.panel[step](panel.data(), kCols, a, m, sums + m * kTileRows, kTileRows, true);
      }
    });
  }
  for (size_t i = 0; format.of_floats[0] != nullptr && i < std::size(kFloatSteps); ++i) {
    append(static_cast<int>(kFloatSteps[i]), [&](float* sums) {
      format.of_floats[i](tile.data(), kCols, x.data(), kCols, sums, kTileRows);
    });
  }
  Floats values(static_cast<size_t>(kCols * kTileRows));
  format.decode_tile(tile.data(), 0, kCols, values.data());
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

// The 256 numbers of e4m3, as weights of scale 1 with one more column each row and as a cache holds
// them, and what numbers between them become in it; one NaN for all.
Floats fp8_numbers(const KernelTable& table, const Floats& x) {
  const Int8Format& format = table.int8[places::kFP8_G128Place];
  const int64_t num_cols = format.block_cols, row_bytes = format.file_block_bytes;
  std::vector<Bytes> rows(kTileRows, Bytes(static_cast<size_t>(row_bytes)));
  const uint8_t* pointers[kTileRows];
  const float scale = 1.0f;
  for (int64_t r = 0; r < kTileRows; ++r) {
    std::memcpy(rows[r].data(), &scale, sizeof(scale));
    for (int64_t k = 0; k < num_cols; ++k) {
      rows[r][sizeof(scale) + k] = static_cast<uint8_t>(r * num_cols + r + k);
    }
    pointers[r] = rows[r].data();
  }
  Bytes tile(static_cast<size_t>(format.tile_block_bytes)), codes(256), narrow(x.size());
  format.pack_tile(pointers, num_cols, tile.data());
  Floats values(static_cast<size_t>(num_cols * kTileRows)), wide(codes.size());
  format.decode_tile(tile.data(), 0, num_cols, values.data());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  table.widen_fp8(wide.data(), codes.data(), 0.0f, 255);
  table.widen_fp8(&wide.back(), &codes.back(), 0.0f, 1);
  values.insert(values.end(), wide.begin(), wide.end());
  table.narrow_to_fp8[0](narrow.data(), x.data(), 0.0f, static_cast<int64_t>(x.size()));
  values.insert(values.end(), narrow.begin(), narrow.end());
  for (float& value : values) value = std::isnan(value) ? NAN : value;
  return values;
}

void compare(const KernelTable& table, const KernelTable& scalar) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Floats x(kRows * kCols);
  for (float& value : x) value = normal(random);
  const Activations a = quantized(table, x), want = quantized(scalar, x);
  expect_same(table.isa, "codes", -1, a.codes, want.codes);
  expect_same(table.isa, "scales", -1, a.scales, want.scales);
  for (int index = 0; index < kNumInt8Formats; ++index) {
    std::mt19937 first(static_cast<unsigned>(index)), second(static_cast<unsigned>(index));
    const Bytes tile = packed(table, index, first);
    expect_same(table.isa, "tile", index, tile, packed(scalar, index, second));
    expect_same(table.isa, "products", index, products(table, index, tile, want.rows(), x),
                products(scalar, index, tile, want.rows(), x));
  }
  expect_same(table.isa, "e4m3", places::kFP8_G128Place, fp8_numbers(table, x),
              fp8_numbers(scalar, x));
  const float got = table.sum_exp(x.data(), 4.0f, kCols - 3);
  const float sum = scalar.sum_exp(x.data(), 4.0f, kCols - 3);
  if (std::fabs(got - sum) > 1e-5f * sum) {
    std::printf("%s: sum_exp %g, scalar %g\n", table.isa, got, sum);
    ++num_wrong;
  }
}

}  // namespace

int main() {
  use_isa("scalar");
  const KernelTable& scalar = kernels();
  std::istringstream names(isa_names());
  std::string name;
  while (names >> name) {
    use_isa(name.c_str());
    compare(kernels(), scalar);
    std::printf("%s compared with scalar\n", name.c_str());
  }
  return num_wrong == 0 ? 0 : 1;
}
