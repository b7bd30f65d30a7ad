// Random traffic: branches, turns, identical prompts, cancellations, pools that are too small. Every answer is the
// naive model's, every step is followed by the accounting check, and the cache must be of use.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

struct Traffic {
  const char* name;
  int32_t slots;
  int64_t pages;
  int32_t page_size;
  int64_t chunk, budget;
  int32_t running;
  int64_t longest;  // prompt
  CacheGenerated generated = CacheGenerated::kReplay;
  bool retracts = false;  // must happen
  bool skips = false;     // checkpoints must be skipped
};

std::ostream& operator<<(std::ostream& out, const Traffic& t) { return out << t.name; }

class RandomTraffic : public ::testing::TestWithParam<Traffic> {};

class Driver {
 public:
  Driver(const Traffic& traffic, uint64_t seed)
      : t_(traffic), rng_(seed), rig_(traffic.slots, traffic.pages, [&](EngineOptions& o) {
          o.page_size = traffic.page_size;
          o.chunked_prefill_size = traffic.chunk;
          o.max_prefill_tokens = traffic.budget;
          o.max_running_requests = traffic.running;
          o.cache_generated = traffic.generated;
          o.track_interval = 64;
        }) {}

  void run(int submissions) {
    while (submissions > 0 || !open_.empty()) {
      const uint64_t dice = rng_.below(100);
      if (submissions > 0 && dice < 40) {
        const RequestSpec spec = next_spec();
        const int copies = rng_.below(8) == 0 ? 3 : 1;  // identical prompts at once
        for (int i = 0; i < copies && submissions > 0; ++i, --submissions) open_.emplace_back(rig_.submit(spec), spec);
      } else if (dice < 43 && !open_.empty()) {
        const auto& [id, spec] = open_[rng_.below(open_.size())];
        EXPECT_TRUE(rig_.engine->cancel(id));
        EXPECT_FALSE(rig_.engine->cancel(id));
        rig_.engine->check_accounting();
      } else if (dice == 43) {
        rig_.engine->flush_cache();
        rig_.engine->check_accounting();
      } else {
        ASSERT_TRUE(rig_.step() || open_.empty());
        ASSERT_LT(++steps_, 60000) << "no end";
      }
      collect();
      if (::testing::Test::HasFailure()) return;
    }
    rig_.drain();
    rig_.expect_at_rest();
  }

  Rig& rig() { return rig_; }

 private:
  RequestSpec next_spec() {
    Ids ids;
    const uint64_t kind = rng_.below(10);
    if (kind < 5 && !texts_.empty()) {  // a branch of, or a turn after, something seen before
      const Ids& old = texts_[rng_.below(texts_.size())];
      const auto keep = rng_.below(3) == 0 ? old.size() : rng_.below(old.size()) + 1;
      ids = head(old, static_cast<int64_t>(keep));
      if (rng_.below(4) != 0) ids = ids + some_tokens(rng_.next(), 1 + static_cast<int64_t>(rng_.below(100)));
    } else if (kind < 7 && !texts_.empty()) {  // the same again
      ids = texts_[rng_.below(texts_.size())];
    } else {
      ids = some_tokens(rng_.next(), 1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(t_.longest))));
    }
    if (static_cast<int64_t>(ids.size()) > t_.longest) ids.resize(static_cast<size_t>(t_.longest));
    const auto n = static_cast<int64_t>(ids.size());
    RequestSpec spec = generate(ids, static_cast<int32_t>(rng_.below(rng_.below(4) == 0 ? 200 : 20)));
    spec.ignore_eos = rng_.below(2) == 0;
    if (rng_.below(3) == 0) spec.score_from = 1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(n)));
    if (rng_.below(10) == 0) spec.use_cache = false;
    if (rng_.below(10) == 0) spec.cache_salt = "other";
    spec.priority = rng_.below(10) == 0 ? 1 : 0;
    if (rng_.below(3) == 0) spec.sampling = {.temperature = 1, .top_p = 0.9f, .seed = rng_.next()};
    spec.top_logprobs = rng_.below(5) == 0 ? 2 : 0;
    return spec;
  }

  void collect() {
    std::erase_if(open_, [&](const auto& entry) {
      const auto& [id, spec] = entry;
      std::optional<RequestOutput> out = rig_.engine->take_output(id);
      if (!out) return false;
      if (t_.generated ==
          CacheGenerated::kStep) {  // not bound to the cold bits; the fake model still checks every read
        EXPECT_EQ(out->error, "");
      } else if (out->reason == FinishReason::kCancelled) {
        const RequestOutput want = naive_run(spec);
        EXPECT_LE(out->output_ids.size(), want.output_ids.size());
        EXPECT_TRUE(std::equal(out->output_ids.begin(), out->output_ids.end(), want.output_ids.begin()));
      } else {
        expect_same(*out, naive_run(spec));
      }
      if (out->reason != FinishReason::kCancelled && texts_.size() < 40) texts_.push_back(spec.ids + out->output_ids);
      return true;
    });
  }

  const Traffic t_;
  base::Rng rng_;
  Rig rig_;
  std::vector<std::pair<RequestId, RequestSpec>> open_;
  std::vector<Ids> texts_;
  int steps_ = 0;
};

TEST_P(RandomTraffic, GivesTheNaiveAnswers) {
  int64_t hits = 0, retracted = 0, skipped = 0, duplicate = 0;
  for (const uint64_t seed : {11, 12, 13, 14, 15}) {
    SCOPED_TRACE(seed);
    Driver driver(GetParam(), seed);
    driver.run(150);
    if (HasFailure()) return;
    const EngineStats s = driver.rig().engine->stats();
    EXPECT_EQ(s.lookups, s.hits + s.misses_disabled + s.misses_no_match + s.misses_no_state + s.misses_too_short);
    hits += s.hits, retracted += s.retracted, skipped += s.checkpoints_skipped, duplicate += s.checkpoints_duplicate;
  }
  const bool can_hit = GetParam().slots > 1;
  EXPECT_EQ(hits > 0, can_hit);
  EXPECT_TRUE(retracted > 0 || !GetParam().retracts);
  EXPECT_TRUE(skipped > 0 || !GetParam().skips);
  EXPECT_TRUE(duplicate > 0 || GetParam().slots < 40);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, RandomTraffic,
    ::testing::Values(Traffic{"roomy", 60, 400, 64, 512, 1024, 8, 500},
                      Traffic{"small_pages", 40, 600, 16, 128, 256, 8, 400},
                      Traffic{"page_128", 40, 200, 128, 256, 512, 8, 500},
                      Traffic{"short_of_pages", 20, 12, 64, 128, 256, 6, 500, CacheGenerated::kReplay, true},
                      Traffic{"short_of_small_pages", 12, 40, 16, 64, 128, 5, 400, CacheGenerated::kReplay, true},
                      Traffic{"short_of_slots", 7, 200, 64, 64, 64, 6, 400, CacheGenerated::kReplay, false, true},
                      Traffic{"one_slot", 1, 30, 64, 64, 128, 3, 400, CacheGenerated::kReplay, false, true},
                      Traffic{"two_slots", 2, 30, 64, 64, 128, 3, 400},
                      Traffic{"short_of_both", 5, 7, 64, 64, 192, 4, 300},
                      Traffic{"no_replay", 40, 100, 64, 512, 1024, 8, 500, CacheGenerated::kOff},
                      Traffic{"step_tracking", 20, 60, 64, 128, 512, 8, 400, CacheGenerated::kStep}),
    [](const auto& traffic) { return std::string(traffic.param.name); });

}  // namespace
}  // namespace kadence::engine::testing
