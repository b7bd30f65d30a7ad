#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/rng.h"

namespace kadence::ops {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// A NaN never wins.
float comparable(float v) { return std::isnan(v) ? kMinusInf : v; }

// Higher first, ties to the lower id.
struct Better {
  const float* values;
  bool operator()(int32_t a, int32_t b) const {
    const float va = comparable(values[a]), vb = comparable(values[b]);
    return va != vb ? va > vb : a < b;
  }
};

int32_t argmax(const float* values, size_t n) {
  size_t best = 0;
  float top = kMinusInf;
  for (size_t i = 0; i < n; ++i)
    if (values[i] > top) top = values[i], best = i;  // false for a NaN
  return static_cast<int32_t>(best);
}

bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

// values[0, n) are the logits; counts[0, n) is scratch.
void apply_penalties(const SamplingParams& p, const TokenHistory& history, float* values, float* counts, size_t n) {
  const auto for_each = [n](std::span<const int32_t> tokens, const auto& f) {
    for (const int32_t t : tokens)
      if (t >= 0 && static_cast<size_t>(t) < n) f(t);
  };
  std::fill(counts, counts + n, 0.0f);
  if (p.repetition_penalty != 1) {
    const auto repeat = [&](int32_t t) {
      if (counts[t] != 0) return;
      counts[t] = 1;
      values[t] = values[t] > 0 ? values[t] / p.repetition_penalty : values[t] * p.repetition_penalty;
    };
    for_each(history.prompt, repeat);
    for_each(history.generated, repeat);
    for_each(history.prompt, [&](int32_t t) { counts[t] = 0; });
    for_each(history.generated, [&](int32_t t) { counts[t] = 0; });
  }
  for_each(history.generated, [&](int32_t t) { counts[t] += 1; });
  for_each(history.generated, [&](int32_t t) {
    if (counts[t] == 0) return;
    values[t] -= p.frequency_penalty * counts[t] + p.presence_penalty;
    counts[t] = 0;
  });
}

// Inverts the distribution of the weights at u in [0, 1): the first id of `order` whose running sum exceeds u * total.
template <class Weight>
int32_t draw(const std::vector<int32_t>& order, size_t count, double u, const Weight& weight) {
  thread_local std::vector<double> weights;
  weights.resize(count);
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += weights[i] = weight(order[i]);
  const double target = u * total;
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i], last = i;
    if (sum > target) break;
  }
  return order[last];
}

}  // namespace

void validate(const SamplingParams& p) {
  const auto require = [](bool ok, const char* field, const char* wanted, double got) {
    if (!ok) base::throw_invalid(field, wanted, std::to_string(got));
  };
  require(std::isfinite(p.temperature) && p.temperature >= 0, "temperature", "0 or more", p.temperature);
  require(p.top_k >= 0, "top_k", "0 (off) or more", p.top_k);
  require(p.top_p > 0 && p.top_p <= 1, "top_p", "above 0, at most 1", p.top_p);
  require(p.min_p >= 0 && p.min_p <= 1, "min_p", "between 0 and 1", p.min_p);
  require(std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0, "repetition_penalty", "above 0",
          p.repetition_penalty);
  require(std::isfinite(p.presence_penalty), "presence_penalty", "a finite number", p.presence_penalty);
  require(std::isfinite(p.frequency_penalty), "frequency_penalty", "a finite number", p.frequency_penalty);
}

int32_t sample(std::span<const float> logits, const TokenHistory& history, const SamplingParams& params, uint64_t index,
               std::vector<float>& scratch) {
  const size_t n = logits.size();
  if (n == 0) base::throw_invalid("logits", "one or more", "none");
  const float* values = logits.data();
  if (has_penalties(params)) {
    if (scratch.size() < 2 * n) scratch.resize(2 * n);
    std::copy(logits.begin(), logits.end(), scratch.begin());
    apply_penalties(params, history, scratch.data(), scratch.data() + n, n);
    values = scratch.data();
  }
  const int32_t best = argmax(values, n);
  const float top = comparable(values[best]);
  // With an infinite best there is nothing to draw: its ratio to the others is no number.
  if (params.temperature == 0 || params.top_k == 1 || !std::isfinite(top)) return best;

  const double inverse = 1.0 / params.temperature;
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(comparable(values[id])) - top) * inverse);
  };
  const double u = base::draw_uniform(params.seed, index);
  thread_local std::vector<int32_t> order;
  order.resize(n);
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  size_t count = n;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < n) {
    count = static_cast<size_t>(params.top_k);
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(), Better{values});
  }
  if (params.top_p < 1) {
    double total = 0;
    std::sort(order.begin(),
              order.begin() + static_cast<ptrdiff_t>(count == n ? 0 : count));  // sums in the order of ids
    for (size_t i = 0; i < count; ++i) total += weight(order[i]);
    // A heap, because the nucleus is usually a small part of the vocabulary. The best is taken from its front.
    const auto worse = [better = Better{values}](int32_t a, int32_t b) { return better(b, a); };
    const auto begin = order.begin();
    auto end = begin + static_cast<ptrdiff_t>(count);
    std::make_heap(begin, end, worse);
    double sum = 0;
    while (end != begin && sum < params.top_p * total) {
      std::pop_heap(begin, end, worse);
      --end;
      sum += weight(*end);
    }
    std::reverse(end, begin + static_cast<ptrdiff_t>(count));  // best first
    const size_t kept = static_cast<size_t>(begin + static_cast<ptrdiff_t>(count) - end);
    std::move(end, end + static_cast<ptrdiff_t>(kept), begin);
    count = kept;
  } else if (count < n) {
    std::sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), Better{values});
  }
  if (params.min_p > 0) {
    const double floor = params.min_p;  // relative to the best, whose weight is 1
    return draw(order, count, u, [&](int32_t id) {
      const double w = weight(id);
      return w >= floor ? w : 0.0;
    });
  }
  return draw(order, count, u, weight);
}

double log_sum_exp(std::span<const float> logits) {
  double top = -std::numeric_limits<double>::infinity();
  for (const float v : logits) top = std::max(top, static_cast<double>(comparable(v)));
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

float log_prob(std::span<const float> logits, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size())
    base::throw_invalid("token", "an id below " + std::to_string(logits.size()), std::to_string(token));
  return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum_exp(logits));
}

std::vector<std::pair<int32_t, float>> top_log_probs(std::span<const float> logits, int32_t n) {
  if (n < 0) base::throw_invalid("number of log-probabilities", "0 or more", std::to_string(n));
  const size_t count = std::min(static_cast<size_t>(n), logits.size());
  std::vector<std::pair<int32_t, float>> result;
  if (count == 0) return result;
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(), Better{logits.data()});
  const double sum = log_sum_exp(logits);
  result.reserve(count);
  for (size_t i = 0; i < count; ++i)
    result.emplace_back(order[i], static_cast<float>(static_cast<double>(logits[static_cast<size_t>(order[i])]) - sum));
  return result;
}

}  // namespace kadence::ops
