// Gated DeltaNet: gdn_gate, gated_delta_rule, gated_delta_net.
//
// contract  the references of pyvt/ops/gated_delta.py; state and sums in f32, one rounding
// layout    states [B, Hv, Dk, Dv], columns of a row side by side, read and written in place
//           through slots; heads, gates and out of any stride, as views of a wider row are
// work      a block walks over the tokens of a request with columns of a head's state in registers:
//           four threads a column (eight where keys are above 128), each a part of its rows.
//           Queries, keys (normed here) and values of 8 tokens at a time in shared memory; between
//           them no barrier. Short requests: a block has all columns of a head and norms its output
//           too; else 32 columns, for more blocks, with f32 outputs that rms_norm_gated takes
// estimate  a decode token reads and writes Hv·Dk·Dv·4 bytes of state a layer: Qwen3.6-35B-A3B, 32
//           heads of 128 × 128, 4.2 MB, 1 us at 4.3 TB/s, 30 layers at B = 64 1.9 ms. Prefill: 8
//           operations an element of state and token, 4.2 MFLOP; 128 blocks take about 200 cycles
//           a token, 0.12 us
// launches  1; gated_delta_net of long requests 2. Where requests may have 32 tokens those go by
//           chunks, 2 launches more (gated_delta_chunks.cu)
// source    Yang et al. 2024, arXiv:2412.06464
#include "cuda/device/reduce.cuh"
#include "cuda/gated_delta.h"
#include "cuda/ops.h"

namespace pyvt::cuda {
namespace {

constexpr int kColumns = 32;  // of a block of long requests
constexpr int kTokens = 8;    // staged at a time
constexpr int kMaxThreads = 512;
constexpr int kMaxColumns = 128;     // of a block
constexpr int kMaxKeysOfFour = 128;  // size of a key that four threads have
constexpr int kGateThreads = 128;

// kRule has g and beta and unit keys; kNet makes them; kNormed norms its output too.
enum class Delta { kRule, kNet, kNormed };

__global__ void __launch_bounds__(kGateThreads)
    gate_kernel(Rows g, Rows beta, Rows a, Rows b, PerHead rate, PerHead bias) {
  const int64_t token = blockIdx.x;
  const Row to_g = g.at(token), to_beta = beta.at(token), of_a = a.at(token), of_b = b.at(token);
  for (int64_t h = threadIdx.x; h < a.length; h += blockDim.x) {
    to_g.set(h, log_decay(of_a.get(h), rate.get(h), bias.get(h)));
    to_beta.set(h, step_size(of_b.get(h)));
  }
}

// What the threads of a block share of kTokens tokens. Rows of a thread lie side by side, apart
// from those of the others by a multiple of the banks and four more.
template <int kRows, int kParts>
struct Tokens {
  static constexpr int kStride = kRows + 4;
  float q[kTokens][kParts * kStride];
  float k[kTokens][kParts * kStride];
  float v[kTokens][kMaxColumns];
  float decay[kTokens], beta[kTokens];
};

// The sum over the threads of a column, in each.
template <int kParts>
PYVT_DEVICE float part_sum(float value) {
#pragma unroll
  for (int bits = 1; bits < kParts; bits *= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

// A head of a token by a warp, normed where it is to be; rows that are not there are zero.
template <int kRows, int kParts, bool kIsNormed>
PYVT_DEVICE void stage_head(const Heads& heads, int token, int head, float scale, float* to) {
  const int lane = threadIdx.x % kWarp, size = static_cast<int>(heads.head_dim);
  float square = 0.0f;
  for (int i = lane; i < kParts * kRows; i += kWarp) {
    const float value = i < size ? heads.get(token, head, i) : 0.0f;
    to[i / kRows * Tokens<kRows, kParts>::kStride + i % kRows] = value;
    square += value * value;
  }
  const float factor = kIsNormed ? scale / sqrtf(warp_sum(square) + kL2Eps) : scale;
  for (int i = lane; i < kParts * kRows; i += kWarp) {
    to[i / kRows * Tokens<kRows, kParts>::kStride + i % kRows] *= factor;
  }
}

template <int kRows, int kParts, Delta kDelta>
PYVT_DEVICE void stage(const DeltaCall& c, int first, int count, int head, int key_head,
                       int first_column, int num_columns, Tokens<kRows, kParts>* to) {
  constexpr bool kIsNet = kDelta != Delta::kRule;
  const int warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  for (int i = warp; i < 2 * count; i += num_warps) {
    const int t = i / 2;
    if (i % 2 == 0) {
      stage_head<kRows, kParts, kIsNet>(c.q, first + t, key_head, c.scale, to->q[t]);
    } else {
      stage_head<kRows, kParts, kIsNet>(c.k, first + t, key_head, 1.0f, to->k[t]);
    }
  }
  for (int t = 0; t < count; ++t) {
    for (int i = threadIdx.x; i < num_columns; i += blockDim.x) {
      to->v[t][i] = c.v.get(first + t, head, first_column + i);
    }
  }
  for (int t = threadIdx.x; t < count; t += blockDim.x) {
    const float a = c.a.get(first + t, head), b = c.b.get(first + t, head);
    to->decay[t] = expf(kIsNet ? log_decay(a, c.decay_rate.get(head), c.dt_bias.get(head)) : a);
    to->beta[t] = kIsNet ? step_size(b) : b;
  }
}

// Moves a column's part of the state on by a token and returns the token's output.
template <int kRows, int kParts>
PYVT_DEVICE float advance(const Tokens<kRows, kParts>& tokens, int t, int part, float v,
                          float (&state)[kRows]) {
  const float* k = &tokens.k[t][part * Tokens<kRows, kParts>::kStride];
  const float* q = &tokens.q[t][part * Tokens<kRows, kParts>::kStride];
  const float decay = tokens.decay[t];
  float read = 0.0f, out = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const float4 of_k = *reinterpret_cast<const float4*>(k + i);
    state[i] *= decay;
    state[i + 1] *= decay;
    state[i + 2] *= decay;
    state[i + 3] *= decay;
    read +=
        state[i] * of_k.x + state[i + 1] * of_k.y + state[i + 2] * of_k.z + state[i + 3] * of_k.w;
  }
  const float delta = tokens.beta[t] * (v - part_sum<kParts>(read));
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const float4 of_k = *reinterpret_cast<const float4*>(k + i);
    const float4 of_q = *reinterpret_cast<const float4*>(q + i);
    state[i] += of_k.x * delta;
    state[i + 1] += of_k.y * delta;
    state[i + 2] += of_k.z * delta;
    state[i + 3] += of_k.w * delta;
    out +=
        state[i] * of_q.x + state[i + 1] * of_q.y + state[i + 2] * of_q.z + state[i + 3] * of_q.w;
  }
  return part_sum<kParts>(out);
}

// The place of a thread: a column of a head of a request, and which of its rows.
struct Place {
  int request, head, column, part;
  bool is_in;
};

template <int kRows>
PYVT_DEVICE void read_state(const DeltaCall& c, const Place& at, float (&state)[kRows]) {
  const int slot = c.slots.initial_slots[at.request];
  const int rest = static_cast<int>(c.k.head_dim) - at.part * kRows;
  const float* from = c.states.at(slot < 0 ? 0 : slot, at.head, at.part * kRows, at.column);
  const bool is_in = slot >= 0 && at.is_in;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i] = is_in && i < rest ? *from : 0.0f;
    from += c.states.row_stride;
  }
}

