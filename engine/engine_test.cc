// Requests, one at a time or a few together, against the naive model.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "base/math.h"
#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

TEST(Engine, ColdRunsGiveTheNaiveModelsAnswer) {
  for (const int64_t n : {1, 2, 63, 64, 65, 127, 128, 129, 200, 511, 512, 513, 700, 1030}) {
    SCOPED_TRACE(n);
    Rig rig;
    RequestSpec spec = generate(some_tokens(static_cast<uint64_t>(n), n), 9);
    spec.top_logprobs = 3;
    if (n > 1) spec.score_from = 1;
    EXPECT_EQ(rig.run_and_compare(spec), 0);
    rig.expect_at_rest();
  }
}

TEST(Engine, SamplesWithSeedAndPenalties) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(5, 70), 40);
  spec.sampling.temperature = 0.9f;
  spec.sampling.top_k = 12;
  spec.sampling.repetition_penalty = 1.3f;
  spec.sampling.frequency_penalty = 0.2f;
  std::set<Ids> answers;
  for (const uint64_t seed : {1, 2, 3}) {
    spec.sampling.seed = seed;
    const RequestOutput out = rig.run(spec);
    expect_same(out, naive_run(spec));
    answers.insert(out.output_ids);
  }
  EXPECT_EQ(answers.size(), 3u);
}

TEST(Engine, StopsAtStopTokensWithoutThem) {
  RequestSpec spec = generate(some_tokens(6, 80), 300);
  const Ids whole = naive_run(spec).output_ids;
  spec.stop_ids = {whole[10]};
  Rig rig;
  const RequestOutput out = rig.run(spec);
  expect_same(out, naive_run(spec));
  EXPECT_EQ(out.reason, FinishReason::kStop);
  EXPECT_LE(out.output_ids.size(), 10u);

  spec.stop_ids.clear();
  spec.ignore_eos = false;
  spec.max_tokens = 2000;
  const RequestOutput ended = rig.run(spec);
  expect_same(ended, naive_run(spec));
  EXPECT_EQ(ended.reason, FinishReason::kStop) << "the fake model ends at last";
}

TEST(Engine, EventsAreTheTokensInOrder) {
  Rig rig;
  RequestSpec first = generate(some_tokens(1, 70), 5);
  first.top_logprobs = 2;
  const RequestId a = rig.submit(first), b = rig.submit(generate(some_tokens(2, 40), 7));
  rig.drain();
  std::map<RequestId, Ids> seen;
  for (const TokenEvent& e : rig.engine->take_events()) {
    EXPECT_EQ(e.index, static_cast<int64_t>(seen[e.request].size()));
    seen[e.request].push_back(e.token);
    EXPECT_EQ(e.top.size(), e.request == a ? 2u : 0u);
    if (e.request == a && e.top.front().first == e.token) {
      EXPECT_EQ(e.top.front().second, e.logprob);
    }
  }
  EXPECT_EQ(seen[a], rig.output(a).output_ids);
  EXPECT_EQ(seen[b], rig.output(b).output_ids);
  EXPECT_TRUE(rig.engine->take_events().empty());
  EXPECT_FALSE(rig.engine->take_output(a).has_value()) << "an output is given once";
}

TEST(Engine, CachedTokensAreTheLargestGridPointBelowThePrompt) {
  for (const int64_t n : {64, 65, 128, 129, 192, 500, 512, 513, 1024, 1500}) {
    SCOPED_TRACE(n);
    Rig rig;
    const RequestSpec spec = generate(some_tokens(9, n), 1);
    EXPECT_EQ(rig.run_and_compare(spec), 0);
    EXPECT_EQ(rig.engine->predict_cached_tokens(spec), (n - 1) / 64 * 64);
    EXPECT_EQ(rig.run_and_compare(spec), (n - 1) / 64 * 64);
    EXPECT_EQ(rig.run_and_compare(generate(some_tokens(9, n) + Ids{1, 2, 3}, 1)), n / 64 * 64)
        << "a longer prompt resumes at the last boundary";
  }
}

TEST(Engine, ScoringResumesBelowTheFirstScoredPosition) {
  Rig rig;
  const Ids ids = some_tokens(3, 400);
  for (const int64_t n : {65, 257, 321, 400}) rig.run(generate(head(ids, n), 1));  // states at 64, 256, 320, 384
  EXPECT_EQ(rig.run_and_compare(score(ids, 321)), 320);
  EXPECT_EQ(rig.run_and_compare(score(ids, 320)), 256) << "the log-prob of position 320 needs the logits after 319";
  EXPECT_EQ(rig.run_and_compare(score(ids, 64)), 0);
  EXPECT_EQ(rig.run_and_compare(score(ids, 65)), 64);
}

