// Launcher of the rope family: tokens over threads.
#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/indices.h"
#include "cpu/thread_pool.h"

namespace pyvt::cpu {
namespace {

constexpr int64_t kGrainElements = 8192;

}  // namespace

void rotary_embedding(TensorView q, TensorView k, TensorView positions, TensorView cos_sin) {
  const char* op = "rotary_embedding";
  const Indices where = indices_of(op, "positions", positions);
  const Rows table = rows_of(op, "cos_sin", cos_sin);
  PYVT_CHECK(op, cos_sin.rank == 2 && table.length % 2 == 0, "cos_sin: expected dims [P, even R]");
  check_range(op, "positions", where, 0, table.num_rows);
  for (const TensorView* x : {&q, &k}) {
    PYVT_CHECK(op,
               x->rank == 3 && x->shape[0] == where.size && x->is_dense(1) &&
                   (x->shape[1] == 0 || x->shape[2] >= table.length),
               "q, k: expected dims [T, heads, D] with a dense last dim of at least R");
  }
  PYVT_CHECK(op, q.dtype == k.dtype, "k: expected the dtype of q");
  const auto kernel =
      kernels().rotate_head[float_index(op, q.dtype)][float_index(op, cos_sin.dtype)];
  const int64_t half = table.length / 2, item = item_bytes(q.dtype);
  const int64_t elements = (q.shape[1] + k.shape[1]) * table.length;
  parallel_for(where.size, kGrainElements / (elements + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const void* angles = table.row(where[t]);
      for (const TensorView* x : {&q, &k}) {
        char* head = static_cast<char*>(x->data) + t * x->stride[0] * item;
        for (int64_t n = 0; n < x->shape[1]; ++n, head += x->stride[1] * item) {
          kernel(head, angles, half);
        }
      }
    }
  });
}

}  // namespace pyvt::cpu
