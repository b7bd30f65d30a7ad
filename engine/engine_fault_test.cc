// One test for each kind of fault that is known from other engines and could live here; the names are those of
// the public trouble log. Padding rows (B26, B27) do not exist in this engine: a batch holds live rows only, and the
// model's operators test their own.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/math.h"
#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

Rig::Tweak sizes(int64_t chunk, int64_t budget, int32_t running = 8) {
  return [=](EngineOptions& o) {
    o.chunked_prefill_size = chunk;
    o.max_prefill_tokens = budget;
    o.max_running_requests = running;
  };
}

// Requests that are admitted but get no tokens in a step keep their state to the bit.
TEST(Faults, B29_ParkedRequestsKeepTheirState) {
  Rig rig(40, 200, sizes(64, 128));
  std::vector<std::pair<RequestId, RequestSpec>> all;
  for (uint64_t i = 0; i < 6; ++i) {
    RequestSpec spec = generate(some_tokens(i, 300), 40);
    all.emplace_back(rig.submit(spec), spec);
    rig.step();
  }
  // A higher priority takes the whole budget for a while.
  RequestSpec urgent = generate(some_tokens(50, 900), 5);
  urgent.priority = 1;
  all.emplace_back(rig.submit(urgent), urgent);
  rig.drain();
  for (const auto& [id, spec] : all) expect_same(rig.output(id), naive_run(spec));
}

// The pools hold NaN where nobody wrote (KADENCE_DEBUG_CHECKS) and old tenants' states elsewhere; the fake model
// refuses to read either.
TEST(Faults, B31_FreedSlotsAreNotReadByTheNextTenant) {
  Rig rig(5, 12, sizes(128, 256, 2));
  for (uint64_t i = 0; i < 60; ++i) {
    RequestSpec spec = generate(some_tokens(i % 7, 100 + static_cast<int64_t>(i % 5) * 60), 5);
    rig.run_and_compare(spec);
    if (i % 10 == 9) rig.engine->flush_cache();
  }
  rig.expect_at_rest();
}

TEST(Faults, B32_ARetractedRequestStartsAgainAndGivesTheSameBits) {
  Rig rig(12, 9, sizes(512, 1024, 3));
  std::vector<std::pair<RequestId, RequestSpec>> all;
  for (uint64_t i = 0; i < 3; ++i) {
    RequestSpec spec = generate(some_tokens(i, 100), 200);
    spec.score_from = 70;
    spec.sampling = {.temperature = 1, .seed = i};
    all.emplace_back(rig.submit(spec), spec);
  }
  rig.drain();
  for (const auto& [id, spec] : all) expect_same(rig.output(id), naive_run(spec));
  EXPECT_GT(rig.engine->stats().retracted, 0);
  // Tokens are told once, also to the request that made them twice.
  EXPECT_EQ(rig.engine->take_events().size(), 600u);
  rig.expect_at_rest();
}

TEST(Faults, B33_LaterChunksContinueTheCarriedState) {
  const RequestSpec spec = generate(some_tokens(1, 1000), 5);
  for (const int64_t chunk : {64, 65, 143, 512, 960, 1000, 5000}) {
    SCOPED_TRACE(chunk);
    Rig rig(12, 64, sizes(chunk, 5000));
    rig.run_and_compare(spec);
    EXPECT_EQ(rig.run_and_compare(spec), 960);
    RequestSpec branch = spec;
    branch.ids[700] = (branch.ids[700] + 1) % 60;
    rig.run_and_compare(branch);
  }
}

