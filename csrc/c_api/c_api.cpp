// The functions of c_api.h: arguments become those of the launchers, exceptions become codes.
#include "pyvt/c_api.h"

#include <exception>
#include <new>
#include <type_traits>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace pyvt {
namespace {

static_assert(kMaxRank == PYVT_MAX_RANK, "the ranks of both tensors differ");

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t block_cols, block_bytes;
};

constexpr DTypeRow kDTypes[] = {
#define PYVT_ROW(name, text, number, block, bytes) {DType::name, text, block, bytes},
    PYVT_DTYPES(PYVT_ROW)
#undef PYVT_ROW
};

const DTypeRow& row_of(int32_t dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (static_cast<int32_t>(row.dtype) == dtype) return row;
  }
  detail::fail("c_api", "dtype: expected a number of pyvt_dtype, got ", dtype);
}

TensorView view_of(const pyvt_tensor* given) {
  TensorView view;
  if (given == nullptr) return view;
  PYVT_CHECK("c_api", given->rank >= 0 && given->rank <= kMaxRank, "rank: expected 0 to ", kMaxRank,
             ", got ", given->rank);
  view.dtype = row_of(given->dtype).dtype;
  view.data = given->data;
  view.rank = given->rank;
  view.is_writeable = true;
  int64_t size = 1;
  for (int i = 0; i < given->rank; ++i) {
    PYVT_CHECK("c_api", given->shape[i] >= 0, "shape: expected dims of at least 0, got ",
               given->shape[i]);
    PYVT_CHECK("c_api",
               given->shape[i] == 0 || !__builtin_mul_overflow(size, given->shape[i], &size),
               "shape: expected fewer than 2^63 elements");
    view.shape[i] = given->shape[i];
    view.stride[i] = given->strides[i];
  }
  PYVT_CHECK("c_api", view.data != nullptr || view.size() == 0, "data: expected memory, got none");
  return view;
}

// Rows of bytes of a weight [N, K]; floats are blocks of one element.
cpu::BlockMatrix blocks_of(const pyvt_tensor* weight) {
  PYVT_CHECK("c_api", weight != nullptr && weight->rank == 2, "weight: expected two dims");
  const DTypeRow& row = row_of(weight->dtype);
  const int64_t num_rows = weight->shape[0], num_cols = weight->shape[1];
  PYVT_CHECK("c_api", num_rows >= 0 && num_cols >= 0 && num_cols % row.block_cols == 0,
             "weight: expected rows of whole blocks of ", row.block_cols, ", got ", num_cols);
  pyvt_tensor bytes = {};
  bytes.data = weight->data;
  bytes.dtype = static_cast<int32_t>(DType::kU8);
  bytes.rank = 2;
  bytes.shape[0] = num_rows;
  bytes.shape[1] = bytes.strides[0] = num_cols / row.block_cols * row.block_bytes;
  bytes.strides[1] = 1;
  return {view_of(&bytes), row.dtype, num_cols};
}

cpu::PackedMatrix tiles_of(const pyvt_tensor* weight) {
  const cpu::BlockMatrix rows = blocks_of(weight);
  const int64_t num_rows = rows.blocks.shape[0];
  const int64_t num_bytes = cpu::packed_bytes(num_rows, weight->dtype, rows.num_cols);
  PYVT_CHECK("c_api", num_bytes >= 0, "weight: no tiles of ", dtype_name(rows.dtype));
  return {static_cast<const uint8_t*>(weight->data), rows.dtype, num_rows, rows.num_cols,
          num_bytes};
}

cpu::ExpertStack experts_of(const pyvt_tensor* stack) {
  PYVT_CHECK("c_api", stack != nullptr && stack->rank == 3 && stack->shape[0] >= 0,
             "experts: expected three dims");
  pyvt_tensor matrix = *stack;
  matrix.rank = 2;
  for (int i = 0; i < 2; ++i) matrix.shape[i] = stack->shape[i + 1];
  cpu::ExpertStack experts;
  experts.tiles = tiles_of(&matrix);
  experts.num_experts = stack->shape[0];
  PYVT_CHECK(
      "c_api",
      !__builtin_mul_overflow(experts.tiles.num_bytes, stack->shape[0], &experts.tiles.num_bytes),
      "shape: expected fewer than 2^63 bytes");
  return experts;
}

