#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "base/error.h"
#include "base/rng.h"

namespace kadence::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> logits_of(size_t n, uint64_t seed, double scale = 2) {
  base::Rng rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal() * scale);
  return v;
}

// The distribution by definition, in double, one filter after the other over a sorted list.
std::vector<double> naive_distribution(const std::vector<float>& logits, const TokenHistory& h,
                                       const SamplingParams& p) {
  std::vector<double> l(logits.begin(), logits.end());
  std::map<int32_t, int> seen, generated;
  for (int32_t t : h.prompt) ++seen[t];
  for (int32_t t : h.generated) ++seen[t], ++generated[t];
  for (const auto& [t, n] : seen) l[t] = l[t] > 0 ? l[t] / p.repetition_penalty : l[t] * p.repetition_penalty;
  for (const auto& [t, n] : generated) l[t] -= p.presence_penalty + static_cast<double>(p.frequency_penalty) * n;
  std::vector<std::pair<double, int32_t>> sorted;
  for (size_t i = 0; i < l.size(); ++i) sorted.emplace_back(-l[i] / p.temperature, static_cast<int32_t>(i));
  std::sort(sorted.begin(), sorted.end());
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < sorted.size()) sorted.resize(p.top_k);
  const auto weight = [&](size_t i) { return std::exp(sorted[0].first - sorted[i].first); };
  double total = 0, sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) total += weight(i);
  size_t kept = 0;
  while (kept < sorted.size() && sum < p.top_p * total) sum += weight(kept++);
  std::vector<double> result(l.size());
  double norm = 0;
  for (size_t i = 0; i < kept; ++i)
    if (weight(i) >= p.min_p) norm += result[sorted[i].second] = weight(i);
  for (double& r : result) r /= norm;
  return result;
}

void expect_distribution(const std::vector<float>& logits, const TokenHistory& h, SamplingParams p,
                         const std::string& name) {
  const auto want = naive_distribution(logits, h, p);
  constexpr int kDraws = 20000;
  std::vector<int> counts(logits.size());
  std::vector<float> scratch;
  p.seed = 1234;
  for (int i = 0; i < kDraws; ++i) ++counts[ops::sample(logits, h, p, static_cast<uint64_t>(i), scratch)];
  // Pearson's statistic over the cells that expect enough, against five standard deviations above its mean.
  double chi2 = 0;
  int cells = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const double expected = want[t] * kDraws;
    if (want[t] == 0) {
      EXPECT_EQ(counts[t], 0) << name << ": token " << t << " was filtered out";
    } else if (expected >= 5) {
      chi2 += (counts[t] - expected) * (counts[t] - expected) / expected;
      ++cells;
    }
  }
  ASSERT_GT(cells, 1) << name;
  EXPECT_LT(chi2, cells + 5 * std::sqrt(2.0 * cells)) << name;
}

TEST(Sample, FollowsTheDistributionOfEveryFilter) {
  const auto logits = logits_of(40, 1);
  const std::vector<int32_t> prompt = {1, 2, 3, 3, 9}, generated = {2, 5, 5, 5, 7};
  const TokenHistory h{prompt, generated};
  SamplingParams p;
  p.temperature = 1;
  expect_distribution(logits, h, p, "plain");
  p.temperature = 0.6f;
  expect_distribution(logits, h, p, "temperature");
  SamplingParams k = p;
  k.top_k = 7;
  expect_distribution(logits, h, k, "top_k");
  SamplingParams n = p;
  n.top_p = 0.8f;
  expect_distribution(logits, h, n, "top_p");
  SamplingParams m = p;
  m.min_p = 0.05f;
  expect_distribution(logits, h, m, "min_p");
  SamplingParams r = p;
  r.repetition_penalty = 1.7f;
  expect_distribution(logits, h, r, "repetition_penalty");
  r.repetition_penalty = 0.6f;
  expect_distribution(logits, h, r, "repetition_penalty below 1");
  SamplingParams a = p;
  a.presence_penalty = 1.1f;
  expect_distribution(logits, h, a, "presence_penalty");
  SamplingParams f = p;
  f.frequency_penalty = 0.9f;
  expect_distribution(logits, h, f, "frequency_penalty");
  SamplingParams all = p;
  all.temperature = 1.4f, all.top_k = 20, all.top_p = 0.9f, all.min_p = 0.02f, all.repetition_penalty = 1.2f,
  all.presence_penalty = 0.3f, all.frequency_penalty = -0.4f;
  expect_distribution(logits, h, all, "everything");
}