TEST(Engine, EchoOfTheWholePromptReadsNothingAndPublishes) {
  Rig rig;
  const Ids ids = some_tokens(4, 300);
  EXPECT_EQ(rig.run_and_compare(score(ids, 1)), 0);
  EXPECT_GT(rig.engine->stats().checkpoints_written, 0);
  EXPECT_EQ(rig.run_and_compare(score(ids, 1)), 0);
  EXPECT_EQ(rig.run_and_compare(score(ids, 299)), 256);
}

TEST(Engine, WithoutCacheNothingIsReadOrWritten) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(4, 300), 70);
  spec.use_cache = false;
  rig.run_and_compare(spec);
  EXPECT_EQ(rig.engine->stats().tree.pages, 0);
  spec.use_cache = true;
  rig.run_and_compare(spec);
  spec.use_cache = false;
  EXPECT_EQ(rig.engine->predict_cached_tokens(spec), 0);
  EXPECT_EQ(rig.run_and_compare(spec), 0);
  EXPECT_EQ(rig.engine->stats().misses_disabled, 2);
}

TEST(Engine, NamespacesDoNotMix) {
  Rig rig;
  RequestSpec spec = generate(some_tokens(4, 300), 3);
  spec.cache_salt = "a";
  rig.run_and_compare(spec);
  spec.cache_salt = "b";
  EXPECT_EQ(rig.run_and_compare(spec), 0);
  spec.cache_salt = "a";
  EXPECT_EQ(rig.run_and_compare(spec), 256);
}

TEST(Engine, PredictionChangesNoRecency) {
  Rig rig(5, 64);  // one working slot and four cached states
  const auto spec = [](uint64_t seed) { return generate(some_tokens(seed, 70), 1); };
  for (const uint64_t seed : {1, 2, 3, 4}) rig.run(spec(seed));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rig.engine->predict_cached_tokens(spec(1)), 64);
  rig.run(spec(5));  // needs a slot: the least recently used state goes
  EXPECT_EQ(rig.engine->predict_cached_tokens(spec(1)), 0);
  EXPECT_EQ(rig.engine->predict_cached_tokens(spec(2)), 64);
}

TEST(Engine, GeneratedTokensAreReplayedThroughExtendBeforeTheyArePublished) {
  Rig rig;
  const RequestSpec turn = generate(some_tokens(8, 100), 150);
  const RequestOutput out = rig.run(turn);  // runs the replay too
  expect_same(out, naive_run(turn));
  EXPECT_EQ(rig.engine->stats().replayed_tokens, 192 - 64);
  // The next turn repeats prompt and answer. The naive model extends all of it; a state that decoding wrote would not
  // do.
  const Ids next = turn.ids + out.output_ids + some_tokens(9, 30);
  EXPECT_EQ(rig.run_and_compare(generate(next, 10)), 192);
  rig.expect_at_rest();
}

TEST(Engine, CacheGeneratedOffPublishesPromptsOnly) {
  Rig rig(24, 64, [](EngineOptions& o) { o.cache_generated = CacheGenerated::kOff; });
  const RequestSpec turn = generate(some_tokens(8, 100), 200);
  const RequestOutput out = rig.run(turn);
  EXPECT_EQ(rig.run_and_compare(generate(turn.ids + out.output_ids + Ids{1}, 10)), 64);
  EXPECT_EQ(rig.engine->stats().replayed_tokens, 0);
}

TEST(Engine, CacheGeneratedStepPublishesTrackedStatesAndSaysSo) {
  Rig rig(24, 64, [](EngineOptions& o) {
    o.cache_generated = CacheGenerated::kStep;
    o.track_interval = 128;
  });
  const RequestSpec turn = generate(some_tokens(8, 100), 300);
  const RequestOutput out = rig.run(turn);
  expect_same(out, naive_run(turn));
  const RequestOutput next = rig.run(generate(turn.ids + out.output_ids + Ids{1}, 10));
  EXPECT_EQ(next.error, "");
  EXPECT_EQ(next.cached_tokens, 384);
  bool said = false;
  for (const std::string& line : rig.engine->describe())
    said = said || line.find("--cache-generated step") != std::string::npos;
  EXPECT_TRUE(said);
}