// An argument of C as the launcher's type.
template <typename To, typename From>
To given(From from) {
  if constexpr (std::is_same_v<To, TensorView>) {
    return view_of(from);
  } else if constexpr (std::is_same_v<To, cpu::BlockMatrix>) {
    return blocks_of(from);
  } else if constexpr (std::is_same_v<To, cpu::PackedMatrix>) {
    return tiles_of(from);
  } else if constexpr (std::is_same_v<To, cpu::ExpertStack>) {
    return experts_of(from);
  } else if constexpr (std::is_same_v<To, std::string>) {
    PYVT_CHECK("c_api", from != nullptr, "text: expected a string, got null");
    return from;
  } else if constexpr (std::is_pointer_v<From>) {
    return from == nullptr ? To() : To(*from);
  } else {
    return from;
  }
}

template <typename F>
pyvt_status guarded(F&& f) {
  try {
    f();
    return PYVT_OK;
  } catch (const Error& error) {
    last_error() = error.what();
    return PYVT_INVALID;
  } catch (const std::bad_alloc&) {
    last_error() = "out of memory";
    return PYVT_NO_MEMORY;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return PYVT_FAILED;
  }
}

template <typename... To, typename... From>
pyvt_status run(void (*op)(To...), From... from) {
  return guarded([&] { op(given<To>(from)...); });
}

}  // namespace
}  // namespace pyvt

#define PYVT_WITH_OP(op, ...) pyvt::run(&pyvt::cpu::op, __VA_ARGS__)
#define PYVT_UNPACKED(...) __VA_ARGS__
#define PYVT_DEFINE(op, dtypes, parameters, names) \
  pyvt_status pyvt_##op parameters { return PYVT_WITH_OP(op, PYVT_UNPACKED names); }
CPU_OPS(PYVT_DEFINE)
#undef PYVT_DEFINE

int32_t pyvt_dtype(const char* name) {
  for (const pyvt::DTypeRow& row : pyvt::kDTypes) {
    if (name != nullptr && std::string(row.name) == name) return static_cast<int32_t>(row.dtype);
  }
  return -1;
}

const char* pyvt_last_error(void) { return pyvt::last_error().c_str(); }

int64_t pyvt_packed_bytes(int32_t dtype, int64_t num_rows, int64_t num_columns) {
  int64_t num_bytes = -1;
  pyvt::guarded([&] { num_bytes = pyvt::cpu::packed_bytes(num_rows, dtype, num_columns); });
  return num_bytes;
}

pyvt_status pyvt_pack_tiles(void* data, const pyvt_tensor* weight) {
  return pyvt::guarded([&] {
    const pyvt::cpu::BlockMatrix rows = pyvt::blocks_of(weight);
    const int64_t num_bytes = pyvt::tiles_of(weight).num_bytes;
    pyvt::TensorView to;
    to.data = data;
    to.dtype = pyvt::DType::kU8;
    to.rank = 1;
    to.shape[0] = num_bytes;
    to.stride[0] = 1;
    to.is_writeable = true;
    PYVT_CHECK("c_api", data != nullptr || num_bytes == 0, "data: expected memory, got none");
    pyvt::cpu::pack_tiles(to, {rows.blocks}, weight->dtype, rows.num_cols);
  });
}

const char* pyvt_isa(void) {
  const char* name = nullptr;
  pyvt::guarded([&] { name = pyvt::cpu::kernels().isa; });
  return name;
}

int32_t pyvt_num_threads(void) { return pyvt::cpu::num_threads(); }
void pyvt_set_num_threads(int32_t count) { pyvt::cpu::set_num_threads(count); }

int32_t pyvt_abi_version(void) { return PYVT_ABI_VERSION; }
