// Weights in packed blocks: quant_linear, quant_embedding, quantize_q8_rows.
//
// contract  the references of pyvt/ops/quant_gguf.py
// layout    rows of blocks as in a file; x and out rows of any stride
// work      products: products_few.cu up to 8 rows of x, four at a time, else tiles. Rows by id: a
//           block per token, a thread per 32 columns
// estimate  of products there; a row of H = 4096 in Q4_K has 2.3 kB: rows by id are latency, 2 us;
//           about 4 operations an element
// launches  1; more than one row with act=q8 2: x is quantised first
// source    ggml ggml_mul_mat, ggml_get_rows
#include "cuda/device/blocks.cuh"
#include "cuda/device/index.cuh"
#include "cuda/ops.h"
#include "cuda/products.h"

namespace pyvt::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxFewRows = 8;

template <DType kFormat>
__global__ void __launch_bounds__(kThreads) embedding_kernel(Rows out, Index ids, Matrices weight) {
  const Row to = out.at(blockIdx.x);
  const int64_t id = ids[blockIdx.x];
  const uint8_t* row = weight.row(0, id < 0 ? 0 : id);
  for (int g = threadIdx.x; g < weight.num_cols / kGroup; g += blockDim.x) {
    Group group;
    decode_row<kFormat>(row, g, &group);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) to.set(g * kGroup + i, value_of_group<kFormat>(group, i));
  }
}

bool is_q8(const char* op, const std::string& act, DType dtype) {
  PYVT_CHECK(op, act == "none" || (act == "q8" && has_codes(dtype)),
             "act: expected none, or q8 for a weight with codes, got ", act);
  return act == "q8";
}

}  // namespace

void quantize_q8_rows(Context& context, TensorView codes, TensorView scales, TensorView x) {
  const char* op = "quantize_q8_rows";
  const Rows rows = rows_of(op, "x", x);
  PYVT_CHECK(op, rows.length % kGroup == 0, "x: expected a multiple of 32 columns");
  PYVT_CHECK(op,
             codes.dtype == DType::kI8 && codes.is_dense() && codes.size() == x.size() &&
                 scales.dtype == DType::kF32 && scales.is_dense() &&
                 scales.size() * kGroup == x.size(),
             "codes, scales: expected i8 and f32, side by side");
  quantize_rows(context, op, codes.as<int8_t>(), scales.as<float>(), rows);
}

void quant_linear(Context& context, TensorView out, TensorView x, BlockMatrix weight,
                  TensorView bias, std::string act) {
  const char* op = "quant_linear";
  MatrixProduct product;
  product.out = rows_of(op, "out", out);
  product.x = rows_of(op, "x", x);
  product.weight = matrices_of(op, "weight", weight);
  product.is_q8 = is_q8(op, act, weight.dtype);
  const Matrices& matrix = product.weight;
  PYVT_CHECK(op,
             weight.blocks.rank == 2 && matrix.num_rows == product.out.length &&
                 matrix.num_cols == product.x.length && product.x.num_rows == product.out.num_rows,
             "weight: expected [", product.out.length, ", ", product.x.length, "]");
  if (bias.has_value()) {
    PYVT_CHECK(op, bias.rank == 1 && bias.shape[0] == matrix.num_rows && is_float(bias.dtype),
               "bias: expected floats [", matrix.num_rows, "]");
    product.bias = {bias.data, bias.dtype, bias.stride[0]};
  }
  Schedule& schedule = product.schedule;
  schedule.num_rows = static_cast<int>(product.x.num_rows);
  schedule.height = schedule.num_rows == 1             ? 1
                    : schedule.num_rows <= kMaxFewRows ? kFewRows
                                                       : kTileRows;
  schedule.num_tiles = (schedule.num_rows + schedule.height - 1) / schedule.height;
  if (schedule.height == 1 || !product.is_q8) return multiply(context, op, product);
  const auto size = static_cast<size_t>(x.size());
  const auto codes = context.take(size), scales = context.take(size / kGroup * sizeof(float));
  product.codes = static_cast<int8_t*>(codes->data());
  product.scales = static_cast<float*>(scales->data());
  quantize_rows(context, op, static_cast<int8_t*>(codes->data()),
                static_cast<float*>(scales->data()), product.x);
  multiply(context, op, product);
}

void quant_embedding(Context& context, TensorView out, TensorView input_ids, BlockMatrix weight) {
  const char* op = "quant_embedding";
  const Rows to = rows_of(op, "out", out);
  const Matrices table = matrices_of(op, "weight", weight);
  PYVT_CHECK(op, table.num_cols == to.length, "weight: expected rows of ", to.length);
  const Index ids = index_of(op, "input_ids", input_ids, to.num_rows);
  const auto run = [&](auto kernel) {
    context.launch(op, kernel, dim3(blocks_for(to.num_rows, 1)),
                   dim3(threads_for(table.num_cols / kGroup, 1, kThreads)), 0, to, ids, table);
  };
  switch (table.dtype) {
#define PYVT_RUN(name) \
  case DType::name:    \
    return run(&embedding_kernel<DType::name>);
    PYVT_CODE_FORMATS(PYVT_RUN)
    PYVT_RUN(kFP8_G128)
    PYVT_RUN(kFP8_G32)
#undef PYVT_RUN
    default:
      detail::fail(op, "weight: no kernel for ", dtype_name(table.dtype));
  }
}

}  // namespace pyvt::cuda