template <int kRows>
PYVT_DEVICE void write_state(const DeltaCall& c, const Place& at, int slot,
                             const float (&state)[kRows]) {
  const int rest = static_cast<int>(c.k.head_dim) - at.part * kRows;
  float* to = c.states.at(slot, at.head, at.part * kRows, at.column);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (at.is_in && i < rest) *to = state[i];
    to += c.states.row_stride;
  }
}

template <int kRows, int kParts, Delta kDelta>
__global__ void __launch_bounds__(kMaxThreads, 1) delta_kernel(DeltaCall c) {
  PYVT_SHARED(tokens, Tokens<kRows, kParts>);
  PYVT_SHARED(parts, float[kMaxThreads / kWarp]);
  const int num_columns = blockDim.x / kParts, size = static_cast<int>(c.v.head_dim);
  const int first_column = blockIdx.x * num_columns;
  Place at = {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
              first_column + static_cast<int>(threadIdx.x) / kParts,
              static_cast<int>(threadIdx.x) % kParts, false};
  at.is_in = at.column < size;
  const int key_head = c.key_head(at.head);
  const int begin = c.slots.cu_seqlens_q[at.request], end = c.slots.cu_seqlens_q[at.request + 1];
  if (begin == end || end - begin > c.most_tokens) return;
  float state[kRows];
  read_state(c, at, state);
  const int rest = size - first_column, staged = rest < num_columns ? rest : num_columns;
  for (int first = begin; first < end; first += kTokens) {
    const int count = end - first < kTokens ? end - first : kTokens;
    if (first > begin) __syncthreads();
    stage<kRows, kParts, kDelta>(c, first, count, at.head, key_head, first_column, staged, &tokens);
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const float v = at.is_in ? tokens.v[t][at.column - first_column] : 0.0f;
      float out = advance<kRows, kParts>(tokens, t, at.part, v, state);
      const bool is_writer = at.is_in && at.part == 0;
      if constexpr (kDelta == Delta::kNormed) {
        const float square = block_sum(is_writer ? out * out : 0.0f, parts);
        out *= 1.0f / sqrtf(square / static_cast<float>(size) + c.eps);
        if (is_writer) {
          const float z = c.z.get(first + t, at.head, at.column);
          out *= c.weight.get(at.column) * (z / (1.0f + expf(-z)));
        }
      }
      if (is_writer) c.out.set(first + t, at.head, at.column, out);
      const int slot = c.slots.state_slots[first + t];
      if (slot >= 0) write_state(c, at, slot, state);
    }
  }
}

