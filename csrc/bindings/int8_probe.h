// The int8 kernels without a launcher, for tests: one thread, whole matrices.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/kernel_table.h"
#include "pyvt/tensor_view.h"

namespace pyvt::bindings {

inline const cpu::Int8Format& probed_format(int dtype) {
  return cpu::kernels().int8[cpu::int8_index(static_cast<DType>(dtype))];
}

// tiles u8 [num_tiles, tile_bytes] from blocks u8 [N, row_bytes]; rows past N are zero bytes.
inline void int8_pack(TensorView tiles, TensorView blocks, int dtype) {
  const cpu::Int8Format& format = probed_format(dtype);
  const int64_t num_rows = blocks.shape[0], row_bytes = blocks.shape[1];
  const int64_t num_cols = row_bytes / format.file_block_bytes * format.block_cols;
  const std::vector<uint8_t> zeros(static_cast<size_t>(row_bytes));
  for (int64_t tile = 0; tile < tiles.shape[0]; ++tile) {
    const uint8_t* rows[cpu::kTileRows];
    for (int64_t r = 0; r < cpu::kTileRows; ++r) {
      const int64_t row = tile * cpu::kTileRows + r;
      rows[r] = row < num_rows ? blocks.as<uint8_t>() + row * row_bytes : zeros.data();
    }
    format.pack_tile(rows, num_cols, tiles.as<uint8_t>() + tile * tiles.shape[1]);
  }
}

// out f32 [M, num_tiles · 16] = x [M, K] times the tiles, in steps of at most `step` rows.
inline void int8_matmul(TensorView out, TensorView x, TensorView tiles, int dtype, bool use_panel,
                        int64_t step) {
  const cpu::Int8Format& format = probed_format(dtype);
  const int64_t m = x.shape[0], k = x.shape[1], ldo = out.shape[1];
  std::vector<int8_t> q(static_cast<size_t>(m * k));
  std::vector<float> scales(static_cast<size_t>(m * k / 32)), sums(scales.size());
  for (int64_t i = 0; i < m; ++i) {
    cpu::kernels().quantize_row[0](x.as<float>() + i * k, q.data() + i * k,
                                   scales.data() + i * (k / 32), sums.data() + i * (k / 32), k);
  }
  const cpu::Q8Rows a{q.data(), scales.data(), sums.data(), k, k / 32};
  std::vector<uint8_t> panel(static_cast<size_t>(format.panel_bytes(k)));
  for (int64_t tile = 0; tile < tiles.shape[0]; ++tile) {
    const uint8_t* packed = tiles.as<uint8_t>() + tile * tiles.shape[1];
    float* to = out.as<float>() + tile * cpu::kTileRows;
    if (use_panel) format.unpack_panel(packed, k, panel.data());
    for (int64_t i = 0; i < m;) {
      const int64_t left = std::min(m - i, step);
      const int index = left >= 4 ? 2 : left >= 2 ? 1 : 0;
      if (use_panel) {
        format.panel[index == 2](panel.data(), k, a, i, to + i * ldo, ldo);
        i += index == 2 ? 4 : 1;
      } else {
        format.direct[index](packed, k, a, i, to + i * ldo, ldo);
        i += int64_t{1} << index;
      }
    }
  }
}

// out f32 [num_tiles, k1 - k0, 16].
inline void int8_decode(TensorView out, TensorView tiles, int dtype, int64_t k0, int64_t k1) {
  for (int64_t tile = 0; tile < tiles.shape[0]; ++tile) {
    probed_format(dtype).decode_tile(tiles.as<uint8_t>() + tile * tiles.shape[1], k0, k1,
                                     out.as<float>() + tile * (k1 - k0) * cpu::kTileRows);
  }
}

}  // namespace pyvt::bindings
