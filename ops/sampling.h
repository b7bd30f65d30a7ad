// From a row of logits to a token and its log-probabilities. Host code: one row at a time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kadence::ops {

// Filters act in the order of vLLM and SGLang, each on what the one before kept: penalties (repetition, then frequency
// and presence), temperature, top-k, top-p, min-p. Penalties count for greedy choices too.
struct SamplingParams {
  float temperature = 0;         // 0 = greedy
  int32_t top_k = 0;             // 0 = off
  float top_p = 1;               // (0, 1]
  float min_p = 0;               // [0, 1]
  float repetition_penalty = 1;  // > 0; divides positive logits of seen tokens, multiplies negative ones
  float presence_penalty = 0;    // subtracted once from tokens generated before
  float frequency_penalty = 0;   // subtracted per earlier generation
  uint64_t seed = 0;
};
// Throws Error{kInvalidArgument} naming the field.
void validate(const SamplingParams& params);

// What the penalties need to know of a request.
struct TokenHistory {
  std::span<const int32_t> prompt;
  std::span<const int32_t> generated;
};

// The token of draw `index` (tokens generated so far): a pure function of logits, history, params and index. Greedy
// takes the lowest id among equals. `scratch` is reused between calls.
int32_t sample(std::span<const float> logits, const TokenHistory& history, const SamplingParams& params, uint64_t index,
               std::vector<float>& scratch);

// log(sum(exp(logits))) in double, fixed order.
double log_sum_exp(std::span<const float> logits);
// log-softmax of one token, of the raw logits (before temperature and penalties), rounded to float.
float log_prob(std::span<const float> logits, int32_t token);
// The n best (token, log-prob), best first, ties to the lower id.
std::vector<std::pair<int32_t, float>> top_log_probs(std::span<const float> logits, int32_t n);

}  // namespace kadence::ops
