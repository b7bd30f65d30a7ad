#include "engine/batch_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/executor.h"
#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Request request(int64_t prompt, int32_t slot, std::vector<int32_t> pages) {
  Request r;
  for (int32_t i = 0; i < prompt; ++i) r.tokens.push_back(i % kVocab);
  r.prompt = r.score_next = prompt;
  r.slot = SlotId(slot);
  for (const int32_t p : pages) r.pages.push_back(PageId(p));
  return r;
}

TEST(BatchBuilder, PacksExtendRows) {
  Request fresh = request(70, 3, {9, 8}), resumed = request(200, 4, {5, 6, 7, 2}),
          later = request(300, 1, {0, 1, 3, 4, 10});
  resumed.computed = 128, resumed.resume = SlotId(11);
  later.computed = 64, later.score_next = 100;
  const std::vector<ExtendRow> rows{
      {&fresh, 70, {{64, SlotId(20)}}}, {&resumed, 72, {}}, {&later, 64, {{128, SlotId(21)}}}};
  const BuiltBatch built = build_extend(rows, 64);
  const model::ForwardBatch& b = built.batch;
  EXPECT_EQ(b.phase, ops::GemmPhase::kPrefill);
  EXPECT_THAT(b.seq_begin, ElementsAre(0, 70, 142, 206));
  EXPECT_THAT(b.start, ElementsAre(0, 128, 64));
  EXPECT_EQ(b.tokens[70], 128 % kVocab);
  EXPECT_THAT(b.state_in, ElementsAre(-1, 11, 1)) << "fresh, the tree's slot, its own";
  EXPECT_THAT(b.state_out, ElementsAre(3, 4, 1));
  EXPECT_THAT(b.ckpt_begin, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(b.ckpt_depth, ElementsAre(64, 64)) << "counted from the row's start";
  EXPECT_THAT(b.ckpt_slot, ElementsAre(20, 21));
  EXPECT_EQ(b.max_pages, 4);
  EXPECT_THAT(b.page_table, ElementsAre(9, 8, -1, -1, 5, 6, 7, 2, 0, 1, -1, -1));
  // The last token of each row, and for the scoring row all from the one before position 100.
  ASSERT_EQ(b.logit_tokens.size(), 2u + (128 - 99));
  EXPECT_EQ(b.logit_tokens[0], 69);
  EXPECT_EQ(b.logit_tokens[1], 141);
  EXPECT_EQ(b.logit_tokens[2], 142 + 99 - 64);
  EXPECT_EQ(built.wants[2].position, 99);
  EXPECT_EQ(built.wants.back().position, 127);
  EXPECT_EQ(built.wants.back().row, 2);
}

TEST(BatchBuilder, PacksStepRowsAndAsksOnlyForUnknownTokens) {
  Request decoding = request(10, 3, {9}), replaying = request(10, 4, {8});
  decoding.tokens.push_back(40), decoding.computed = 10;
  replaying.tokens.insert(replaying.tokens.end(), {41, 42}), replaying.computed = 10;
  const std::vector<Request*> rows{&decoding, &replaying};
  const BuiltBatch built = build_step(rows, 64);
  EXPECT_EQ(built.batch.phase, ops::GemmPhase::kDecode);
  EXPECT_THAT(built.batch.tokens, ElementsAre(40, 41));
  EXPECT_THAT(built.batch.start, ElementsAre(10, 10));
  EXPECT_THAT(built.batch.state_in, ElementsAre(3, 4));
  EXPECT_THAT(built.batch.state_out, ElementsAre(3, 4));
  EXPECT_THAT(built.batch.ckpt_slot, IsEmpty());
  EXPECT_THAT(built.batch.logit_tokens, ElementsAre(0)) << "42 is known already";
}

TEST(BatchBuilder, RefusesARowWithoutPages) {
  Request r = request(70, 3, {9});
  const std::vector<ExtendRow> rows{{&r, 70, {}}};
  EXPECT_THROW(build_extend(rows, 64), base::Error);
}

// Stamps come from what ran, and what is read must be stamped with the row's start.
TEST(Executor, StampsWhatItRanAndRefusesAStateOfAnotherDepth) {
  FakeModel model;
  EngineOptions options;
  const model::CacheShape shape = model::cache_shape(model.config());
  device::Stream stream = device::Stream::cpu(1);
  state::StatePool states(state_shape(shape, options), 4, stream.info());
  state::KvPool pages(kv_shape(shape, options), 4, stream.info());
  model.prepare(forward_options(options), stream);
  Executor executor(model, states, pages, stream);
  Request r = request(130, states.allocate(state::SlotUse::kWorking)->value, {0, 1, 2});
  const SlotId checkpoint = *states.allocate(state::SlotUse::kReserved);
  const auto run = [&](const BuiltBatch& built) {
    executor.forward(built.batch, [](int64_t, int64_t, const float*) {});
  };

  const std::vector<ExtendRow> rows{{&r, 128, {{64, checkpoint}}}};
  run(build_extend(rows, 64));
  EXPECT_EQ(states.stamp(checkpoint).depth, 64);
  EXPECT_EQ(states.stamp(r.slot).depth, 128);
  EXPECT_EQ(states.stamp(r.slot).origin, state::Origin::kExtend);
  EXPECT_NO_THROW(states.require_publishable(checkpoint, 64, true));
  EXPECT_THROW(states.require_publishable(checkpoint, 128, true), base::Error);

  r.computed = 64;  // a lie about how far the slot is
  const std::vector<ExtendRow> wrong{{&r, 66, {}}};
  try {
    run(build_extend(wrong, 64));
    FAIL() << "ran";
  } catch (const base::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("depth 64"));
  }

  r.computed = 128;
  r.tokens.push_back(5);
  const std::vector<Request*> step{&r};
  run(build_step(step, 64));
  EXPECT_EQ(states.stamp(r.slot).depth, 129);
  EXPECT_EQ(states.stamp(r.slot).origin, state::Origin::kStep);
  EXPECT_THROW(states.require_publishable(r.slot, 129, true), base::Error) << "not for an exact cache";
  state::CopyPlan copy;
  copy.copy(r.slot, checkpoint);
  executor.run(copy);
  EXPECT_EQ(states.stamp(checkpoint).depth, 129);
  EXPECT_EQ(states.stamp(checkpoint).origin, state::Origin::kStep);
}

}  // namespace
}  // namespace kadence::engine::testing
