// cuBLASLt of the emulator; see cublas_lt.h. What the library keeps opaque holds structs of ours.
#include "cuda/emu/cublas_lt.h"

#include <cstring>

#include "pyvt/half.h"

namespace pyvt::emu {
namespace {

namespace lt = cuda::lt;

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;

  uint64_t item() const { return type == lt::kF32 ? 4 : 2; }
};
struct Operation {
  int compute, scale;
  int32_t is_transposed;
  uint32_t epilogue;
  const void* bias;
};
struct Preference {
  size_t workspace_bytes;
  uint32_t reductions;
  uint32_t alignments[4];
};
// What a heuristic was asked for; a product of anything else is an invalid value.
struct Algorithm {
  uint64_t m, n, k;
  int type;
  uint32_t epilogue;
  bool is_split;  // two parts of each sum, rounded before they are added
  uint32_t alignments[4];
};

template <typename T, typename Opaque>
T read(const Opaque* from) {
  static_assert(sizeof(T) <= sizeof(Opaque), "it fits");
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T, typename Opaque>
void write(Opaque* to, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque), "it fits");
  std::memcpy(to, &value, sizeof(T));
}

constexpr uint64_t kHandle = 13;
constexpr size_t kWorkspaceBytes = 1024;

bool is_handle(lt::Handle handle) { return handle == reinterpret_cast<lt::Handle>(kHandle); }

lt::Status create(lt::Handle* handle) {
  *handle = reinterpret_cast<lt::Handle>(kHandle);
  return lt::kSuccess;
}

const char* text_of(lt::Status status) {
  return status == lt::kInvalidValue ? "an unsupported value or parameter was passed" : "failed";
}

lt::Status init_layout(lt::Layout* to, size_t size, int type, uint64_t rows, uint64_t columns,
                       int64_t stride) {
  const bool is_known = type == lt::kF32 || type == lt::kF16 || type == lt::kBF16;
  if (size != sizeof(*to) || !is_known || rows == 0 || columns == 0) return lt::kInvalidValue;
  if (columns > 1 && stride < static_cast<int64_t>(rows)) return lt::kInvalidValue;
  write(to, Layout{type, rows, columns, stride});
  return lt::kSuccess;
}

lt::Status init_operation(lt::Operation* to, size_t size, int compute, int scale) {
  if (size != sizeof(*to) || compute != lt::kComputeF32 || scale != lt::kF32) {
    return lt::kInvalidValue;
  }
  write(to, Operation{compute, scale, 0, 1, nullptr});
  return lt::kSuccess;
}

// Copies an attribute of the given size into its field.
template <typename T>
lt::Status take(T* field, const void* value, size_t size) {
  if (size != sizeof(T)) return lt::kInvalidValue;
  std::memcpy(field, value, size);
  return lt::kSuccess;
}

lt::Status set_operation(lt::Operation* to, int attribute, const void* value, size_t size) {
  auto operation = read<Operation>(to);
  lt::Status status = lt::kInvalidValue;
  if (attribute == lt::kTransA) status = take(&operation.is_transposed, value, size);
  if (attribute == lt::kEpilogue) status = take(&operation.epilogue, value, size);
  if (attribute == lt::kBiasPointer) status = take(&operation.bias, value, size);
  write(to, operation);
  return status;
}

lt::Status init_preference(lt::Preference* to, size_t size) {
  if (size != sizeof(*to)) return lt::kInvalidValue;
  write(to, Preference{0, lt::kAllReductions, {256, 256, 256, 256}});
  return lt::kSuccess;
}

lt::Status set_preference(lt::Preference* to, int attribute, const void* value, size_t size) {
  auto preference = read<Preference>(to);
  lt::Status status = lt::kInvalidValue;
  const int operand = attribute - lt::kMinAlignmentA;
  if (attribute == lt::kMaxWorkspaceBytes) status = take(&preference.workspace_bytes, value, size);
  if (attribute == lt::kReductionSchemes) status = take(&preference.reductions, value, size);
  if (operand >= 0 && operand < 4) status = take(&preference.alignments[operand], value, size);
  write(to, preference);
  return status;
}

bool is_narrow_at_odd_places(const Layout& layout, uint32_t alignment) {
  return layout.item() < 4 && (alignment < 4 || (layout.columns > 1 && layout.stride % 2 != 0));
}