template <int kRows, int kParts, Delta kDelta>
void launch_sized(Context& context, const char* op, const DeltaCall& c, int columns) {
  const dim3 grid(blocks_for(c.v.head_dim, columns), static_cast<unsigned>(c.v.num_heads),
                  static_cast<unsigned>(c.slots.num_requests));
  context.launch(op, &delta_kernel<kRows, kParts, kDelta>, grid,
                 dim3(static_cast<unsigned>(columns * kParts)), 0, c);
}

// Whether a block can have all columns of a head, and registers enough to norm them.
bool has_one_block(const DeltaCall& c) {
  return c.v.head_dim <= kMaxColumns && c.k.head_dim <= kMaxKeysOfFour;
}

template <Delta kDelta>
void launch(Context& context, const char* op, const DeltaCall& c) {
  const auto size = static_cast<int>(c.v.head_dim), keys = static_cast<int>(c.k.head_dim);
  const int columns = kDelta == Delta::kNormed ? (size + 7) / 8 * 8 : kColumns;
  PYVT_CHECK(op, keys <= 2 * kMaxKeysOfFour, "k: expected keys of at most ", 2 * kMaxKeysOfFour,
             ", got ", keys);
  if (keys <= 32) return launch_sized<8, 4, kDelta>(context, op, c, columns);
  if (keys <= kMaxKeysOfFour) return launch_sized<32, 4, kDelta>(context, op, c, columns);
  if constexpr (kDelta != Delta::kNormed) launch_sized<32, 8, kDelta>(context, op, c, columns);
}

// Long requests by chunks where they can, the others token by token.
template <Delta kDelta>
void launch_long(Context& context, const char* op, DeltaCall c) {
  if (takes_chunks(context, c)) {
    launch_chunks(context, op, c);
    if (c.slots.num_requests == 1) return;
    c.most_tokens = kLeastOfChunks - 1;
  }
  launch<kDelta>(context, op, c);
}

Gates gates_of(const char* op, const char* name, const TensorView& x, const TensorView& v) {
  PYVT_CHECK(
      op, x.rank == 2 && is_float(x.dtype) && x.shape[0] == v.shape[0] && x.shape[1] == v.shape[1],
      name, ": expected floats [", v.shape[0], ", ", v.shape[1], "]");
  return {x.data, x.dtype, x.stride[0], x.stride[1]};
}

PerHead vector_of(const char* op, const char* name, const TensorView& x, int64_t size) {
  PYVT_CHECK(op, x.rank == 1 && x.shape[0] == size && is_float(x.dtype), name,
             ": expected floats [", size, "]");
  return {x.data, x.dtype, x.stride[0]};
}

// The heads, the state and the slots of both ops.
DeltaCall call_of(const char* op, const TensorView& out, const TensorView& state,
                  const TensorView& q, const TensorView& k, const TensorView& v, const Slots& slots,
                  const std::string& head_map) {
  DeltaCall c;
  c.q = heads_of(op, "q", q);
  c.k = heads_of(op, "k", k);
  c.v = heads_of(op, "v", v);
  c.out = heads_of(op, "out", out);
  PYVT_CHECK(op, head_map == "tiled" || head_map == "grouped",
             "head_map: expected grouped or tiled, got ", head_map);
  PYVT_CHECK(op,
             q.shape[1] == k.shape[1] && q.shape[2] == k.shape[2] && k.shape[1] > 0 &&
                 v.shape[1] % k.shape[1] == 0 && q.shape[0] == v.shape[0] &&
                 k.shape[0] == v.shape[0],
             "q, k, v: expected heads that fit");
  PYVT_CHECK(op,
             out.shape[0] == v.shape[0] && out.shape[1] == v.shape[1] && out.shape[2] == v.shape[2],
             "out: expected the shape of v");
  PYVT_CHECK(op,
             state.rank == 4 && state.dtype == DType::kF32 && state.shape[1] == v.shape[1] &&
                 state.shape[2] == k.shape[2] && state.shape[3] == v.shape[2] &&
                 (state.shape[3] <= 1 || state.stride[3] == 1),
             "state: expected f32 [B, ", v.shape[1], ", ", k.shape[2], ", ", v.shape[2], "]");
  c.states = {state.as<float>(), state.stride[0], state.stride[1], state.stride[2]};
  c.slots = slots;
  c.is_tiled = head_map == "tiled";
  return c;
}

