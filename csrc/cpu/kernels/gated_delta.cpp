// what        delta_tokens: for each token in turn, with S decayed by e^g: d = beta · (v − Sᵀk),
//             S += k ⊗ d, out = Sᵀq
//             dot: Σ a · b of two rows
//             delta_gates: rate · softplus(a + bias) and sigmoid(b); exp_row: e^x
// layout      DeltaTokens (delta_tokens.h); rows of elements side by side
// numerics    an element of a value is a lane of its own: Sᵀk and Sᵀq are sums over key_size
//             rising, in one chain. Both are taken of the state before the token, for they then
//             share one walk with the update of the token before: out = e^g · Sᵀq + (q·k) · d.
//             Each token sees the same operations, whatever run it is a part of. softplus is max(x,
//             0) + log(1 + u), u = e^−|x|, and log(1 + u) the series of 2 · artanh(u / (2 + u)) up
//             to its 15th power: within 3e-7 of the value, for small ones too
// work        blocks of 4 vectors of columns, all tokens of the run for each: a block of 128 rows
//             stays in the first-level cache
// traffic     decode: the state read and written once, memory bound; prefill: one load, one store
//             and 4 operations for each vector of state and token, compute bound
// tried       share of the multiply-add limit, 64 tokens, AVX2, one run: 87 %; numbers of q and k
//             loaded anew for each vector 75 %; blocks of 3 vectors 76 %, of 2 vectors 74 %
// source      Yang et al. 2024, arXiv:2412.06464
#include "cpu/kernels/math-inl.h"
#include "cpu/simd/level.h"

namespace pyvt::cpu::PYVT_ISA {
namespace {

constexpr int kVectors = 4;

// kCount whole vectors side by side.
template <int kCount>
struct Whole {
  static constexpr int kNumVectors = kCount;
  static constexpr int64_t kColumns = kCount * simd::kLanes;

  int64_t columns() const { return kColumns; }
  simd::Vec load(const float* p, int j) const { return simd::load(p + j * simd::kLanes); }
  void store(float* p, int j, simd::Vec a) const { simd::store(p + j * simd::kLanes, a); }
};

// The first columns of a vector.
struct Part {
  static constexpr int kNumVectors = 1;

  int64_t columns() const { return count; }
  simd::Vec load(const float* p, int) const { return simd::load_first(p, count); }
  void store(float* p, int, simd::Vec a) const { simd::store_first(p, a, count); }
  int count;
};

// Sᵀk and Sᵀq of a block of columns.
template <typename Block>
struct Reads {
  simd::Vec of_k[Block::kNumVectors], of_q[Block::kNumVectors];

