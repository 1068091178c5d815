/* A C program on libpyvt_ops: normalises two rows, multiplies with a packed weight, makes an error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pyvt/c_api.h"

static pyvt_tensor matrix(void* data, const char* dtype, int64_t num_rows, int64_t num_columns) {
  pyvt_tensor tensor = {0};
  tensor.data = data;
  tensor.dtype = pyvt_dtype(dtype);
  tensor.rank = 2;
  tensor.shape[0] = num_rows;
  tensor.shape[1] = tensor.strides[0] = num_columns;
  tensor.strides[1] = 1;
  return tensor;
}

static void check(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s; last error: %s\n", what, pyvt_last_error());
  exit(1);
}

int main(void) {
  float x_data[8] = {1, 1, 1, 1, 2, 2, 2, 2}, ones[4] = {1, 1, 1, 1}, y_data[8], z_data[6];
  float w_data[12] = {1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1};
  pyvt_tensor x = matrix(x_data, "f32", 2, 4), y = matrix(y_data, "f32", 2, 4);
  pyvt_tensor z = matrix(z_data, "f32", 2, 3), w = matrix(w_data, "f32", 3, 4);
  pyvt_tensor norm = matrix(ones, "f32", 1, 4);
  norm.rank = 1;
  norm.shape[0] = 4;
  norm.strides[0] = 1;

  check(pyvt_abi_version() == PYVT_ABI_VERSION, "another library");
  check(pyvt_rms_norm(&y, &x, &norm, 0.0) == PYVT_OK, "rms_norm failed");
  check(fabsf(y_data[0] - 1) < 1e-6f && fabsf(y_data[7] - 1) < 1e-6f, "rms_norm is wrong");

  int64_t num_bytes = pyvt_packed_bytes(w.dtype, 3, 4);
  void* tiles = malloc((size_t)num_bytes);
  check(pyvt_pack_tiles(tiles, &w) == PYVT_OK, "pack_tiles failed");
  w.data = tiles;
  check(pyvt_packed_linear(&z, &x, &w, NULL, "none") == PYVT_OK, "packed_linear failed");
  check(z_data[0] == 1 && z_data[2] == 4 && z_data[5] == 8, "packed_linear is wrong");
  free(tiles);

  x.dtype = pyvt_dtype("i64");
  check(pyvt_rms_norm(&y, &x, &norm, 0.0) == PYVT_INVALID, "a wrong dtype was taken");
  check(strstr(pyvt_last_error(), "rms_norm") != NULL, "the error does not name its op");
  printf("libpyvt_ops runs from C on %s\n", pyvt_isa());
  return 0;
}