// A state under a length that it does not have: grid 64, prompt 200, odd chunk sizes, and pages from 16 to 512.
TEST(Faults, B35_EveryCachedStateHasTheLengthOfItsKey) {
  for (const int32_t page : {16, 64, 128, 256, 512}) {
    for (const int64_t n : {63, 64, 65, 127, 128, 129, 200, 511, 512, 513, 1100}) {
      SCOPED_TRACE(page);
      SCOPED_TRACE(n);
      const int64_t grid = std::max(page, 64);
      Rig rig(20, 16 * 512 / page, [&](EngineOptions& o) {
        o.page_size = page;
        o.chunked_prefill_size = grid;
        o.max_prefill_tokens = grid + 37;
        o.track_interval = grid;
      });
      const Ids ids = some_tokens(1, n);
      rig.run_and_compare(generate(ids, 1));
      for (const auto& node : rig.engine->tree().nodes()) {
        EXPECT_EQ(node.depth % grid, 0);
      }
      // Resumes at every cached depth, and just beside it.
      for (const int64_t cut : {n, n - 1, n - n % grid, n - n % grid + 1}) {
        if (cut < 1 || cut > n) continue;
        EXPECT_EQ(rig.run_and_compare(generate(head(ids, cut) + Ids{59, 3}, 2)), base::round_down(cut, grid));
      }
    }
  }
}

// Identical and sharing prompts that finish exactly on boundaries while others run: what one gives away, another still
// reads.
TEST(Faults, B40_NothingIsReusedWhileAStepNeedsIt) {
  Rig rig(10, 30, sizes(128, 512, 5));
  std::vector<std::pair<RequestId, RequestSpec>> open;
  base::Rng rng(3);
  for (int i = 0; i < 500; ++i) {
    const int64_t n = 64 * (1 + static_cast<int64_t>(rng.below(5)));
    Ids ids = head(some_tokens(rng.below(3), 320), n);
    if (rng.below(2)) ids.back() = static_cast<int32_t>(rng.below(kVocab - 1));
    const RequestSpec spec = generate(ids, static_cast<int32_t>(rng.below(3)));
    open.emplace_back(rig.submit(spec), spec);
    if (rng.below(2)) rig.step();
  }
  rig.drain();
  for (const auto& [id, spec] : open) expect_same(rig.output(id), naive_run(spec));
  EXPECT_GT(rig.engine->stats().hits, 100);
  rig.expect_at_rest();
}

TEST(Faults, B41_IdenticalPromptsAtOnceHaveOneAnswer) {
  Rig rig(40, 100, sizes(128, 512));
  const RequestSpec spec = generate(some_tokens(4, 333), 30);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(rig.submit(spec));
  rig.drain();
  for (const RequestId id : ids) expect_same(rig.output(id), naive_run(spec));
  const EngineStats s = rig.engine->stats();
  EXPECT_GT(s.checkpoints_duplicate, 0);
  EXPECT_EQ(s.pages.cached, 5) << "one copy of the pages of 320 tokens";
}

TEST(Faults, B42_APrefixHitRestoresWhatWasWritten) {
  Rig rig;
  const Ids a = some_tokens(1, 200);
  rig.run_and_compare(generate(a, 2));
  EXPECT_EQ(rig.run_and_compare(generate(head(a, 128) + some_tokens(2, 70), 2)), 0)
      << "nobody wrote 128 yet; it is found to be a branch point";
  EXPECT_EQ(rig.run_and_compare(generate(head(a, 128) + some_tokens(3, 70), 2)), 128);
  EXPECT_EQ(rig.engine->stats().misses_no_state, 1);
}

TEST(Faults, B43_AMixedStepKeepsItsCheckpoints) {
  Rig rig;
  rig.submit(generate(some_tokens(1, 30), 50));
  rig.submit(generate(some_tokens(2, 30), 50));
  rig.step();
  const RequestSpec spec = generate(some_tokens(3, 130), 1);
  const RequestId id = rig.submit(spec);
  rig.step();
  ASSERT_EQ(rig.engine->stats().last_step_extend_rows, 1);
  ASSERT_EQ(rig.engine->stats().last_step_decode_rows, 2);
  expect_same(rig.output(id), naive_run(spec));
  EXPECT_EQ(rig.engine->predict_cached_tokens(generate(head(spec.ids, 129), 1)), 128);
  EXPECT_EQ(rig.run_and_compare(generate(spec.ids + Ids{1, 2}, 3)), 128);
}

