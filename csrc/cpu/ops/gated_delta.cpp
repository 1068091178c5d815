// Launchers of the gated_delta family: value heads of each request over threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "cpu/kernel_table.h"
#include "cpu/ops.h"
#include "cpu/ops/state_slots.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"
#include "pyvt/half.h"

namespace pyvt::cpu {
namespace {

// Tokens of a run: their queries, keys and values and the state fit into a second-level cache.
constexpr int64_t kRun = 64;
// Rows of a head lie kilobytes apart, which no hardware foresees.
constexpr int64_t kTokensAhead = 4;
constexpr float kL2Eps = 1e-6f;
constexpr int64_t kGateGrain = 1024;
// Scratch: the caller's weight and vectors of heads in f32; of a thread: q and k, values, numbers
// of tokens, a state.
constexpr int kWeightSlot = 0, kHeadSlot = 5, kKeySlot = 1, kValueSlot = 2, kNumberSlot = 3,
              kStateSlot = 4;

bool has_dims(const TensorView& view, std::initializer_list<int64_t> dims) {
  return view.rank == static_cast<int>(dims.size()) &&
         std::equal(dims.begin(), dims.end(), view.shape);
}

char* at(const TensorView& view, int64_t offset) {
  return static_cast<char*>(view.data) + offset * item_bytes(view.dtype);
}

float float_at(const TensorView& view, int64_t offset) {
  const char* data = at(view, offset);
  if (view.dtype == DType::kF32) return *reinterpret_cast<const float*>(data);
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(data);
  return view.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

const char* row_at(const TensorView& view, int64_t token, int64_t head) {
  return at(view, token * view.stride[0] + head * view.stride[1]);
}

// For a token and head of a tensor [T, heads, D].
void prefetch_row(const TensorView& view, int64_t token, int64_t head) {
  const char* row = row_at(view, token, head);
  const int64_t num_bytes = view.shape[2] * item_bytes(view.dtype);
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(row + i);
}

// Reads `count` numbers that lie `stride` elements apart.
void read_floats(const TensorView& view, int64_t offset, int64_t stride, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = float_at(view, offset + i * stride);
}

// What gdn_gate reads; the vectors of heads are widened in the caller's scratch.
struct Gates {
  TensorView a, b;
  const float *rate, *bias;  // [Hv]
  int64_t num_heads;

  // g and beta of all heads of a token.
  void of_token(const KernelTable& table, int64_t token, float* g, float* beta) const {
    read_floats(a, token * a.stride[0], a.stride[1], num_heads, g);
    read_floats(b, token * b.stride[0], b.stride[1], num_heads, beta);
    table.delta_gates(g, beta, g, beta, rate, bias, num_heads);
  }

  // Those of up to kRun tokens of a head.
  void of_head(const KernelTable& table, int64_t head, int64_t first, int64_t count, float* g,
               float* beta) const {
    float rates[kRun], biases[kRun];
    std::fill(rates, rates + count, rate[head]);
    std::fill(biases, biases + count, bias[head]);
    read_floats(a, first * a.stride[0] + head * a.stride[1], a.stride[0], count, g);
    read_floats(b, first * b.stride[0] + head * b.stride[1], b.stride[0], count, beta);
    table.delta_gates(g, beta, g, beta, rates, biases, count);
  }
};

Gates gates_of(const char* op, const TensorView& a, const TensorView& b,
               const TensorView& decay_rate, const TensorView& dt_bias) {
  PYVT_CHECK(op, a.rank == 2, "a: expected dims [T, Hv]");
  PYVT_CHECK(op, has_dims(b, {a.shape[0], a.shape[1]}), "b: expected the shape of a");
  for (const TensorView* view : {&decay_rate, &dt_bias}) {
    PYVT_CHECK(op, has_dims(*view, {a.shape[1]}), "decay_rate, dt_bias: expected dims [Hv]");
  }
  for (const TensorView* view : {&a, &b, &decay_rate, &dt_bias}) float_index(op, view->dtype);
  const int64_t num_heads = a.shape[1];
  float* vectors = scratch<float>(kHeadSlot, 2 * num_heads);
  read_floats(decay_rate, 0, decay_rate.stride[0], num_heads, vectors);
  read_floats(dt_bias, 0, dt_bias.stride[0], num_heads, vectors + num_heads);
  return {a, b, vectors, vectors + num_heads, num_heads};
}

// What both rules read: the tensors of a token and head, and how many there are.
struct Heads {
  TensorView out, state, q, k, v;
  StateSlots slots;
  int64_t num_tokens, num_key_heads, num_heads, key_size, size;
  bool is_tiled;

  int64_t key_head(int64_t head) const {
    return is_tiled ? head % num_key_heads : head / (num_heads / num_key_heads);
  }
};

Heads heads_of(const char* op, const TensorView& out, const TensorView& state, const TensorView& q,
               const TensorView& k, const TensorView& v, const TensorView& cu_seqlens_q,
               const TensorView& initial_slots, const TensorView& state_slots,
               const std::string& head_map) {
  PYVT_CHECK(op, q.rank == 3 && v.rank == 3 && state.rank == 4,
             "q, v, state: expected 3, 3 and 4 dims");
  Heads heads{};
  heads.num_tokens = q.shape[0];
  heads.num_key_heads = q.shape[1];
  heads.key_size = q.shape[2];
  heads.num_heads = v.shape[1];
  heads.size = v.shape[2];
  PYVT_CHECK(op, heads.num_key_heads > 0 && heads.num_heads % heads.num_key_heads == 0,
             "v: expected Hv a multiple of Hk");
  PYVT_CHECK(op, has_dims(k, {heads.num_tokens, heads.num_key_heads, heads.key_size}),
             "k: expected the shape of q");
  for (const TensorView* view : {&v, &out}) {
    PYVT_CHECK(op, has_dims(*view, {heads.num_tokens, heads.num_heads, heads.size}),
               "v, out: expected dims [T, Hv, Dv]");
  }
  PYVT_CHECK(op,
             has_dims(state, {state.shape[0], heads.num_heads, heads.key_size, heads.size}) &&
                 state.dtype == DType::kF32,
             "state: expected dims [B, Hv, Dk, Dv] of f32");
  for (const TensorView* view : {&out, &state, &q, &k, &v}) {
    PYVT_CHECK(op, view->is_dense(1), "q, k, v, state, out: expected a dense last dim");
  }
  PYVT_CHECK(op, k.dtype == q.dtype && v.dtype == q.dtype && out.dtype == q.dtype,
             "k, v, out: expected the dtype of q");
  PYVT_CHECK(op, head_map == "grouped" || head_map == "tiled",
             "head_map: expected grouped or tiled, got ", head_map);
  heads.is_tiled = head_map == "tiled";
  heads.out = out;
  heads.state = state;
  heads.q = q;
  heads.k = k;
  heads.v = v;
  heads.slots = state_slots_of(op, cu_seqlens_q, initial_slots, state_slots, heads.num_tokens,
                               state.shape[0]);
  return heads;
}

// What makes one op of the family differ from the other.
struct Form {
  bool is_unit;  // queries and keys are scaled to length 1
  float scale;
};

// The memory of one thread.
struct Work {
  explicit Work(const Heads& heads)
      : q(scratch<float>(kKeySlot, 2 * kRun * heads.key_size)),
        k(q + kRun * heads.key_size),
        values(scratch<float>(kValueSlot, kRun * heads.size)),
        decays(scratch<float>(kNumberSlot, 3 * kRun)),
        betas(decays + kRun),
        dots(betas + kRun),
        state(scratch<float>(kStateSlot, heads.key_size * heads.size)) {}

  float *q, *k, *values, *decays, *betas, *dots, *state;
  float* kept[kRun];
};

class DeltaRule {
 public:
  DeltaRule(const char* op, const Heads& heads, const Form& form)
      : table_(kernels()),
        heads_(heads),
        form_(form),
        widen_(table_.cast[float_index(op, heads.q.dtype)][0]) {}

  // All tokens of a request for one head. `gates(first, count, g, beta)` writes their decays in
  // logs and their steps; `finish(token, value)` takes the f32 output of each.
  template <typename GatesOf, typename Finish>
  void run(int64_t request, int64_t head, const float* ahead, Work* work, GatesOf&& gates,
           Finish&& finish) const {
    const StateSlots& slots = heads_.slots;
    const int64_t begin = slots.cu_seqlens[request], end = slots.cu_seqlens[request + 1];
    const int64_t initial = slots.initial[request];
    const float* from = initial < 0 ? nullptr : state_at(initial, head);
    if (initial < 0 && end > begin) {
      std::fill(work->state, work->state + heads_.key_size * heads_.size, 0.0f);
    }
    for (int64_t first = begin; first < end; first += kRun) {
      const int64_t count = std::min(kRun, end - first);
      gates(first, count, work->decays, work->betas);
      table_.exp_row(work->decays, work->decays, count);
      for (int64_t i = 0; i < count; ++i) {
        prefetch_token(first + i + kTokensAhead, head);
        prepare(first + i, i, head, work);
      }
      DeltaTokens tokens{};
      tokens.key_size = heads_.key_size;
      tokens.value_size = heads_.size;
      tokens.num_tokens = count;
      tokens.q = work->q;
      tokens.k = work->k;
      tokens.values = work->values;
      tokens.decays = work->decays;
      tokens.betas = work->betas;
      tokens.dots = work->dots;
      tokens.initial = from;
      tokens.kept = work->kept;
      tokens.row_stride = heads_.state.stride[2];
      tokens.work = work->state;
      tokens.goes_on = first + count < end;
      tokens.ahead = ahead;
      table_.delta_tokens(tokens);
      from = work->kept[count - 1];
      for (int64_t i = 0; i < count; ++i) finish(first + i, work->values + i * heads_.size);
    }
  }

  float* state_at(int64_t slot, int64_t head) const {
    const TensorView& state = heads_.state;
    return state.as<float>() + slot * state.stride[0] + head * state.stride[1];
  }

 private:
  void prepare(int64_t token, int64_t i, int64_t head, Work* work) const {
    const int64_t key_head = heads_.key_head(head), n = heads_.key_size;
    float* q = work->q + i * n;
    float* k = work->k + i * n;
    widen_row(q, heads_.q, token, key_head, n);
    widen_row(k, heads_.k, token, key_head, n);
    widen_row(work->values + i * heads_.size, heads_.v, token, head, heads_.size);
    float of_q = form_.scale;
    if (form_.is_unit) {
      of_q /= std::sqrt(table_.dot(q, q, n) + kL2Eps);
      table_.scale[0](k, k, 1.0f / std::sqrt(table_.dot(k, k, n) + kL2Eps), n);
    }
    table_.scale[0](q, q, of_q, n);
    work->dots[i] = table_.dot(q, k, n);
    const int64_t slot = heads_.slots.kept[token];
    work->kept[i] = slot < 0 ? nullptr : state_at(slot, head);
  }

  void prefetch_token(int64_t token, int64_t head) const {
    if (token >= heads_.num_tokens) return;
    const int64_t key_head = heads_.key_head(head);
    prefetch_row(heads_.q, token, key_head);
    prefetch_row(heads_.k, token, key_head);
    prefetch_row(heads_.v, token, head);
  }

  void widen_row(float* to, const TensorView& from, int64_t token, int64_t head, int64_t n) const {
    widen_(to, row_at(from, token, head), 0, n);
  }

  const KernelTable& table_;
  const Heads& heads_;
  Form form_;
  MapKernel widen_;
};

// Runs `rule` over all requests and heads; `gates(head, first, count, g, beta)`,
// `finish(token, head, value)`.
template <typename GatesOf, typename Finish>
void run_heads(const DeltaRule& rule, const Heads& heads, GatesOf&& gates, Finish&& finish) {
  parallel_for(heads.slots.num_reqs() * heads.num_heads, 1, [&](int64_t begin, int64_t end) {
    Work work(heads);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t request = i / heads.num_heads, head = i % heads.num_heads;
      const int64_t next_slot = i + 1 < end ? heads.slots.initial[(i + 1) / heads.num_heads] : -1;
      const float* ahead =
          next_slot < 0 ? nullptr : rule.state_at(next_slot, (i + 1) % heads.num_heads);
      rule.run(
          request, head, ahead, &work,
          [&](int64_t first, int64_t count, float* g, float* beta) {
            gates(head, first, count, g, beta);
          },
          [&](int64_t token, const float* value) { finish(token, head, value); });
    }
  });
}

}  // namespace

void gdn_gate(TensorView g, TensorView beta, TensorView a, TensorView b, TensorView decay_rate,
              TensorView dt_bias) {
  const char* op = "gdn_gate";
  const Gates gates = gates_of(op, a, b, decay_rate, dt_bias);
  const int64_t num_heads = a.shape[1];
  for (const TensorView* view : {&g, &beta}) {
    PYVT_CHECK(op, has_dims(*view, {a.shape[0], num_heads}) && view->dtype == DType::kF32,
               "g, beta: expected the shape of a, f32");
  }
  const KernelTable& table = kernels();
  parallel_for(a.shape[0], kGateGrain / (num_heads + 1) + 1, [&](int64_t begin, int64_t end) {
    float* row = scratch<float>(kNumberSlot, 2 * num_heads);
    for (int64_t t = begin; t < end; ++t) {
      gates.of_token(table, t, row, row + num_heads);
      for (int64_t h = 0; h < num_heads; ++h) {
        g.as<float>()[t * g.stride[0] + h * g.stride[1]] = row[h];
        beta.as<float>()[t * beta.stride[0] + h * beta.stride[1]] = row[num_heads + h];
      }
    }
  });
}

void gated_delta_rule(TensorView out, TensorView state, TensorView q, TensorView k, TensorView v,
                      TensorView g, TensorView beta, TensorView cu_seqlens_q,
                      TensorView initial_slots, TensorView state_slots, double scale,
                      std::string head_map) {
  const char* op = "gated_delta_rule";
  const Heads heads =
      heads_of(op, out, state, q, k, v, cu_seqlens_q, initial_slots, state_slots, head_map);
  for (const TensorView* view : {&g, &beta}) {
    PYVT_CHECK(op,
               has_dims(*view, {heads.num_tokens, heads.num_heads}) && view->dtype == DType::kF32,
               "g, beta: expected dims [T, Hv] of f32");
  }
  const DeltaRule rule(op, heads, {false, static_cast<float>(scale)});
  const auto round = kernels().cast[0][float_index(op, out.dtype)];
  run_heads(
      rule, heads,
      [&](int64_t head, int64_t first, int64_t count, float* g_to, float* beta_to) {
        read_floats(g, first * g.stride[0] + head * g.stride[1], g.stride[0], count, g_to);
        read_floats(beta, first * beta.stride[0] + head * beta.stride[1], beta.stride[0], count,
                    beta_to);
      },
      [&](int64_t token, int64_t head, const float* value) {
        round(at(out, token * out.stride[0] + head * out.stride[1]), value, 0, heads.size);
      });
}

void gated_delta_net(TensorView out, TensorView state, TensorView q, TensorView k, TensorView v,
                     TensorView z, TensorView a, TensorView b, TensorView decay_rate,
                     TensorView dt_bias, TensorView weight, TensorView cu_seqlens_q,
                     TensorView initial_slots, TensorView state_slots, double eps,
                     std::string head_map) {
  const char* op = "gated_delta_net";
  const Heads heads =
      heads_of(op, out, state, q, k, v, cu_seqlens_q, initial_slots, state_slots, head_map);
  const Gates gates = gates_of(op, a, b, decay_rate, dt_bias);
  PYVT_CHECK(op, has_dims(a, {heads.num_tokens, heads.num_heads}), "a: expected dims [T, Hv]");
  PYVT_CHECK(op, has_dims(z, {heads.num_tokens, heads.num_heads, heads.size}) && z.is_dense(1),
             "z: expected dims [T, Hv, Dv], the last one dense");
  PYVT_CHECK(op, has_dims(weight, {heads.size}) && weight.is_dense(1),
             "weight: expected dims [Dv], dense");
  const KernelTable& table = kernels();
  float* weights = scratch<float>(kWeightSlot, heads.size);
  table.cast[float_index(op, weight.dtype)][0](weights, weight.data, 0, heads.size);
  const auto norm = table.norm_gated[float_index(op, z.dtype)][float_index(op, out.dtype)];
  const double scale = 1.0 / std::sqrt(static_cast<double>(heads.key_size));
  const DeltaRule rule(op, heads, {true, static_cast<float>(scale)});
  run_heads(
      rule, heads,
      [&](int64_t head, int64_t first, int64_t count, float* g, float* beta) {
        gates.of_head(table, head, first, count, g, beta);
      },
      [&](int64_t token, int64_t head, const float* value) {
        if (token + kTokensAhead < heads.num_tokens) prefetch_row(z, token + kTokensAhead, head);
        norm(at(out, token * out.stride[0] + head * out.stride[1]), value, row_at(z, token, head),
             weights, static_cast<float>(eps), heads.size);
      });
}

}  // namespace pyvt::cpu
