// The forward pass against outputs that Hugging Face transformers computed in float32.
#include <gtest/gtest.h>

#include "model/tests/harness.h"

namespace kadence::model {
namespace {

constexpr double kTolerance = 5e-4;

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, PromptsAndGreedyContinuations) {
  const Json golden = read_json(model_dir(GetParam()) / "golden.json");
  double worst_logit = 0, worst_log_prob = 0, worst_hidden = 0;
  Harness h(model_dir(GetParam()), 2, Harness::small_options(), 64);
  for (const Json& g : golden["prompts"]) {
    SCOPED_TRACE(g["name"].get<std::string>());
    const std::vector<int32_t> ids = g["token_ids"], greedy = g["greedy_ids"];
    const auto last = ids.size() - 1;
    Sequence s = h.open(static_cast<int64_t>(ids.size() + greedy.size()));
    const int32_t V = h.vocab();

    std::vector<std::vector<float>> hidden;
    h.model().set_hidden_observer([&](int32_t, int64_t rows, int64_t width, const float* data) {
      hidden.emplace_back(data + (rows - 1) * width, data + rows * width);
    });
    const std::vector<float> logits = h.prefill(s, ids);
    h.model().set_hidden_observer({});

    const float* final_logits = logits.data() + last * static_cast<size_t>(V);
    const std::vector<int32_t> top = g["last_top20_ids"];
    for (size_t i = 0; i < top.size(); ++i)
      worst_logit = std::max(worst_logit, std::abs(final_logits[top[i]] - g["last_top20_logits"][i].get<double>()));
    if (g.contains("last_logits"))
      for (int32_t i = 0; i < V; ++i)
        worst_logit =
            std::max(worst_logit, std::abs(final_logits[i] - g["last_logits"][static_cast<size_t>(i)].get<double>()));
    ASSERT_EQ(g["next_token_logprobs"].size(), last);
    for (size_t t = 0; t < last; ++t)
      worst_log_prob =
          std::max(worst_log_prob, std::abs(log_prob_of(logits.data() + t * static_cast<size_t>(V), V, ids[t + 1]) -
                                            g["next_token_logprobs"][t].get<double>()));
    if (g.contains("hidden_states_last")) {
      // The observer sees every layer's output and the final norm; the file has the last layer's output only after the
      // norm.
      const auto& want = g["hidden_states_last"];
      ASSERT_EQ(hidden.size(), want.size() + 1);
      hidden.erase(hidden.end() - 2);
      for (size_t l = 0; l < want.size(); ++l)
        for (size_t d = 0; d < want[l].size(); ++d) {
          const double w = want[l][d];
          worst_hidden = std::max(worst_hidden, std::abs(hidden[l][d] - w) / (1 + std::abs(w)));
        }
    }

    std::vector<float> now(final_logits, final_logits + V);
    for (size_t i = 0; i < greedy.size(); ++i) {
      ASSERT_EQ(argmax(now.data(), V), greedy[i]) << "token " << i;
      worst_log_prob = std::max(
          worst_log_prob, std::abs(log_prob_of(now.data(), V, greedy[i]) - g["greedy_logprobs"][i].get<double>()));
      if (i + 1 < greedy.size()) now = h.step(s, greedy[i]);
    }
  }
  EXPECT_LE(worst_logit, kTolerance);
  EXPECT_LE(worst_log_prob, kTolerance);
  EXPECT_LE(worst_hidden, kTolerance);
  RecordProperty("worst_logit", std::to_string(worst_logit));
  RecordProperty("worst_log_prob", std::to_string(worst_log_prob));
  RecordProperty("worst_hidden", std::to_string(worst_hidden));
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::Values("random-kimi", "kadence-tiny"),
                         [](const auto& p) { return p.param == "random-kimi" ? "RandomKimi" : "KadenceTiny"; });

TEST(GoldenCopy, CopyCase) {
  const Json golden = read_json(model_dir("kadence-tiny") / "golden.json");
  ForwardOptions o = Harness::small_options();
  o.limits.max_tokens = 2048, o.limits.max_logit_rows = 2048;
  Harness h(model_dir("kadence-tiny"), 2, o);
  const Json& c = golden["copy_cases"][0];
  const std::vector<int32_t> ids = c["token_ids"];
  Sequence s = h.open(static_cast<int64_t>(ids.size()));
  const std::vector<float> logits = h.prefill(s, ids);
  const size_t span = c["span"], first = ids.size() - span;
  double worst = 0;
  for (size_t i = 0; i < span; ++i)
    worst = std::max(worst, std::abs(log_prob_of(logits.data() + (first + i - 1) * static_cast<size_t>(h.vocab()),
                                                 h.vocab(), ids[first + i]) -
                                     c["span_logprobs"][i].get<double>()));
  EXPECT_LE(worst, kTolerance);
}

}  // namespace
}  // namespace kadence::model