// Prompt and answer sent again: nothing that decoding computed may be restored, and the second send must hit.
TEST(Faults, B45_OnlyWhatExtendWroteIsRestoredAndItIsRestored) {
  for (const int64_t n : {60, 64, 100, 128}) {
    for (const int32_t answer : {4, 28, 64, 65, 129, 200}) {
      SCOPED_TRACE(n);
      SCOPED_TRACE(answer);
      Rig rig;
      const RequestSpec turn = generate(some_tokens(1, n), answer);
      const Ids next = turn.ids + rig.run(turn).output_ids + Ids{7, 8, 9};
      EXPECT_EQ(rig.run_and_compare(generate(next, 3)), base::round_down<int64_t>(n + answer, 64));
      EXPECT_EQ(rig.run_and_compare(generate(next, 3)), base::round_down<int64_t>(n + answer + 2, 64));
    }
  }
}

TEST(Faults, B46_ASplitEdgeGetsAStateForTheNext) {
  Rig rig;
  const Ids p = some_tokens(1, 256);
  EXPECT_EQ(rig.run_and_compare(generate(p + some_tokens(2, 100), 1)), 0);
  EXPECT_EQ(rig.run_and_compare(generate(p + some_tokens(3, 100), 1)), 0);
  EXPECT_GE(rig.run_and_compare(generate(p + some_tokens(4, 100), 1)), 192);
  EXPECT_EQ(rig.run_and_compare(generate(p + some_tokens(2, 100), 1)), 320);
}

TEST(Faults, B48_ShortPromptsHitAndTheShortestIsTold) {
  Rig rig;
  const Ids shared = some_tokens(1, 100);
  rig.run_and_compare(generate(shared, 1));
  EXPECT_EQ(rig.run_and_compare(generate(shared, 1)), 64);
  EXPECT_EQ(rig.engine->memory_plan().shortest_hit, 65);
  std::string all;
  for (const std::string& line : rig.engine->describe()) all += line + "\n";
  EXPECT_THAT(all, ::testing::HasSubstr("shorter than 65 tokens never hit"));
  rig.run_and_compare(generate(head(shared, 65), 1));
  EXPECT_EQ(rig.run_and_compare(generate(head(shared, 65), 1)), 64);
  EXPECT_EQ(rig.run_and_compare(generate(head(shared, 64), 1)), 0);
}

// Cancelled at every stage, a thousand times.
TEST(Faults, B57_CancellingAtAnyStageLosesNothing) {
  Rig rig(6, 24, sizes(128, 128, 2));
  const Ids base = some_tokens(1, 300);
  rig.run(generate(base, 1));
  base::Rng rng(9);
  for (int i = 0; i < 1000; ++i) {
    // Stages: queued, matched and in chunk 1 of 3, chunk 2, decoding, finished but not collected, in replay.
    const RequestSpec spec =
        generate(head(base, 64 + static_cast<int64_t>(rng.below(3)) * 100) + some_tokens(rng.next(), 250), 70);
    const RequestId id = rig.submit(spec);
    const RequestId other = rig.submit(generate(some_tokens(rng.next(), 100), 3));
    const uint64_t steps = rng.below(4) == 0 ? 80 : rng.below(8);
    for (uint64_t s = 0; s < steps; ++s) rig.step();
    const bool finished = rig.engine->stats().finished > 0 && rig.engine->take_output(id).has_value();
    EXPECT_EQ(rig.engine->cancel(id), !finished);
    rig.engine->check_accounting();
    if (!finished) {
      EXPECT_EQ(rig.output(id).reason, FinishReason::kCancelled);
    }
    rig.engine->cancel(other);
    rig.engine->check_accounting();
    if (rng.below(20) == 0) rig.drain();
    ASSERT_FALSE(HasFailure());
  }
  rig.drain();
  rig.expect_at_rest();
  EXPECT_GT(rig.engine->stats().cancelled, 500);
}