TEST(Engine, AReplayGivesWayToUsers) {
  Rig rig;
  const RequestId first = rig.submit(generate(some_tokens(8, 64), 1000));
  while (rig.engine->stats().finished == 0) rig.step();
  EXPECT_EQ(rig.engine->stats().replaying, 1);
  rig.output(first);
  const RequestId user = rig.submit(generate(some_tokens(9, 64), 2));
  rig.step();
  EXPECT_EQ(rig.engine->stats().replayed_tokens, 0) << "a waiting user goes first";
  rig.step();
  expect_same(rig.output(user), naive_run(generate(some_tokens(9, 64), 2)));
  rig.step();  // the replay starts
  EXPECT_GT(rig.engine->stats().replayed_tokens, 0);
  rig.drain();
  rig.expect_at_rest();
}

TEST(Engine, AReplayGivesBackItsPagesFirst) {
  Rig rig(8, 40);
  const RequestSpec turn = generate(some_tokens(8, 64), 1200);
  rig.submit(turn);
  while (rig.engine->stats().replayed_tokens == 0) rig.step();  // one grant of the replay has run
  ASSERT_EQ(rig.engine->stats().replaying, 1);
  ASSERT_GT(rig.engine->stats().pages.working, 0);
  const RequestSpec big = generate(some_tokens(10, 64 * 38), 3);
  const RequestId user = rig.submit(big);
  rig.step();
  EXPECT_EQ(rig.engine->stats().running, 1);
  rig.drain();
  expect_same(rig.output(user), naive_run(big));
  EXPECT_EQ(rig.engine->stats().retracted, 0);
  rig.expect_at_rest();
}

TEST(Engine, PrioritiesGoFirst) {
  Rig rig(24, 64, [](EngineOptions& o) { o.max_running_requests = 1; });
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    RequestSpec spec = generate(some_tokens(static_cast<uint64_t>(i), 50), 1);
    spec.priority = i;
    ids.push_back(rig.submit(spec));
  }
  for (int i = 2; i >= 0; --i) {
    rig.step();
    EXPECT_TRUE(rig.engine->take_output(ids[static_cast<size_t>(i)]).has_value()) << i;
  }
}

