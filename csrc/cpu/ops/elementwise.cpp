// Launchers of the elementwise and activation families: dense runs, cut over threads.
#include <cstring>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/indices.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

// Elements of a piece: about 5 µs of memory traffic, or of exponentials.
constexpr int64_t kCheapGrain = 16384;
constexpr int64_t kExpGrain = 4096;

void map(const char* op, const TensorView& out, const TensorView& x, MapKernel kernel,
         double scalar, int64_t grain) {
  const auto elements = elements_of<2>(op, {out, x});
  for_each_piece(elements, grain, [&](int64_t run, int64_t first, int64_t n) {
    kernel(elements.at(0, run, first), elements.at(1, run, first), static_cast<float>(scalar), n);
  });
}

void zip(const char* op, const TensorView& out, const TensorView& x, const TensorView& y,
         ZipKernel kernel, int64_t grain) {
  const auto elements = elements_of<3>(op, {out, x, y});
  for_each_piece(elements, grain, [&](int64_t run, int64_t first, int64_t n) {
    kernel(elements.at(0, run, first), elements.at(1, run, first), elements.at(2, run, first), n);
  });
}

// The index of the one dtype of out and x.
int same_index(const char* op, const TensorView& out, const TensorView& x) {
  PYVT_CHECK(op, out.dtype == x.dtype, "out: expected the dtype of x");
  return float_index(op, x.dtype);
}

// The half of x that starts at `part` halves.
TensorView half_of(const TensorView& x, int part) {
  TensorView half = x;
  const int last = x.rank - 1;
  half.shape[last] = x.shape[last] / 2;
  half.data =
      static_cast<char*>(x.data) + part * half.shape[last] * x.stride[last] * item_bytes(x.dtype);
  return half;
}

void gated(const char* op, const TensorView& out, const TensorView& x, ZipKernel kernel) {
  PYVT_CHECK(op, x.rank >= 1 && x.shape[x.rank - 1] % 2 == 0, "x: expected an even last dim");
  zip(op, out, half_of(x, 0), half_of(x, 1), kernel, kExpGrain);
}

}  // namespace

void add(TensorView out, TensorView x, TensorView y) {
  const int of_x = same_index("add", out, x), of_y = float_index("add", y.dtype);
  zip("add", out, x, y, kernels().add[of_x][of_y], kCheapGrain);
}

void mul(TensorView out, TensorView x, TensorView y) {
  const int of_x = same_index("mul", out, x), of_y = float_index("mul", y.dtype);
  zip("mul", out, x, y, kernels().mul[of_x][of_y], kCheapGrain);
}

void scale(TensorView out, TensorView x, double factor) {
  map("scale", out, x, kernels().scale[same_index("scale", out, x)], factor, kCheapGrain);
}

void cast(TensorView out, TensorView x) {
  const auto kernel = kernels().cast[float_index("cast", x.dtype)][float_index("cast", out.dtype)];
  map("cast", out, x, kernel, 0, kCheapGrain);
}

void take_columns(TensorView out, TensorView x, TensorView columns) {
  const char* op = "take_columns";
  const Rows to = rows_of(op, "out", out), from = rows_of(op, "x", x);
  const Indices ids = indices_of(op, "columns", columns);
  PYVT_CHECK(op,
             out.is_writeable && out.dtype == x.dtype && to.num_rows == from.num_rows &&
                 to.length == ids.size,
             "out: expected dims [..., C] in the dtype of x");
  check_range(op, "columns", ids, 0, from.length);
  const int64_t item = item_bytes(x.dtype);
  parallel_for(from.num_rows, kCheapGrain / (ids.size + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const char* source = static_cast<const char*>(from.row(row));
      char* target = static_cast<char*>(to.row(row));
      for (int64_t i = 0; i < ids.size; ++i) {
        if (item == 4) {
          std::memcpy(target + i * 4, source + ids[i] * 4, 4);
        } else {
          std::memcpy(target + i * 2, source + ids[i] * 2, 2);
        }
      }
    }
  });
}

void soft_cap(TensorView out, TensorView x, double cap) {
  map("soft_cap", out, x, kernels().soft_cap[same_index("soft_cap", out, x)], cap, kExpGrain);
}

void relu(TensorView out, TensorView x) {
  map("relu", out, x, kernels().relu[same_index("relu", out, x)], 0, kCheapGrain);
}

void sigmoid(TensorView out, TensorView x) {
  map("sigmoid", out, x, kernels().sigmoid[same_index("sigmoid", out, x)], 0, kExpGrain);
}

void silu(TensorView out, TensorView x) {
  map("silu", out, x, kernels().silu[same_index("silu", out, x)], 0, kExpGrain);
}

void gelu(TensorView out, TensorView x) {
  map("gelu", out, x, kernels().gelu[same_index("gelu", out, x)], 0, kExpGrain);
}

void silu_and_mul(TensorView out, TensorView x) {
  gated("silu_and_mul", out, x, kernels().silu_and_mul[same_index("silu_and_mul", out, x)]);
}

void gelu_and_mul(TensorView out, TensorView x) {
  gated("gelu_and_mul", out, x, kernels().gelu_and_mul[same_index("gelu_and_mul", out, x)]);
}

void sigmoid_gate(TensorView out, TensorView x, TensorView gate) {
  const int of_x = same_index("sigmoid_gate", out, x);
  PYVT_CHECK("sigmoid_gate", gate.dtype == x.dtype, "gate: expected the dtype of x");
  zip("sigmoid_gate", out, x, gate, kernels().sigmoid_gate[of_x], kExpGrain);
}

}  // namespace pyvt::cpu
