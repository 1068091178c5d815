// DeltaTokens: a run of tokens of one request against the state of one value head.
#pragma once

#include <cstdint>

namespace pyvt::cpu {

struct DeltaTokens {
  int64_t key_size, value_size;
  int64_t num_tokens;
  const float* q;       // [num_tokens, key_size], scaled
  const float* k;       // [num_tokens, key_size]
  float* values;        // [num_tokens, value_size] in: v; out: Sᵀq
  const float* decays;  // [num_tokens] exp(g)
  const float* betas;   // [num_tokens]
  const float* dots;    // [num_tokens] q · k

  // The state before the first token, rows of value_size; null where it is in `work`.
  const float* initial;
  // Where the state behind each token goes, null for `work`; may be `initial`.
  float* const* kept;
  int64_t row_stride;  // of initial and kept
  // A state between tokens and between runs: blocks of columns, each [key_size][its columns].
  float* work;
  bool goes_on;  // the state behind the last token is needed, kept or not

  // Rows of a state to prefetch on the way; null is none.
  const float* ahead;
};

}  // namespace pyvt::cpu