TEST(Sample, KeepsExactlyTheSupportOfTheDefinition) {
  std::vector<float> scratch;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    base::Rng rng(seed);
    auto logits = logits_of(30, 100 + seed, 1);
    if (seed % 2)
      for (float& v : logits) v = std::round(2 * v) / 2;  // ties: the lower id is kept
    SamplingParams p;
    p.temperature = static_cast<float>(0.3 + rng.uniform()), p.top_k = static_cast<int32_t>(rng.below(31)),
    p.seed = seed;
    p.top_p = static_cast<float>(0.05 + 0.95 * rng.uniform()), p.min_p = static_cast<float>(rng.below(3) * 0.1);
    const auto want = naive_distribution(logits, {}, p);
    std::vector<int> counts(30);
    for (uint64_t i = 0; i < 3000; ++i) ++counts[ops::sample(logits, {}, p, i, scratch)];
    for (size_t t = 0; t < 30; ++t) {
      if (want[t] == 0) {
        EXPECT_EQ(counts[t], 0) << "seed " << seed << " token " << t;
      } else if (want[t] > 0.01) {
        EXPECT_GT(counts[t], 0) << "seed " << seed << " token " << t;
      }
    }
  }
}

TEST(Sample, IsAPureFunctionOfSeedAndIndex) {
  const auto logits = logits_of(1000, 2);
  SamplingParams p;
  p.temperature = 1, p.top_p = 0.95f, p.seed = 42;
  std::vector<float> scratch, used(5000, kNaN);
  int differs_by_index = 0, differs_by_seed = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const int32_t a = ops::sample(logits, {}, p, i, scratch);
    EXPECT_EQ(ops::sample(logits, {}, p, i, used), a);
    differs_by_index += a != ops::sample(logits, {}, p, i + 1, scratch);
    SamplingParams other = p;
    other.seed = 43;
    differs_by_seed += a != ops::sample(logits, {}, other, i, scratch);
  }
  EXPECT_GT(differs_by_index, 100);
  EXPECT_GT(differs_by_seed, 100);
}

