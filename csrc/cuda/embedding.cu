// embedding: rows of a table by id.
//
// contract  out[t] = weight[input_ids[t]], rounded once to the dtype of out
// layout    rows of any stride; ids lie in the table, which the caller has checked
// work      a block per token
// estimate  bf16 row of H: 2·H bytes read, 4·H written in f32; latency in a decode step, 2 us;
//           1 operation an element
// launches  1
#include "cuda/device/index.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kPerThread = 8;

// Logits that are not finite gave no token, −1; a draft behind it is thrown away later.
PYVT_DEVICE int64_t row_of(int64_t id) { return id < 0 ? 0 : id; }

__global__ void __launch_bounds__(kMaxThreads) embedding_kernel(Rows out, Index ids, Rows weight) {
  const Row to = out.at(blockIdx.x), from = weight.at(row_of(ids[blockIdx.x]));
  for (int64_t i = threadIdx.x; i < out.length; i += blockDim.x) to.set(i, from.get(i));
}

}  // namespace

void embedding(Context& context, TensorView out, TensorView input_ids, TensorView weight) {
  const char* op = "embedding";
  const Rows to = rows_of(op, "out", out), table = rows_of(op, "weight", weight);
  PYVT_CHECK(op, table.length == to.length, "weight: expected rows of ", to.length);
  const Index ids = index_of(op, "input_ids", input_ids, to.num_rows);
  if (to.length == 0) return;
  context.launch(op, &embedding_kernel, dim3(blocks_for(to.num_rows, 1)),
                 dim3(threads_for(to.length, kPerThread, kMaxThreads)), 0, to, ids, table);
}

}  // namespace pyvt::cuda