  void clear() {
    for (int j = 0; j < Block::kNumVectors; ++j) of_k[j] = of_q[j] = simd::zero();
  }
  void add(int j, simd::Vec state, simd::Vec k, simd::Vec q) {
    of_k[j] = simd::fma(k, state, of_k[j]);
    of_q[j] = simd::fma(q, state, of_q[j]);
  }
};

// Where rows of a block of columns lie.
struct Place {
  float* data;
  int64_t stride;
};

inline void prefetch_row(const float* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 16) simd::prefetch(row + c);
}

template <typename Block>
inline void read_state(const DeltaTokens& run, const Block& block, const Place& from,
                       const float* ahead, Reads<Block>* reads) {
  Reads<Block> sums;
  sums.clear();
  for (int64_t i = 0; i < run.key_size; ++i) {
    const simd::Vec k = simd::set1(run.k[i]), q = simd::set1(run.q[i]);
    const float* row = from.data + i * from.stride;
    if (ahead != nullptr && i % 2 == 0) prefetch_row(ahead + i * run.row_stride, block.columns());
#pragma GCC unroll 4
    for (int j = 0; j < Block::kNumVectors; ++j) sums.add(j, block.load(row, j), k, q);
  }
  *reads = sums;
}

// The state behind token t, and with kIsRead what the next token reads of it.
template <bool kIsRead, typename Block>
inline void update_state(const DeltaTokens& run, const Block& block, int64_t t, const Place& from,
                         const Place& to, const simd::Vec (&delta)[Block::kNumVectors],
                         const float* ahead, Reads<Block>* reads) {
  const float* k = run.k + t * run.key_size;
  const float* next_k = kIsRead ? k + run.key_size : nullptr;
  const float* next_q = kIsRead ? run.q + (t + 1) * run.key_size : nullptr;
  const simd::Vec decay = simd::set1(run.decays[t]);
  Reads<Block> sums;
  sums.clear();
  for (int64_t i = 0; i < run.key_size; ++i) {
    // Loaded before the row is stored, which might change them for all that the compiler knows.
    const simd::Vec key = simd::set1(k[i]);
    const simd::Vec next_key = kIsRead ? simd::set1(next_k[i]) : key;
    const simd::Vec next_query = kIsRead ? simd::set1(next_q[i]) : key;
    if (ahead != nullptr && i % 2 == 1) prefetch_row(ahead + i * run.row_stride, block.columns());
    const float* row = from.data + i * from.stride;
    float* row_to = to.data + i * to.stride;
#pragma GCC unroll 4
    for (int j = 0; j < Block::kNumVectors; ++j) {
      const simd::Vec state = simd::fma(key, delta[j], simd::mul(decay, block.load(row, j)));
      block.store(row_to, j, state);
      if (kIsRead) sums.add(j, state, next_key, next_query);
    }
  }
  if (kIsRead) *reads = sums;
}

template <typename Block>
inline void run_block(const DeltaTokens& run, const Block& block, int64_t column,
                      const float* ahead) {
  const Place work = {run.work + column * run.key_size, block.columns()};
  Place from = work;
  // Read only.
  if (run.initial != nullptr) from = {const_cast<float*>(run.initial) + column, run.row_stride};
  Reads<Block> reads;
  read_state(run, block, from, ahead, &reads);
  for (int64_t t = 0; t < run.num_tokens; ++t) {
    float* value = run.values + t * run.value_size + column;
    const simd::Vec decay = simd::set1(run.decays[t]), beta = simd::set1(run.betas[t]);
    const simd::Vec dot = simd::set1(run.dots[t]);
    simd::Vec delta[Block::kNumVectors];
#pragma GCC unroll 4
    for (int j = 0; j < Block::kNumVectors; ++j) {
      const simd::Vec known = simd::mul(decay, reads.of_k[j]);
      delta[j] = simd::mul(beta, simd::sub(block.load(value, j), known));
      block.store(value, j, simd::fma(dot, delta[j], simd::mul(decay, reads.of_q[j])));
    }
    float* kept = run.kept[t];
    const Place to = kept == nullptr ? work : Place{kept + column, run.row_stride};
    if (t + 1 < run.num_tokens) {
      update_state<true>(run, block, t, from, to, delta, t == 0 ? ahead : nullptr, &reads);
    } else if (kept != nullptr || run.goes_on) {
      update_state<false>(run, block, t, from, to, delta, t == 0 ? ahead : nullptr, &reads);
    }
    from = to;
  }
}

void delta_tokens(const DeltaTokens& run) {
  constexpr int64_t kColumns = Whole<kVectors>::kColumns;
  int64_t column = 0;
  for (; column + kColumns <= run.value_size; column += kColumns) {
    const bool is_last = column + 2 * kColumns > run.value_size;
    const float* next = run.initial == nullptr ? nullptr : run.initial + column + kColumns;
    run_block(run, Whole<kVectors>{}, column, is_last ? run.ahead : next);
  }
  for (; column + simd::kLanes <= run.value_size; column += simd::kLanes) {
    run_block(run, Whole<1>{}, column, nullptr);
  }
  if (column < run.value_size) {
    run_block(run, Part{static_cast<int>(run.value_size - column)}, column, nullptr);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  simd::Vec first = simd::zero(), second = simd::zero();
  int64_t i = 0;
  for (; i + 2 * simd::kLanes <= n; i += 2 * simd::kLanes) {
    first = simd::fma(simd::load(a + i), simd::load(b + i), first);
    second = simd::fma(simd::load(a + i + simd::kLanes), simd::load(b + i + simd::kLanes), second);
  }
  for (; i < n; i += simd::kLanes) {
    const bool is_whole = i + simd::kLanes <= n;
    const int rest = static_cast<int>(n - i);
    const simd::Vec x = is_whole ? simd::load(a + i) : simd::load_first(a + i, rest);
    const simd::Vec y = is_whole ? simd::load(b + i) : simd::load_first(b + i, rest);
    first = simd::fma(x, y, first);
  }
  return simd::sum(simd::add(first, second));
}

simd::Vec softplus_of(simd::Vec x) {
  const simd::Vec u = simd::exp(simd::sub(simd::zero(), simd::abs(x)));
  const simd::Vec s = simd::div(u, simd::add(simd::set1(2.0f), u)), square = simd::mul(s, s);
  simd::Vec sum = simd::set1(1.0f / 15);
  for (const float term : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f}) {
    sum = simd::fma(sum, square, simd::set1(term));
  }
  const simd::Vec above = simd::blend(simd::greater(simd::zero(), x), simd::zero(), x);
  return simd::fma(simd::add(s, s), sum, above);
}

// Calls f(load, store) for runs of elements; both take a pointer to the first one of a row.
template <typename F>
void for_vectors(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    f([&](const float* p) { return simd::load(p + i); },
      [&](float* p, simd::Vec a) { simd::store(p + i, a); });
  }
  if (i == n) return;
  const int rest = static_cast<int>(n - i);
  f([&](const float* p) { return simd::load_first(p + i, rest); },
    [&](float* p, simd::Vec a) { simd::store_first(p + i, a, rest); });
}

void delta_gates(float* g, float* beta, const float* a, const float* b, const float* rate,
                 const float* bias, int64_t n) {
  for_vectors(n, [&](auto&& load, auto&& store) {
    const simd::Vec step = sigmoid_of(load(b));
    store(g, simd::mul(load(rate), softplus_of(simd::add(load(a), load(bias)))));
    store(beta, step);
  });
}

void exp_row(float* out, const float* x, int64_t n) {
  for_vectors(n, [&](auto&& load, auto&& store) { store(out, simd::exp(load(x))); });
}

}  // namespace

void fill_gated_delta(KernelTable& table) {
  table.delta_gates = &delta_gates;
  table.exp_row = &exp_row;
  table.delta_tokens = &delta_tokens;
  table.dot = &dot;
}

}  // namespace pyvt::cpu::PYVT_ISA