TEST(Engine, RefusesWithBothNumbers) {
  Rig rig(4, 8);  // 512 tokens
  const auto reason = [&](const RequestSpec& spec) {
    const auto result = rig.engine->submit(spec);
    EXPECT_FALSE(result.ok());
    return result.ok() ? std::string() : result.reason();
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(reason(generate({}, 1)), HasSubstr("empty prompt"));
  EXPECT_THAT(reason(generate(some_tokens(1, 513), 1)),
              AllOf(HasSubstr("513"), HasSubstr("512"), HasSubstr("--kv-tokens")));
  EXPECT_THAT(reason(generate(some_tokens(1, 100001), 0)),
              AllOf(HasSubstr("100001"), HasSubstr("100000"), HasSubstr("--context-length")));
  EXPECT_THAT(reason(generate({1, 2, kVocab}, 1)), AllOf(HasSubstr("position 2"), HasSubstr("60"), HasSubstr("61")));
  EXPECT_THAT(reason(generate({1, -1}, 1)), HasSubstr("-1"));
  EXPECT_THAT(reason(score({1, 2, 3}, 4)), AllOf(HasSubstr("3"), HasSubstr("4")));
  EXPECT_THAT(reason(score({1, 2, 3}, 0)), HasSubstr("0"));
  EXPECT_THAT(reason(generate({1}, -1)), HasSubstr("-1"));
  RequestSpec bad = generate({1}, 1);
  bad.sampling.top_p = 0;
  EXPECT_THAT(reason(bad), HasSubstr("top_p"));
  rig.expect_at_rest();
  EXPECT_FALSE(rig.engine->step());
}

TEST(Engine, GenerationEndsWhereThePoolsEnd) {
  Rig rig(4, 4);
  RequestSpec spec = generate(some_tokens(1, 250), 100);
  const RequestOutput out = rig.run(spec);
  EXPECT_EQ(out.output_ids.size(), 7u)
      << "256 tokens of pages hold the prompt and six; the seventh is sampled and never fed";
  expect_same(out, naive_run(spec, 7));
}

TEST(Engine, NanLogitsEndTheRequestAndPublishNothing) {
  Rig rig;
  const Ids bad = some_tokens(1, 200), good = some_tokens(2, 200);
  rig.model->nan_at = [&](int64_t position, int32_t token) { return position == 199 && token == bad[199]; };
  const RequestId a = rig.submit(generate(bad, 3)), b = rig.submit(generate(good, 3));
  ASSERT_NE(bad[199], good[199]);
  rig.drain();
  const RequestOutput out = rig.output(a);
  EXPECT_EQ(out.reason, FinishReason::kError);
  EXPECT_THAT(out.error, ::testing::HasSubstr("NaN"));
  expect_same(rig.output(b), naive_run(generate(good, 3)));
  EXPECT_EQ(rig.engine->stats().nan_alarms, 1);
  EXPECT_EQ(rig.engine->predict_cached_tokens(generate(bad, 3)), 0);
  EXPECT_EQ(rig.engine->predict_cached_tokens(generate(good, 3)), 192);
  rig.expect_at_rest();
}

TEST(Engine, NanInDecodeEndsTheRequestWithoutReplay) {
  Rig rig;
  rig.model->nan_at = [&](int64_t position, int32_t) { return position == 250; };
  const RequestOutput out = rig.run(generate(some_tokens(1, 100), 300));
  EXPECT_EQ(out.reason, FinishReason::kError);
  EXPECT_EQ(out.output_ids.size(), 151u);
  EXPECT_EQ(rig.engine->stats().replayed_tokens, 0);
  EXPECT_EQ(rig.engine->predict_cached_tokens(generate(some_tokens(1, 100) + out.output_ids, 1)), 64);
  rig.expect_at_rest();
}

TEST(Engine, AFailedForwardEndsItsBatchOnly) {
  Rig rig;
  const RequestId decoding = rig.submit(generate(some_tokens(1, 20), 10));
  rig.step();
  const RequestId prefilling = rig.submit(generate(some_tokens(2, 200), 10));
  rig.model->fail_in = 0;  // the extend call of the next step
  rig.drain();
  EXPECT_THAT(rig.output(prefilling).error, ::testing::HasSubstr("planted failure"));
  expect_same(rig.output(decoding), naive_run(generate(some_tokens(1, 20), 10)));
  rig.expect_at_rest();
}

TEST(Engine, FlushDropsWhatNobodyUses) {
  Rig rig;
  rig.run(generate(some_tokens(1, 200), 1));
  const RequestSpec running = generate(some_tokens(2, 200), 50);
  const RequestId id = rig.submit(running);
  rig.step();
  const auto flushed = rig.engine->flush_cache();
  rig.engine->check_accounting();
  EXPECT_EQ(flushed.pages, 3);
  EXPECT_EQ(flushed.states, 1);
  EXPECT_EQ(flushed.locked_pages, 3);
  EXPECT_EQ(flushed.locked_states, 1);
  rig.drain();
  expect_same(rig.output(id), naive_run(running));
}

TEST(Engine, OneCallHoldsAllRowsOfAPhase) {
  Rig rig;
  rig.submit(generate(some_tokens(1, 500), 5));
  for (uint64_t i = 0; i < 4; ++i) rig.submit(generate(some_tokens(10 + i, 20 + static_cast<int64_t>(i)), 5));
  rig.step();
  EXPECT_EQ(rig.engine->stats().last_step_extend_rows, 5);
  ASSERT_EQ(rig.model->calls.size(), 1u);
  rig.submit(generate(some_tokens(20, 30), 5));
  rig.step();
  ASSERT_EQ(rig.model->calls.size(), 3u) << "one call for the prompt, one for all that decode";
  EXPECT_EQ(rig.engine->stats().last_step_extend_rows, 1);
  EXPECT_EQ(rig.engine->stats().last_step_decode_rows, 5);
  rig.drain();
}

TEST(Engine, WorksWithAndWithoutCache) {
  for (const bool cache : {true, false}) {
    Rig rig(24, 64, [&](EngineOptions& o) { o.radix_cache = cache; });
    const RequestSpec spec = generate(some_tokens(1, 300), 80);
    rig.run_and_compare(spec);
    EXPECT_EQ(rig.run_and_compare(spec), cache ? 256 : 0);
    rig.expect_at_rest();
  }
}

TEST(Engine, TimesComeFromTheClock) {
  Rig rig(24, 64, [](EngineOptions& o) { o.max_running_requests = 1; });
  const RequestId a = rig.submit(generate(some_tokens(1, 600), 3)), b = rig.submit(generate(some_tokens(2, 10), 1));
  rig.model->on_forward = [&](const model::ForwardBatch&) { rig.clock.advance(1); };
  rig.drain();
  const RequestOutput out = rig.output(a);  // chunks of 512 and 88, then two steps
  EXPECT_DOUBLE_EQ(out.queue_seconds, 0);
  EXPECT_DOUBLE_EQ(out.prefill_seconds, 2);
  EXPECT_DOUBLE_EQ(out.first_token_seconds, 2);
  EXPECT_DOUBLE_EQ(out.decode_seconds, 2);
  EXPECT_DOUBLE_EQ(rig.output(b).queue_seconds, 4);
}

}  // namespace
}  // namespace kadence::engine::testing