TEST(Sample, IsAPureFunctionOfHistoryAndPenaltiesToo) {
  const auto logits = logits_of(1000, 3);
  SamplingParams p;
  p.temperature = 1, p.seed = 42;
  std::vector<float> scratch, used(5000, kNaN);
  std::vector<int32_t> likely(1000);
  for (size_t i = 0; i < likely.size(); ++i) likely[i] = static_cast<int32_t>(i);
  std::sort(likely.begin(), likely.end(),
            [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  const std::vector<int32_t> head(likely.begin(), likely.begin() + 100), backwards(head.rbegin(), head.rend());
  const TokenHistory none, generated{{}, head}, prompt{head, {}}, reordered{{}, backwards};
  for (float SamplingParams::*penalty :
       {&SamplingParams::presence_penalty, &SamplingParams::frequency_penalty, &SamplingParams::repetition_penalty}) {
    SamplingParams with = p;
    with.*penalty = 3;
    int differs_by_history = 0, differs_by_penalty = 0, differs_by_prompt = 0;
    for (uint64_t i = 0; i < 200; ++i) {
      const int32_t a = ops::sample(logits, generated, with, i, scratch);
      EXPECT_EQ(ops::sample(logits, generated, with, i, used), a);  // whatever ran in between, whatever is in scratch
      EXPECT_EQ(ops::sample(logits, reordered, with, i, used), a);  // counts, not order
      EXPECT_EQ(ops::sample(logits, generated, p, i, used), ops::sample(logits, none, p, i, scratch));
      differs_by_history += a != ops::sample(logits, none, with, i, scratch);
      differs_by_penalty += a != ops::sample(logits, generated, p, i, scratch);
      differs_by_prompt += ops::sample(logits, prompt, with, i, scratch) != ops::sample(logits, none, with, i, scratch);
    }
    EXPECT_GT(differs_by_history, 20);
    EXPECT_GT(differs_by_penalty, 20);
    // Presence and frequency count what was generated; only repetition looks at the prompt.
    if (penalty == &SamplingParams::repetition_penalty)
      EXPECT_GT(differs_by_prompt, 20);
    else
      EXPECT_EQ(differs_by_prompt, 0);
  }
}

TEST(Sample, GreedyTakesTheLowestOfEquals) {
  std::vector<float> scratch;
  SamplingParams p;
  EXPECT_EQ(ops::sample(std::vector<float>{1, 5, 5, 2}, {}, p, 0, scratch), 1);
  EXPECT_EQ(ops::sample(std::vector<float>{kNaN, -3, kNaN, -2, -2}, {}, p, 7, scratch), 3);
  EXPECT_EQ(ops::sample(std::vector<float>{-kInf, -kInf}, {}, p, 7, scratch), 0);
  EXPECT_EQ(ops::sample(std::vector<float>{0, kInf, 1, kInf}, {}, p, 7, scratch), 1);
  p.temperature = 1, p.top_k = 1;
  EXPECT_EQ(ops::sample(std::vector<float>{1, 5, 5, 2}, {}, p, 3, scratch), 1);
  // Penalties count for greedy too.
  p = {};
  p.presence_penalty = 2;
  const std::vector<int32_t> generated = {1, 1};
  EXPECT_EQ(ops::sample(std::vector<float>{1, 5, 4, 2}, {{}, generated}, p, 0, scratch), 2);
  p.presence_penalty = 0, p.frequency_penalty = 0.6f;
  EXPECT_EQ(ops::sample(std::vector<float>{1, 5, 4, 2}, {{}, generated}, p, 0, scratch), 2);
  p.frequency_penalty = 0.4f;
  EXPECT_EQ(ops::sample(std::vector<float>{1, 5, 4, 2}, {{}, generated}, p, 0, scratch), 1);
}

TEST(Sample, ImpossibleTokensAreNeverDrawn) {
  std::vector<float> scratch;
  SamplingParams p;
  p.temperature = 5;
  const std::vector<float> logits = {-kInf, 0, -kInf, kNaN, 1, -kInf};
  for (const float top_p : {1.0f, 0.999f})
    for (uint64_t i = 0; i < 500; ++i) {
      p.top_p = top_p;
      const int32_t t = ops::sample(logits, {}, p, i, scratch);
      EXPECT_TRUE(t == 1 || t == 4) << t;
    }
  // Tokens of a history that are outside the vocabulary are of no concern.
  const std::vector<int32_t> odd = {-1, 6, 1 << 30};
  p.presence_penalty = 1;
  EXPECT_NO_THROW(ops::sample(logits, {odd, odd}, p, 0, scratch));
}

TEST(Sample, AnEmptyRowIsRefused) {
  std::vector<float> scratch;
  EXPECT_THROW(ops::sample({}, {}, {}, 0, scratch), base::Error);
}

TEST(SamplingParams, RefusalsNameTheField) {
  EXPECT_NO_THROW(validate({}));
  const auto refused = [](const char* field, auto change) {
    SamplingParams p;
    change(p);
    try {
      validate(p);
      ADD_FAILURE() << field << " was accepted";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(field), std::string::npos) << e.what();
    }
  };
  for (const float bad : {-1.0f, kNaN, kInf}) refused("temperature", [&](SamplingParams& p) { p.temperature = bad; });
  refused("top_k", [](SamplingParams& p) { p.top_k = -1; });
  for (const float bad : {0.0f, -0.5f, 1.5f, kNaN}) refused("top_p", [&](SamplingParams& p) { p.top_p = bad; });
  for (const float bad : {-0.1f, 1.1f, kNaN}) refused("min_p", [&](SamplingParams& p) { p.min_p = bad; });
  for (const float bad : {0.0f, -1.0f, kNaN, kInf})
    refused("repetition_penalty", [&](SamplingParams& p) { p.repetition_penalty = bad; });
  for (const float bad : {kNaN, kInf})
    refused("presence_penalty", [&](SamplingParams& p) { p.presence_penalty = bad; });
  for (const float bad : {kNaN, -kInf})
    refused("frequency_penalty", [&](SamplingParams& p) { p.frequency_penalty = bad; });
}

TEST(LogProbs, AgreeWithLongDoubleSums) {
  for (const double scale : {0.1, 3.0, 40.0}) {
    const auto logits = logits_of(5000, 3, scale);
    long double top = -1e30L, sum = 0;
    for (float v : logits) top = std::max(top, static_cast<long double>(v));
    for (float v : logits) sum += std::exp(static_cast<long double>(v) - top);
    const long double lse = top + std::log(sum);
    EXPECT_NEAR(log_sum_exp(logits), static_cast<double>(lse), 1e-12 * std::abs(static_cast<double>(lse)) + 1e-13);
    for (const int32_t t : {0, 17, 4999})
      EXPECT_EQ(log_prob(logits, t), static_cast<float>(logits[t] - static_cast<double>(lse)));
  }
  EXPECT_EQ(log_prob(std::vector<float>{0, -kInf}, 1), -kInf);
  EXPECT_EQ(log_prob(std::vector<float>{1000, -kInf}, 0), 0);
  EXPECT_THROW(log_prob(std::vector<float>{0, 1}, 2), base::Error);
  EXPECT_THROW(log_prob(std::vector<float>{0, 1}, -1), base::Error);
}

TEST(LogProbs, TopAreBestFirstTiesToTheLowerId) {
  const std::vector<float> logits = {1, 4, 2, 4, kNaN, -1};
  std::vector<float> clean = {1, 4, 2, 4, -kInf, -1};
  const auto top = top_log_probs(clean, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].first, 1);
  EXPECT_EQ(top[1].first, 3);
  EXPECT_EQ(top[2].first, 2);
  for (const auto& [t, lp] : top) EXPECT_EQ(lp, log_prob(clean, t));
  EXPECT_EQ(top_log_probs(logits, 2)[0].first, 1);  // a NaN is not the best
  EXPECT_EQ(top_log_probs(clean, 100).size(), 6u);
  EXPECT_TRUE(top_log_probs(clean, 0).empty());
  EXPECT_THROW(top_log_probs(clean, -1), base::Error);
}

}  // namespace
}  // namespace kadence::ops