// Nobody is admitted half: a prompt that must wait leaves pools, locks and the cache as they were.
TEST(Faults, B57_WaitingHoldsNothingAndEvictsNothing) {
  Rig rig(8, 10);
  const Ids known = some_tokens(1, 65);
  rig.run(generate(known, 1));
  const RequestSpec big = generate(some_tokens(2, 64 * 6), 100);
  const RequestId first = rig.submit(big);
  rig.step();
  const RequestSpec waits = generate(known + some_tokens(3, 64 * 5), 1);  // matches, but needs five pages more
  const RequestId second = rig.submit(waits);
  for (int i = 0; i < 50; ++i) {
    rig.step();
    const EngineStats s = rig.engine->stats();
    ASSERT_EQ(s.waiting, 1);
    ASSERT_EQ(s.slots.working, 1);
    ASSERT_EQ(rig.engine->predict_cached_tokens(generate(known, 1)), 64);
  }
  rig.drain();
  expect_same(rig.output(first), naive_run(big));
  const RequestOutput out = rig.output(second);
  expect_same(out, naive_run(waits));
  EXPECT_EQ(out.cached_tokens, 64);
}

TEST(Faults, B58_ExhaustedSlotsSkipCheckpointsAndRequestsWait) {
  Rig rig(2, 200, sizes(64, 1024, 4));
  EXPECT_EQ(rig.engine->memory_plan().effective_running_requests, 1);
  std::vector<std::pair<RequestId, RequestSpec>> all;
  for (uint64_t i = 0; i < 4; ++i) {
    const RequestSpec spec = generate(some_tokens(i, 400), 10);
    all.emplace_back(rig.submit(spec), spec);
  }
  rig.drain();
  for (const auto& [id, spec] : all) expect_same(rig.output(id), naive_run(spec));
  EXPECT_GT(rig.engine->stats().checkpoints_skipped, 0);

  Rig one(1, 200, sizes(64, 1024, 4));
  EXPECT_EQ(one.run_and_compare(generate(some_tokens(1, 200), 3)), 0);
  EXPECT_EQ(one.run_and_compare(generate(some_tokens(1, 200), 3)), 0);
  one.expect_at_rest();
}

// All the slots that running requests lock must not keep promised places from being filled.
TEST(Faults, B61_ThePromisedConcurrencyIsReached) {
  for (const int32_t slots : {5, 7, 10, 11, 14, 40}) {
    SCOPED_TRACE(slots);
    Rig rig(slots, 400, sizes(64, 64, 8));
    const int32_t promised = rig.engine->memory_plan().effective_running_requests;
    EXPECT_EQ(promised, std::min(8, slots - 3));
    bool said = false;
    for (const std::string& line : rig.engine->describe())
      said = said || line.find("use --state-slots 11") != std::string::npos;
    EXPECT_EQ(said, promised < 8);
    for (uint64_t i = 0; i < 8; ++i) rig.submit(generate(some_tokens(i, 200), 200));
    int32_t most = 0;
    while (rig.step()) most = std::max(most, rig.engine->stats().running);
    EXPECT_EQ(most, promised);
  }
}

TEST(Faults, B61_SlotsOfARequestAreThoseOfThePlan) {
  Rig rig(24, 64);
  int32_t peak = 0;
  rig.model->on_forward = [&](const model::ForwardBatch&) {
    const auto s = rig.engine->stats().slots;
    peak = std::max(peak, s.working + s.reserved);
  };
  rig.run(generate(some_tokens(1, 200), 1));
  rig.run(generate(head(some_tokens(1, 200), 128) + some_tokens(2, 128), 1));  // branch 128, 192 and 256 in one grant
  EXPECT_EQ(peak, rig.engine->memory_plan().slots_per_request);
}

TEST(Faults, B59_ARequestThatNeedsAlmostAllPagesIsServed) {
  Rig rig(12, 20, sizes(256, 512, 6));
  const RequestSpec big = generate(some_tokens(99, 64 * 19), 60);
  std::vector<std::pair<RequestId, RequestSpec>> all;
  RequestId big_id;
  int served_after = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    if (i == 10) big_id = rig.submit(big);
    const RequestSpec spec = generate(some_tokens(i, 70), 20);
    all.emplace_back(rig.submit(spec), spec);
    rig.step();
  }
  int steps = 0;
  std::optional<RequestOutput> out;
  while (!(out = rig.engine->take_output(big_id))) {
    rig.step();
    ASSERT_LT(++steps, 400);
  }
  expect_same(*out, naive_run(big));
  for (const auto& [id, spec] : all) served_after += rig.engine->take_output(id) ? 0 : 1;
  EXPECT_GT(served_after, 20) << "requests behind it waited for it";
  rig.drain();
}

