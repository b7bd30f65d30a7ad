#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

namespace kadence::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RequestId id(int64_t i) { return RequestId(i); }
PrefillView prefill(int64_t i, int64_t rest, int32_t priority = 0) { return {id(i), {priority, i}, rest}; }
WaitingView waiting(int64_t i, int64_t tokens, int32_t priority = 0) { return {id(i), {priority, i}, tokens}; }
SchedulerLimits limits(int64_t grid, int64_t chunk, int64_t budget, int32_t running = 16) {
  return {grid, chunk, budget, running};
}

TEST(Grants, AreMultiplesOfTheGridOrTheWholeRest) {
  const SchedulerLimits l = limits(64, 512, 1024);
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 1000)}, 1}), ElementsAre(Grant{id(0), 512}));
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 488)}, 1}), ElementsAre(Grant{id(0), 488}));
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 1)}, 1}), ElementsAre(Grant{id(0), 1}));
  EXPECT_THAT(grant_prefill(limits(64, 200, 1024), {{}, {prefill(0, 1000)}, 1}), ElementsAre(Grant{id(0), 192}));
}

TEST(Grants, ShareTheBudgetInOrderOfPlace) {
  const SchedulerLimits l = limits(64, 512, 1024);
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(2, 700), prefill(0, 500), prefill(1, 300)}, 3}),
              ElementsAre(Grant{id(0), 500}, Grant{id(1), 300}, Grant{id(2), 192}));
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 900), prefill(1, 900, 5), prefill(2, 900)}, 3}),
              ElementsAre(Grant{id(1), 512}, Grant{id(0), 512}));
}

// B59: a budget below the grid must neither be cut off the grid nor stop everybody.
TEST(Grants, B59_ALeftoverBelowTheGridIsNotUsed) {
  const SchedulerLimits l = limits(64, 512, 542);
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 512), prefill(1, 100)}, 2}), ElementsAre(Grant{id(0), 512}));
  EXPECT_THAT(grant_prefill(l, {{}, {prefill(0, 512), prefill(1, 100), prefill(2, 30)}, 3}),
              ElementsAre(Grant{id(0), 512}, Grant{id(2), 30}))
      << "a whole rest may use it";
}

TEST(Grants, B59_TheFirstInLineAlwaysGetsAGridUnit) {
  for (const int64_t grid : {64, 256, 768}) {
    for (const int64_t rest : {int64_t{1}, grid - 1, grid, grid + 1, 10 * grid + 7}) {
      const auto grants = grant_prefill(limits(grid, grid, grid), {{}, {prefill(0, rest)}, 1});
      EXPECT_THAT(grants, ElementsAre(Grant{id(0), std::min(rest, grid)}));
    }
  }
}

TEST(Limits, B59_BelowTheGridIsRefusedWithTheNumberToUse) {
  const auto message = [](const SchedulerLimits& l) {
    try {
      validate(l);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::kInvalidArgument);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(limits(256, 255, 1024)),
              ::testing::AllOf(HasSubstr("--chunked-prefill-size"), HasSubstr("256"), HasSubstr("255")));
  EXPECT_THAT(message(limits(256, 256, 64)),
              ::testing::AllOf(HasSubstr("--max-prefill-tokens"), HasSubstr("256"), HasSubstr("64")));
  EXPECT_THAT(message(limits(64, 64, 64, 0)), HasSubstr("--max-running-requests"));
  EXPECT_EQ(message(limits(256, 256, 256)), "");
}

// V7 and V8 of the contract end chunks off the grid (320, 640, 960; a prefix of 324). Here no grant ever does, so no
// relative and absolute boundary can disagree: V7's prompt of 1000 on grid 256 is cut at 256 multiples.
TEST(Grants, V7_V8_NoChunkEndsOffTheGrid) {
  int64_t done = 0;
  std::vector<int64_t> ends;
  while (done < 1000) {
    const auto grants = grant_prefill(limits(256, 320, 640), {{}, {prefill(0, 1000 - done)}, 1});
    ASSERT_EQ(grants.size(), 1u);
    ends.push_back(done += grants[0].tokens);
  }
  EXPECT_THAT(ends, ElementsAre(256, 512, 768, 1000));
}

TEST(Admission, IsFirstComeWithinAPriority) {
  const SchedulerLimits l = limits(64, 512, 1024, 4);
  EXPECT_EQ(next_admission(l, {{waiting(3, 10), waiting(1, 5000), waiting(2, 10)}, {}, 0}), id(1));
  EXPECT_EQ(next_admission(l, {{waiting(3, 10), waiting(1, 10), waiting(2, 10, 7)}, {}, 0}), id(2));
  EXPECT_EQ(next_admission(l, {{}, {}, 0}), std::nullopt);
  EXPECT_EQ(next_admission(l, {{waiting(1, 10)}, {}, 4}), std::nullopt) << "all places taken";
}