lt::Status find(lt::Handle handle, lt::Operation* operation, lt::Layout* a, lt::Layout* b,
                lt::Layout* c, lt::Layout* d, lt::Preference* preference, int num_asked,
                lt::Heuristic* found, int* num_found) {
  *num_found = 0;
  const auto how = read<Operation>(operation);
  const auto limits = read<Preference>(preference);
  const auto left = read<Layout>(a), right = read<Layout>(b), sum = read<Layout>(c),
             out = read<Layout>(d);
  const bool is_one_type =
      left.type == right.type && left.type == sum.type && left.type == out.type;
  const bool fits = left.rows == right.rows && left.columns == out.rows &&
                    right.columns == out.columns && sum.rows == out.rows &&
                    sum.columns == out.columns;
  if (!is_handle(handle) || num_asked < 1 || !is_one_type || !fits) return lt::kInvalidValue;
  if (how.is_transposed != lt::kTransposed) return lt::kInvalidValue;
  if (how.epilogue == lt::kEpilogueBias && how.bias == nullptr) return lt::kInvalidValue;
  if (limits.workspace_bytes < kWorkspaceBytes) return lt::kNotSupported;
  const Layout layouts[] = {left, right, sum, out};
  const bool is_split = limits.reductions != lt::kReductionInF32;
  Algorithm algorithm{out.rows, out.columns, left.rows, left.type, how.epilogue, is_split, {}};
  for (int i = 0; i < 4; ++i) {
    algorithm.alignments[i] = limits.alignments[i];
    if (is_narrow_at_odd_places(layouts[i], limits.alignments[i])) return lt::kNotSupported;
  }
  *found = {};
  write(&found->algorithm, algorithm);
  found->workspace_bytes = kWorkspaceBytes;
  *num_found = 1;
  return lt::kSuccess;
}

float get(const void* data, int type, uint64_t at) {
  if (type == lt::kBF16) return bf16_to_f32(static_cast<const uint16_t*>(data)[at]);
  if (type == lt::kF16) return f16_to_f32(static_cast<const uint16_t*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

void set(void* data, int type, uint64_t at, float value) {
  if (type == lt::kBF16) {
    static_cast<uint16_t*>(data)[at] = f32_to_bf16(value);
  } else if (type == lt::kF16) {
    static_cast<uint16_t*>(data)[at] = f32_to_f16(value);
  } else {
    static_cast<float*>(data)[at] = value;
  }
}

float rounded(int type, float value) {
  float place = 0.0f;
  set(&place, type, 0, value);
  return get(&place, type, 0);
}

lt::Status product(lt::Handle handle, lt::Operation* operation, const void* alpha, const void* a,
                   lt::Layout* a_layout, const void* b, lt::Layout* b_layout, const void* beta,
                   const void* c, lt::Layout*, void* d, lt::Layout* d_layout,
                   const lt::Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                   cudaStream_t stream) {
  const auto how = read<Operation>(operation);
  const auto left = read<Layout>(a_layout), right = read<Layout>(b_layout),
             out = read<Layout>(d_layout);
  const auto found = read<Algorithm>(algorithm);
  const bool is_found_for_it = found.m == out.rows && found.n == out.columns &&
                               found.k == left.rows && found.type == left.type &&
                               found.epilogue == how.epilogue;
  const bool is_plain =
      *static_cast<const float*>(alpha) == 1.0f && *static_cast<const float*>(beta) == 0.0f;
  if (!is_handle(handle) || !is_found_for_it || !is_plain) return lt::kInvalidValue;
  if (workspace == nullptr || workspace_bytes < kWorkspaceBytes) return lt::kInvalidValue;
  const void* operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(operands[i]) % found.alignments[i] != 0) {
      return lt::kInvalidValue;
    }
  }
  enqueue(stream, [=] {
    std::memset(workspace, 0xff, kWorkspaceBytes);
    const auto stride = [](const Layout& layout) { return static_cast<uint64_t>(layout.stride); };
    for (uint64_t j = 0; j < out.columns; ++j) {
      for (uint64_t i = 0; i < out.rows; ++i) {
        float sum = 0.0f, first = 0.0f;
        for (uint64_t k = 0; k < left.rows; ++k) {
          if (found.is_split && k == left.rows / 2) {
            first = rounded(out.type, sum);
            sum = 0.0f;
          }
          sum += get(a, left.type, i * stride(left) + k) * get(b, left.type, j * stride(right) + k);
        }
        if (found.is_split) sum = first + rounded(out.type, sum);
        if (how.epilogue == lt::kEpilogueBias) sum += get(how.bias, out.type, i);
        set(d, out.type, j * stride(out) + i, sum);
      }
    }
  });
  return lt::kSuccess;
}

}  // namespace

cuda::lt::Api cublas_lt() {
  return {&create,          &text_of,        &init_layout, &init_operation, &set_operation,
          &init_preference, &set_preference, &find,        &product};
}

}  // namespace pyvt::emu
