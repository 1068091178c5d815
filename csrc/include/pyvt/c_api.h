/* The C interface of libpyvt_ops.so: every native op as a function `pyvt_<op>`.
 *
 * A tensor is a strided array that the caller owns; nothing is kept after a call. A function
 * returns PYVT_OK or a code, and then pyvt_last_error() tells in words what was wrong; outputs may
 * have been written in part. Functions may be called from any thread; an op runs on the pool's
 * threads. The parameters of each op are those of its reference in pyvt/ops, outputs first
 * (op_list.h).
 */
#ifndef PYVT_C_API_H
#define PYVT_C_API_H

#include <stdint.h>

#include "pyvt/op_list.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PYVT_API __attribute__((visibility("default")))

/* Grows with a change that breaks callers. */
#define PYVT_ABI_VERSION 2
#define PYVT_MAX_RANK 6

typedef enum pyvt_status {
  PYVT_OK = 0,
  PYVT_INVALID = 1, /* an argument is not what the op expects */
  PYVT_NO_MEMORY = 2,
  PYVT_FAILED = 3 /* a fault of this library */
} pyvt_status;

/* `dtype` is the number that pyvt_dtype gives for a name. Strides count elements.
 * Weights have rank 2 and the shape [N, K] of the matrix, strides are not read:
 *   rows of blocks (pyvt_blocks): `data` holds N rows of blocks as in a GGUF file, one by one;
 *   tiles (pyvt_tiles): `data` is what pyvt_pack_tiles wrote.
 * A stack of the matrices of E experts (pyvt_experts) has rank 3 and the shape [E, N, K]: `data` is
 * the tiles of each matrix, as pyvt_pack_tiles wrote them, one matrix behind the other. */
typedef struct pyvt_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[PYVT_MAX_RANK];
  int64_t strides[PYVT_MAX_RANK];
} pyvt_tensor;

/* The words of op_list.h. A null pointer is an optional argument that is not given. */
typedef const pyvt_tensor* pyvt_out; /* its data is written, perhaps read */
typedef const pyvt_tensor* pyvt_in;
typedef const struct pyvt_tensor* pyvt_tiles;
typedef const struct pyvt_tensor* pyvt_blocks;
typedef const struct pyvt_tensor* pyvt_experts;
typedef double pyvt_f64;
typedef int64_t pyvt_i64;
typedef const double* pyvt_opt_f64;
typedef const int64_t* pyvt_opt_i64;
typedef const char* pyvt_text;

#define PYVT_DECLARE(op, dtypes, parameters, names) PYVT_API pyvt_status pyvt_##op parameters;
CPU_OPS(PYVT_DECLARE)
#undef PYVT_DECLARE

/* The number of a dtype such as "f32", "i64" or "q4_k"; -1 for an unknown name. */
PYVT_API int32_t pyvt_dtype(const char* name);

/* The text of this thread's last error; empty before the first one. Valid until the next call. */
PYVT_API const char* pyvt_last_error(void);

/* Bytes that the tiles of a weight [N, K] take; -1 where the dtype has none or K does not fit. */
PYVT_API int64_t pyvt_packed_bytes(int32_t dtype, int64_t num_rows, int64_t num_columns);

/* Lays a weight out in tiles for pyvt_packed_linear, into pyvt_packed_bytes bytes: a block format
 * from rows of blocks, f32, bf16 and f16 from dense rows. */
PYVT_API pyvt_status pyvt_pack_tiles(void* data, const pyvt_tensor* weight);

/* The level of the CPU that kernels run on: PYVT_CPU_ISA or the best. */
PYVT_API const char* pyvt_isa(void);

/* Threads of the pool; 0 sets what affinity and quota allow. */
PYVT_API int32_t pyvt_num_threads(void);
PYVT_API void pyvt_set_num_threads(int32_t count);

PYVT_API int32_t pyvt_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif
