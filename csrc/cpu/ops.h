// Every native op by the table in pyvt/op_list.h, and what prepares weights for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/packed_format.h"
#include "pyvt/op_list.h"
#include "pyvt/tensor_view.h"

namespace pyvt::cpu {

// What the words of the table mean to a launcher.
using pyvt_out = TensorView;  // written, perhaps read
using pyvt_in = TensorView;
using pyvt_tiles = PackedMatrix;
using pyvt_blocks = BlockMatrix;
using pyvt_experts = ExpertStack;
using pyvt_f64 = double;
using pyvt_i64 = int64_t;
using pyvt_opt_f64 = std::optional<double>;
using pyvt_opt_i64 = std::optional<int64_t>;
using pyvt_text = std::string;

#define PYVT_DECLARE_OP(op, dtypes, parameters, names) void op parameters;
CPU_OPS(PYVT_DECLARE_OP)
#undef PYVT_DECLARE_OP

// Lays the rows of `parts`, u8 [rows, bytes of a row] one below the other, as tiles of `num_cols`
// columns of the dtype with that number; `data` has their size. No op: nothing computes.
void pack_tiles(TensorView data, std::vector<TensorView> parts, int32_t dtype, int64_t num_cols);

// Bytes that `pack_tiles` needs; -1 for a dtype without a packer.
int64_t packed_bytes(int64_t num_rows, int32_t dtype, int64_t num_cols);

}  // namespace pyvt::cpu