TEST(Admission, WaitsUntilThereIsBudgetForAGrant) {
  const SchedulerLimits l = limits(64, 512, 512, 4);
  EXPECT_EQ(next_admission(l, {{waiting(5, 100)}, {prefill(0, 9000)}, 1}), std::nullopt);
  EXPECT_EQ(next_admission(l, {{waiting(5, 100)}, {prefill(0, 448)}, 1}), id(5));
  EXPECT_EQ(next_admission(l, {{waiting(5, 100)}, {prefill(0, 449)}, 1}), std::nullopt);
  EXPECT_EQ(next_admission(l, {{waiting(5, 30)}, {prefill(0, 449)}, 1}), id(5));
  EXPECT_EQ(next_admission(l, {{waiting(5, 100, 1)}, {prefill(0, 9000)}, 1}), id(5))
      << "a higher priority takes the budget";
}

TEST(Retraction, TakesTheLastInLine) {
  const std::vector<RunningView> three{{id(0), {0, 0}}, {id(1), {0, 1}}, {id(2), {3, 2}}};
  EXPECT_EQ(retraction_victim(three, id(0)), id(1)) << "the latest of the lowest priority";
  EXPECT_EQ(retraction_victim(three, id(1)), id(1)) << "itself, if it is the last";
  EXPECT_EQ(retraction_victim(std::vector<RunningView>{{id(0), {0, 0}}}, id(0)), std::nullopt);
  EXPECT_EQ(retraction_victim({}, id(0)), std::nullopt);
}

TEST(Tracking, V12_NamesTheTokenThatEndsOnTheGrid) {
  EXPECT_EQ(track_index(250, 258, 256), 5);
  EXPECT_EQ(track_index(250, 255, 256), -1);
  EXPECT_EQ(track_index(255, 256, 256), 0);
  EXPECT_EQ(track_index(256, 257, 256), -1);
  EXPECT_EQ(track_index(250, 520, 256), 512 - 250 - 1);
}

// A day of traffic on a virtual clock against a toy pool of pages: every request is served, within a bound, and nobody
// is admitted before an earlier one of its priority.
TEST(Admission, B59_NobodyStarves) {
  struct Sim {
    int64_t rest, decode, pages;
  };
  for (const uint64_t seed : {1, 2, 3, 4}) {
    base::Rng rng(seed);
    base::VirtualClock clock;
    const SchedulerLimits l = limits(64, 256, 320, 3);
    const int64_t capacity = 100;
    int64_t free = capacity, arrivals = 0, served = 0;
    SchedulerState s;
    std::map<RequestId, Sim> sims;
    std::map<int32_t, int64_t> last_admitted;
    while (served < 300) {
      ASSERT_LT(clock.now(), 200000) << "a request waits for ever";
      clock.advance(1);
      while (arrivals < 300 && rng.below(3) == 0) {
        const int64_t tokens =
            rng.below(10) == 0 ? 64 * 99 : 1 + static_cast<int64_t>(rng.below(700));  // some need 99 % of the pages
        s.waiting.push_back(waiting(arrivals, tokens, 0));
        sims[id(arrivals)] = {tokens, 1 + static_cast<int64_t>(rng.below(20)), (tokens + 63) / 64 + 1};
        ++arrivals;
      }
      while (const auto next = next_admission(l, s)) {
        Sim& sim = sims[*next];
        if (sim.pages > free) break;
        free -= sim.pages;
        std::erase_if(s.waiting, [&](const WaitingView& w) { return w.id == *next; });
        s.prefilling.push_back(prefill(next->value, sim.rest));
        ++s.running;
        ASSERT_GE(next->value, last_admitted[0]);
        last_admitted[0] = next->value;
      }
      const auto grants = grant_prefill(l, s);
      int64_t used = 0;
      for (const Grant& g : grants) {
        used += g.tokens;
        sims[g.id].rest -= g.tokens;
        ASSERT_TRUE(g.tokens % 64 == 0 || sims[g.id].rest == 0);
        for (PrefillView& v : s.prefilling) {
          if (v.id == g.id) v.rest -= g.tokens;
        }
      }
      ASSERT_LE(used, l.max_prefill_tokens);
      std::erase_if(s.prefilling, [](const PrefillView& v) { return v.rest == 0; });
      bool progress = used > 0 || s.waiting.empty();
      for (auto& [rid, sim] : sims) {
        const bool is_waiting =
            std::any_of(s.waiting.begin(), s.waiting.end(), [&](const auto& w) { return w.id == rid; });
        if (is_waiting || sim.rest > 0 || sim.decode == 0) continue;
        progress = true;
        if (--sim.decode > 0) continue;
        free += sim.pages;
        --s.running;
        ++served;
      }
      ASSERT_TRUE(progress) << "a step without progress";
    }
    EXPECT_EQ(free, capacity);
  }
}

}  // namespace
}  // namespace kadence::engine