// f32 side by side.
TensorView dense_view(void* data, const TensorView& like) {
  TensorView view = like;
  view.data = data;
  view.dtype = DType::kF32;
  view.is_writeable = true;
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.shape[i];
  }
  return view;
}

}  // namespace

void gdn_gate(Context& context, TensorView g, TensorView beta, TensorView a, TensorView b,
              TensorView decay_rate, TensorView dt_bias) {
  const char* op = "gdn_gate";
  const Rows from = rows_of(op, "a", a);
  if (from.length == 0) return;
  context.launch(op, &gate_kernel, dim3(blocks_for(from.num_rows, 1)),
                 dim3(threads_for(from.length, 1, kGateThreads)), 0, rows_like(op, "g", g, from),
                 rows_like(op, "beta", beta, from), from, rows_like(op, "b", b, from),
                 vector_of(op, "decay_rate", decay_rate, from.length),
                 vector_of(op, "dt_bias", dt_bias, from.length));
}

void gated_delta_rule(Context& context, TensorView out, TensorView state, TensorView q,
                      TensorView k, TensorView v, TensorView g, TensorView beta,
                      TensorView cu_seqlens_q, TensorView initial_slots, TensorView state_slots,
                      double scale, std::string head_map) {
  const char* op = "gated_delta_rule";
  PYVT_CHECK(op, v.rank == 3, "v: expected [T, Hv, Dv]");
  const Slots slots = slots_of(op, cu_seqlens_q, initial_slots, state_slots, v.shape[0]);
  DeltaCall c = call_of(op, out, state, q, k, v, slots, head_map);
  c.a = gates_of(op, "g", g, v);
  c.b = gates_of(op, "beta", beta, v);
  c.scale = static_cast<float>(scale);
  if (v.size() > 0) launch_long<Delta::kRule>(context, op, c);
}

void gated_delta_net(Context& context, TensorView out, TensorView state, TensorView q, TensorView k,
                     TensorView v, TensorView z, TensorView a, TensorView b, TensorView decay_rate,
                     TensorView dt_bias, TensorView weight, TensorView cu_seqlens_q,
                     TensorView initial_slots, TensorView state_slots, double eps,
                     std::string head_map) {
  const char* op = "gated_delta_net";
  PYVT_CHECK(op, v.rank == 3, "v: expected [T, Hv, Dv]");
  const Slots slots = slots_of(op, cu_seqlens_q, initial_slots, state_slots, v.shape[0]);
  DeltaCall c = call_of(op, out, state, q, k, v, slots, head_map);
  c.z = heads_of(op, "z", z);
  PYVT_CHECK(op, z.shape[0] == v.shape[0] && z.shape[1] == v.shape[1] && z.shape[2] == v.shape[2],
             "z: expected the shape of v");
  c.a = gates_of(op, "a", a, v);
  c.b = gates_of(op, "b", b, v);
  c.decay_rate = vector_of(op, "decay_rate", decay_rate, v.shape[1]);
  c.dt_bias = vector_of(op, "dt_bias", dt_bias, v.shape[1]);
  c.weight = vector_of(op, "weight", weight, v.shape[2]);
  c.is_net = true;
  c.scale = 1.0f / sqrtf(static_cast<float>(q.shape[2]));
  c.eps = static_cast<float>(eps);
  if (v.size() == 0) return;
  if (has_short_requests(slots) && has_one_block(c)) {
    return launch<Delta::kNormed>(context, op, c);
  }
  const auto wide = context.take(static_cast<size_t>(v.size()) * sizeof(float));
  const TensorView outputs = dense_view(wide->data(), v);
  c.out = heads_of(op, "out", outputs);
  launch_long<Delta::kNet>(context, op, c);
  rms_norm_gated(context, out, outputs, z, weight, eps);
}

}  // namespace pyvt::cuda
