// Constraints on what a request may generate, and log-probs of a prompt that come with its first token.
#include <gtest/gtest.h>

#include <limits>

#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

// Token number i of the answer must be i modulo `every`; ends after `most` tokens (0 = never).
class Stripes final : public TokenConstraint {
 public:
  Stripes(int32_t every, size_t most) : every_(every), most_(most) {}
  bool mask(std::span<float> logits) override {
    bool any = false;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (every_ > 0 && i % static_cast<size_t>(every_) == seen.size() % static_cast<size_t>(every_))
        any = true;
      else
        logits[i] = -std::numeric_limits<float>::infinity();
    }
    return any;
  }
  bool advance(int32_t token) override {
    seen.push_back(token);
    return seen.size() == most_;
  }
  Ids seen;

 private:
  const int32_t every_;
  const size_t most_;
};

TEST(EngineConstraint, TokensObeyAndTheEndIsAStop) {
  for (const float temperature : {0.0f, 1.5f}) {
    Rig rig;
    RequestSpec spec = generate(some_tokens(3, 90), 40);
    spec.sampling.temperature = temperature;
    const RequestOutput plain = rig.run(spec);
    const auto stripes = std::make_shared<Stripes>(3, 20);
    spec.constraint = stripes;
    const RequestOutput out = rig.run(spec);
    EXPECT_EQ(to_string(out.reason), std::string("stop"));
    ASSERT_EQ(out.output_ids.size(), 20u);
    EXPECT_EQ(stripes->seen, out.output_ids) << "every token once, in order";
    for (size_t i = 0; i < out.output_ids.size(); ++i) EXPECT_EQ(out.output_ids[i] % 3, static_cast<int32_t>(i % 3));
    EXPECT_NE(head(plain.output_ids, 20), out.output_ids);
    // Log-probs are the model's own. Of the first token only: the fake model's steps differ from its extends.
    const RequestOutput scored = rig.run(score(some_tokens(3, 90) + head(out.output_ids, 1), 90));
    EXPECT_EQ(scored.logprobs[0], out.output_logprobs[0]);
    rig.expect_at_rest();
  }
}

TEST(EngineConstraint, LengthStillEnds) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(3, 90), 7);
  spec.constraint = std::make_shared<Stripes>(3, 20);
  const RequestOutput out = rig.run(spec);
  EXPECT_EQ(to_string(out.reason), std::string("length"));
  EXPECT_EQ(out.output_ids.size(), 7u);
}

TEST(EngineConstraint, NoTokenLeftEndsThatRequestAlone) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(4, 70), 9);
  const RequestId other = rig.submit(spec);
  spec.constraint = std::make_shared<Stripes>(0, 0);
  const RequestId stuck = rig.submit(spec);
  rig.drain();
  const RequestOutput out = rig.output(stuck);
  EXPECT_EQ(to_string(out.reason), std::string("error"));
  EXPECT_NE(out.error.find("no token"), std::string::npos) << out.error;
  EXPECT_EQ(rig.engine->stats().nan_alarms, 0);
  spec.constraint = nullptr;
  expect_same(rig.output(other), naive_run(spec));
  rig.expect_at_rest();
}

// Retracted requests step their tokens again; a constraint must not see them twice.
TEST(EngineConstraint, RetractionDoesNotAdvanceTwice) {
  std::vector<RequestSpec> specs;
  for (uint64_t i = 0; i < 4; ++i) specs.push_back(generate(some_tokens(20 + i, 100), 200));
  std::vector<Ids> lone;
  for (RequestSpec spec : specs) {
    Rig rig;
    spec.constraint = std::make_shared<Stripes>(5, 0);
    lone.push_back(rig.run(spec).output_ids);
  }
  Rig rig(24, 11);
  std::vector<RequestId> ids;
  for (RequestSpec& spec : specs) {
    spec.constraint = std::make_shared<Stripes>(5, 0);
    ids.push_back(rig.submit(spec));
  }
  rig.drain();
  EXPECT_GT(rig.engine->stats().retracted, 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rig.output(ids[i]).output_ids, lone[i]);
    EXPECT_EQ(static_cast<Stripes&>(*specs[i].constraint).seen, lone[i]);
  }
}

TEST(EngineConstraint, ScoresComeWithTheFirstToken) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(8, 700), 5);
  spec.score_from = 1;
  spec.top_logprobs = 2;
  spec.early_scores = true;
  const RequestId id = rig.submit(spec);
  rig.drain();
  const std::vector<TokenEvent> events = rig.engine->take_events();
  const RequestOutput out = rig.output(id);
  ASSERT_EQ(events.size(), 5u);
  ASSERT_TRUE(events[0].scores);
  EXPECT_EQ(events[0].scores->logprobs, out.logprobs);
  EXPECT_EQ(events[0].scores->top_logprobs, out.top_logprobs);
  EXPECT_EQ(out.logprobs.size(), 699u);
  for (size_t i = 1; i < events.size(); ++i) EXPECT_FALSE(events[i].scores);
}

}  // namespace
}  // namespace kadence::engine::testing