// Budget below and beside the grid: every step moves somebody.
TEST(Faults, B59_EveryStepMakesProgress) {
  for (const int64_t budget : {64, 65, 100, 127, 128, 191}) {
    Rig rig(20, 60, sizes(64, budget));
    for (uint64_t i = 0; i < 10; ++i) rig.submit(generate(some_tokens(i, 90 + static_cast<int64_t>(i) * 7), 4));
    int64_t before = -1;
    while (rig.engine->stats().finished < 10) {
      rig.step();
      const EngineStats s = rig.engine->stats();
      ASSERT_GT(s.prefill_tokens + s.decode_tokens, before);
      before = s.prefill_tokens + s.decode_tokens;
    }
  }
  EngineOptions options;
  options.chunked_prefill_size = 63;
  FakeModel model;
  EXPECT_THROW(fake_plan(model, options, 8, 8), base::Error);
}

// 200 prompts of three checkpoints each: the states keep to their own budget, and the last prompts can be resumed.
TEST(Faults, B64_StatesHaveABudgetOfTheirOwn) {
  Rig rig(30, 2000, sizes(64, 256));
  std::vector<Ids> prompts;
  for (uint64_t i = 0; i < 200; ++i) {
    prompts.push_back(some_tokens(i, 200));
    rig.run(generate(prompts.back(), 1));
    ASSERT_LE(rig.engine->stats().slots.cached, 30);
  }
  for (size_t i = 193; i < 200; ++i) EXPECT_EQ(rig.run_and_compare(generate(prompts[i], 1)), 192);
}

// More than four chunks, all slots in use, short and long prompts together, streaming.
TEST(Faults, B66_ManyChunksWithFullPools) {
  Rig rig(7, 100, sizes(64, 256, 4));
  std::vector<std::pair<RequestId, RequestSpec>> all;
  for (uint64_t i = 0; i < 24; ++i) {
    const RequestSpec spec = generate(some_tokens(i % 5, i % 4 == 0 ? 1500 : 50 + static_cast<int64_t>(i) * 11), 30);
    all.emplace_back(rig.submit(spec), spec);
  }
  rig.drain();
  for (const auto& [id, spec] : all) expect_same(rig.output(id), naive_run(spec));
  rig.expect_at_rest();
}

TEST(Faults, B67_CountersTellTooShortFromBroken) {
  Rig rig;
  rig.run(generate(some_tokens(1, 40), 1));
  rig.run(generate(some_tokens(1, 40), 1));
  rig.run(generate(some_tokens(2, 200), 1));
  rig.run(generate(some_tokens(2, 200), 1));
  rig.run(generate(head(some_tokens(2, 200), 130) + Ids{1}, 1));
  RequestSpec off = generate(some_tokens(2, 200), 1);
  off.use_cache = false;
  rig.run(off);
  const EngineStats s = rig.engine->stats();
  EXPECT_EQ(s.lookups, 6);
  EXPECT_EQ(s.hits, 1);
  EXPECT_EQ(s.misses_too_short, 2);
  EXPECT_EQ(s.misses_no_match, 1);
  EXPECT_EQ(s.misses_no_state, 1);
  EXPECT_EQ(s.misses_disabled, 1);
  EXPECT_EQ(s.restored_tokens, 192);
  EXPECT_EQ(s.prefill_tokens, 40 + 40 + 200 + 8 + 131 + 200);
  EXPECT_EQ(s.slots.cached, 2);
  EXPECT_EQ(s.slots.free, 22);
  EXPECT_EQ(s.finished, 6);
}

// A step with nothing to do touches nothing.
TEST(Faults, B72_AnIdleEngineDoesNothing) {
  Rig rig;
  EXPECT_FALSE(rig.step());
  rig.run(generate(some_tokens(1, 70), 1));
  const size_t calls = rig.model->calls.size();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(rig.step());
  EXPECT_EQ(rig.model->calls.size(), calls);
}

}  // namespace
}  // namespace kadence::engine::testing
