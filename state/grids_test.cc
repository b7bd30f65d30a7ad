#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "state/state_pool.h"

namespace kadence::state {
namespace {

using Depths = std::vector<int64_t>;

// Grids: the least common multiples, found here by search.
int64_t least_common(std::initializer_list<int64_t> of) {
  for (int64_t x = 1;; ++x) {
    bool all = true;
    for (const int64_t v : of) all = all && x % v == 0;
    if (all) return x;
  }
}

TEST(V10, TrackGridIsTheLeastCommonMultiple) {
  EXPECT_EQ(make_grids(512, 256).track, 512);
  EXPECT_EQ(make_grids(128, 256).track, 256);
  EXPECT_EQ(make_grids(128, 192).track, 384);
  EXPECT_EQ(make_grids(64, 256).track, 256);
}

TEST(V11, TreePageHoldsWholeIndexGroups) {
  EXPECT_EQ(make_grids(64, 256, 64 * 4).tree_page, 256);
  EXPECT_EQ(make_grids(96, 256, 64 * 4).tree_page, 768);
  EXPECT_EQ(make_grids(64, 256).tree_page, 64);
}

TEST(Grids, AreLeastCommonMultiplesForAnyPage) {
  for (const int64_t page : {1, 3, 16, 48, 64, 96, 128, 256}) {
    for (const int64_t interval : {1, 64, 100, 256}) {
      for (const int64_t group : {0, 64, 256}) {
        const Grids g = make_grids(page, interval, group);
        EXPECT_EQ(g.tree_page, group ? least_common({page, group}) : page);
        EXPECT_EQ(g.checkpoint, least_common({64, g.tree_page}));
        EXPECT_EQ(g.track, least_common({g.checkpoint, interval}));
      }
    }
  }
}

TEST(Grids, AbsurdArgumentsAreRefused) {
  EXPECT_THROW(make_grids(0, 256), base::Error);
  EXPECT_THROW(make_grids(-64, 256), base::Error);
  EXPECT_THROW(make_grids(64, 0), base::Error);
  EXPECT_THROW(make_grids(64, 256, -1), base::Error);
  EXPECT_THROW(make_grids((int64_t{1} << 62) - 1, (int64_t{1} << 61) - 1), base::Error);  // no wrap
}

TEST(V6, LastChunkOfALongPromptIsFlooredToTheGrid) {
  constexpr int64_t n = 16384 + 4066;
  EXPECT_EQ(checkpoint_depths(16384, n, n, 0, 256), (Depths{20224}));
  EXPECT_EQ(checkpoint_depths(16384, n, n, 0, 64), (Depths{20416}));
}

// V7 and V8 begin grants off the grid. Here grants begin on it: the same prompts in grants that do, and the refusal.
TEST(V7, GrantsOfOnePromptNameEachDepthOnce) {
  EXPECT_EQ(checkpoint_depths(0, 256, 1000, 0, 256), (Depths{256}));
  EXPECT_EQ(checkpoint_depths(256, 512, 1000, 0, 256), (Depths{512}));
  EXPECT_EQ(checkpoint_depths(512, 768, 1000, 0, 256), (Depths{768}));
  EXPECT_EQ(checkpoint_depths(768, 1000, 1000, 0, 256), (Depths{}));
  EXPECT_EQ(checkpoint_depths(0, 1000, 1000, 0, 256), (Depths{768}));
}

TEST(V8, GrantOffTheGridIsRefused) {
  EXPECT_THROW(checkpoint_depths(324, 644, 1000, 0, 256), base::Error);
  EXPECT_EQ(checkpoint_depths(256, 320, 1000, 0, 256), (Depths{}));  // no grid point inside
}

TEST(V9, BranchPointOffTheGridIsIgnored) {
  EXPECT_EQ(checkpoint_depths(256, 900, 900, 576, 256), (Depths{768}));
  EXPECT_EQ(checkpoint_depths(256, 900, 900, 512, 256), (Depths{512, 768}));
  EXPECT_EQ(checkpoint_depths(512, 900, 900, 512, 256), (Depths{768}));  // it is the begin: nothing to write
  EXPECT_EQ(checkpoint_depths(0, 256, 900, 512, 256), (Depths{256}));    // not in this grant
}

TEST(CheckpointDepths, ResendAndContinuationBothFindAState) {
  // A prompt that ends on the grid: the same prompt resumes at n-G (one token is always computed), a longer one at n.
  EXPECT_EQ(checkpoint_depths(0, 128, 128, 0, 64), (Depths{64, 128}));
  EXPECT_EQ(checkpoint_depths(0, 129, 129, 0, 64), (Depths{128}));
  EXPECT_EQ(checkpoint_depths(0, 64, 64, 0, 64), (Depths{64}));
  EXPECT_EQ(checkpoint_depths(0, 63, 63, 0, 64), (Depths{}));
  EXPECT_EQ(checkpoint_depths(0, 0, 0, 0, 64), (Depths{}));
  EXPECT_EQ(checkpoint_depths(64, 64, 100, 0, 64), (Depths{}));
}

// A state is written only at a depth that the tree can name, and never past what the grant computes.
TEST(F05, EveryDepthHasANameInTheTree) {
  base::Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    const int64_t grid = 64 * static_cast<int64_t>(1 + rng.below(5));
    const int64_t begin = grid * static_cast<int64_t>(rng.below(6));
    const int64_t end = begin + static_cast<int64_t>(rng.below(2000));
    const int64_t n = end + (rng.below(2) ? 0 : static_cast<int64_t>(rng.below(500)));
    const int64_t branch = static_cast<int64_t>(rng.below(2500)) * (rng.below(2) ? 1 : 64);
    const Depths got = checkpoint_depths(begin, end, n, branch, grid);
    Depths want;  // the definition, over every depth of the grant
    for (int64_t d = begin + 1; d <= end; ++d) {
      if (d % grid) continue;
      const bool resend = d < n && d + grid >= n;
      const bool longer = d <= n && d + grid > n;
      if (resend || longer || d == branch || (d == end && d < n)) want.push_back(d);
    }
    ASSERT_EQ(got, want) << begin << " " << end << " " << n << " " << branch << " " << grid;
  }
}

// Two chunks of 320 tokens on a grid of 256 once filed the state after 576 tokens under the key of 512.
TEST(F05, TwoChunksOf320NeverNameADepthOffTheGrid) {
  EXPECT_EQ(checkpoint_depths(0, 320, 640, 0, 256),
            (Depths{}));  // no depth of this grant is one that a prompt of 640 wants
  EXPECT_EQ(checkpoint_depths(0, 640, 640, 0, 256), (Depths{512}));
  EXPECT_EQ(checkpoint_depths(256, 640, 640, 0, 256), (Depths{512}));
}

TEST(CheckpointDepths, ContradictoryArgumentsAreRefused) {
  EXPECT_THROW(checkpoint_depths(-64, 64, 64, 0, 64), base::Error);
  EXPECT_THROW(checkpoint_depths(128, 64, 200, 0, 64), base::Error);
  EXPECT_THROW(checkpoint_depths(0, 128, 100, 0, 64), base::Error);
  EXPECT_THROW(checkpoint_depths(0, 64, 64, -1, 64), base::Error);
  EXPECT_THROW(checkpoint_depths(0, 64, 64, 0, 0), base::Error);
}

}  // namespace
}  // namespace kadence::state
