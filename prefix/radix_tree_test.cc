#include "prefix/radix_tree.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <numeric>

#include "base/error.h"

namespace kadence::prefix {
namespace {

using Ids = std::vector<int32_t>;

// Tokens first, first+1, ...
Ids run_of(int32_t first, int64_t n) {
  Ids t(static_cast<size_t>(n));
  std::iota(t.begin(), t.end(), first);
  return t;
}
Ids join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::vector<PageId> page_run(int32_t first, int64_t n) {
  std::vector<PageId> p;
  for (int64_t i = 0; i < n; ++i) p.emplace_back(first + static_cast<int32_t>(i));
  return p;
}

constexpr int64_t kGrid = 64;

class Tree : public ::testing::Test {
 protected:
  // Publishes with fresh pages and checks the tree.
  InsertResult publish(const Ids& tokens, int32_t state = -1, const Namespace& ns = "") {
    const auto n = static_cast<int64_t>(tokens.size()) / 64;
    const InsertResult r = tree.insert(ns, tokens, page_run(next_page_, n), SlotId(state));
    next_page_ += static_cast<int32_t>(n);
    tree.check();
    return r;
  }
  MatchResult match(const Ids& tokens, const Namespace& ns = "") {
    const MatchResult m = tree.match(ns, tokens, static_cast<int64_t>(tokens.size()) - 1, kGrid);
    tree.check();
    return m;
  }
  LockHandle lock(const Ids& tokens, int64_t depth) {
    const LockHandle h = tree.lock("", tokens, depth);
    tree.check();
    return h;
  }
  void unlock(LockHandle h) {
    tree.unlock(h);
    tree.check();
  }

  RadixTree tree{{64, 64}};
  int32_t next_page_ = 0;
};
using B35 = Tree;
using B46 = Tree;
using B52 = Tree;
using F17 = Tree;
using F18 = Tree;
using F19 = Tree;
using F20 = Tree;

TEST_F(Tree, EmptyTreeKnowsNothing) {
  const MatchResult m = match(run_of(0, 200));
  EXPECT_EQ(m.matched, 0);
  EXPECT_EQ(m.resumable, 0);
  EXPECT_FALSE(m.state.valid());
  EXPECT_EQ(m.branch, 0);
  EXPECT_FALSE(lock(run_of(0, 200), 0).valid());
  tree.unlock({});
  EXPECT_TRUE(tree.evict_pages(5).pages.empty());
  EXPECT_TRUE(tree.evict_state().states.empty());
  EXPECT_EQ(tree.counts().nodes, 0);
}

TEST_F(Tree, ResumesAtTheDeepestStateBelowTheLimit) {
  const Ids t = run_of(0, 256);
  publish(Ids(t.begin(), t.begin() + 128), 1);
  publish(t, 2);
  MatchResult m = tree.match("", t, 256, kGrid);
  EXPECT_EQ(m.resumable, 256);
  EXPECT_EQ(m.state, SlotId(2));
  EXPECT_EQ(m.pages.size(), 4u);
  m = match(t);  // at least one token is always computed
  EXPECT_EQ(m.matched, 256);
  EXPECT_EQ(m.resumable, 128);
  EXPECT_EQ(m.state, SlotId(1));
  EXPECT_EQ(m.branch, 192);
  m = tree.match("", t, 127, kGrid);  // scores from token 128 on
  EXPECT_EQ(m.resumable, 0);
  EXPECT_TRUE(m.pages.empty());
  EXPECT_EQ(m.branch, 64);
  m = tree.match("", t, 63, kGrid);
  EXPECT_EQ(m.branch, 0);
  m = tree.match("", t, -1, kGrid);  // an empty prompt
  EXPECT_EQ(m.resumable, 0);
  EXPECT_EQ(m.branch, 0);
  EXPECT_EQ(tree.match("", t, 255, 128).branch, 0);  // the coarser grid has no point between 128 and 255
}

TEST_F(Tree, NamespacesDoNotMix) {
  const Ids t = run_of(0, 128);
  publish(t, 1, "a");
  EXPECT_EQ(match(join(t, {1}), "a").resumable, 128);
  EXPECT_EQ(match(join(t, {1}), "b").matched, 0);
  EXPECT_EQ(match(join(t, {1}), "").matched, 0);
  EXPECT_THROW(tree.lock("b", t, 128), base::Error);
  EXPECT_TRUE(publish(t, 2, "b").state_taken);
  EXPECT_EQ(match(join(t, {1}), "b").state, SlotId(2));
  EXPECT_EQ(tree.evict_pages(1).states, std::vector<SlotId>{SlotId(1)});
  tree.check();
  EXPECT_EQ(match(join(t, {1}), "b").resumable, 128);
}

TEST_F(Tree, DuplicatesStayWithTheCaller) {
  const Ids t = run_of(0, 192);
  publish(t, 1);
  const auto dup = tree.insert("", t, page_run(50, 3), SlotId(9));
  EXPECT_EQ(dup.pages, page_run(0, 3));
  EXPECT_FALSE(dup.state_taken);
  EXPECT_EQ(tree.counts().pages, 3);
  EXPECT_EQ(tree.counts().states, 1);
  // A longer key: the known part is the tree's, the rest is taken.
  const auto longer = tree.insert("", join(t, run_of(1000, 64)), page_run(60, 4), SlotId(9));
  EXPECT_EQ(longer.pages, (std::vector<PageId>{PageId(0), PageId(1), PageId(2), PageId(63)}));
  EXPECT_TRUE(longer.state_taken);
  tree.check();
}

TEST_F(Tree, BadArgumentsAreRefusedAndChangeNothing) {
  const Ids t = run_of(0, 128);
  publish(t, 1);
  const auto bad = [&](auto f) {
    EXPECT_THROW(f(), base::Error);
    tree.check();
    EXPECT_EQ(tree.counts().pages, 2);
    EXPECT_EQ(tree.counts().nodes, 1);
  };
  const Ids other = run_of(500, 128);
  bad([&] { tree.insert("", run_of(500, 100), page_run(10, 1), SlotId()); });  // not whole pages
  bad([&] { tree.insert("", other, page_run(10, 1), SlotId()); });             // too few
  bad([&] { tree.insert("", other, page_run(1, 2), SlotId()); });              // page 1 is the tree's
  bad([&] { tree.insert("", t, {{PageId(1), PageId(0)}}, SlotId()); });        // the tree's, but elsewhere
  bad([&] { tree.insert("", other, {{PageId(7), PageId(7)}}, SlotId()); });    // twice
  bad([&] { tree.insert("", other, {{PageId(7), PageId()}}, SlotId()); });     // none
  bad([&] { tree.insert("", other, page_run(10, 2), SlotId(1)); });            // the tree's state
  bad([&] { tree.insert("", {}, {}, SlotId(4)); });                            // a state of nothing
  bad([&] { tree.lock("", t, 100); });
  bad([&] { tree.lock("", t, -64); });
  bad([&] { tree.lock("", t, 192); });
  bad([&] { tree.lock("", join(t, other), 192); });
  bad([&] { tree.match("", t, 1, 0); });
  bad([&] { tree.match("", t, 1, 96); });
  bad([&] { tree.unlock({1, 77}); });
  EXPECT_THROW(RadixTree({64, 48}), base::Error);
  EXPECT_THROW(RadixTree({0, 1}), base::Error);
  EXPECT_THROW(RadixTree({64, 0}), base::Error);
  EXPECT_TRUE(publish(other, 2).state_taken);
}

// The state stays at the end that it is about; the new upper node has none.
TEST_F(B35, SplitLeavesTheStateWithTheLowerNode) {
  const Ids t = run_of(0, 256);
  publish(t, 1);
  publish(join(Ids(t.begin(), t.begin() + 128), run_of(900, 64)), 2);  // splits at 128
  const auto nodes = tree.nodes();
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].depth, 128);
  EXPECT_FALSE(nodes[0].has_state);
  MatchResult m = match(join(t, {1}));
  EXPECT_EQ(m.resumable, 256);
  EXPECT_EQ(m.state, SlotId(1));
  m = match(join(Ids(t.begin(), t.begin() + 128), {1}));
  EXPECT_EQ(m.matched, 128);
  EXPECT_EQ(m.resumable, 0);
  EXPECT_FALSE(m.state.valid());
  EXPECT_EQ(m.branch, 128);
  // So does a split by a lock.
  const LockHandle h = lock(t, 192);
  m = match(join(Ids(t.begin(), t.begin() + 192), {1}));
  EXPECT_EQ(m.resumable, 0);
  EXPECT_EQ(match(join(t, {1})).state, SlotId(1));
  unlock(h);
}

// The second of three siblings learns where to leave a state, the third resumes there.
TEST_F(B46, ThirdSiblingReusesThePrefix) {
  const Ids p = run_of(0, 256), a = run_of(1000, 128), b = run_of(2000, 128), c = run_of(3000, 128);
  publish(join(p, a), 1);
  const MatchResult second = match(join(p, b));
  EXPECT_EQ(second.matched, 256);
  EXPECT_EQ(second.resumable, 0);
  EXPECT_EQ(second.branch, 256);
  EXPECT_TRUE(publish(Ids(p.begin(), p.begin() + second.branch), 2).state_taken);
  EXPECT_TRUE(publish(join(p, b), 3).state_taken);
  const MatchResult third = match(join(p, c));
  EXPECT_EQ(third.resumable, 256);
  EXPECT_EQ(third.state, SlotId(2));
  EXPECT_EQ(third.branch, 0);
}

// Usable = what has both: pages without a state are not resumable, however long.
TEST_F(B52, PagesWithoutAStateDoNotCount) {
  const Ids t = run_of(0, 512);
  publish(Ids(t.begin(), t.begin() + 256), 1);
  publish(t);
  const MatchResult m = match(join(t, {1}));
  EXPECT_EQ(m.matched, 512);
  EXPECT_EQ(m.resumable, 256);
  EXPECT_EQ(m.pages.size(), 4u);
  EXPECT_EQ(m.branch, 512);
}

// A lock taken before the state came does not unlock the state; one taken after does.
TEST_F(F17, LocksBalanceWhenAStateIsAttachedInBetween) {
  const Ids t = run_of(0, 128);
  publish(t);
  const LockHandle early = lock(t, 128);
  EXPECT_EQ(tree.counts().locked_states, 0);
  EXPECT_TRUE(publish(t, 5).state_taken);
  EXPECT_EQ(tree.counts().locked_states, 0);
  const LockHandle late = lock(t, 128);
  EXPECT_EQ(tree.counts().locked_states, 1);
  unlock(early);
  EXPECT_EQ(tree.counts().locked_states, 1);
  EXPECT_TRUE(tree.evict_state().states.empty());
  EXPECT_TRUE(tree.evict_pages(9).pages.empty());
  unlock(late);
  EXPECT_EQ(tree.counts().locked_states, 0);
  EXPECT_EQ(tree.counts().locked_pages, 0);
  EXPECT_EQ(tree.evict_state().states, std::vector<SlotId>{SlotId(5)});
  EXPECT_EQ(tree.counts().nodes, 0);
}

TEST_F(F17, LocksBalanceOverSplitsAndInsertions) {
  const Ids t = run_of(0, 256);
  publish(t, 1);
  const LockHandle whole = lock(t, 256);
  const LockHandle part = lock(t, 64);                                 // splits the locked node
  publish(join(Ids(t.begin(), t.begin() + 192), run_of(700, 64)), 2);  // and this again
  const LockHandle below = lock(join(Ids(t.begin(), t.begin() + 192), run_of(700, 64)), 256);
  EXPECT_EQ(tree.counts().locked_pages, 5);
  unlock(part);
  EXPECT_EQ(tree.counts().locked_pages, 5);
  unlock(whole);
  EXPECT_EQ(tree.counts().locked_pages, 4);
  const Evicted e = tree.evict_pages(100);
  EXPECT_EQ(e.pages, std::vector<PageId>{PageId(3)});  // what only the first one held
  EXPECT_EQ(e.states, std::vector<SlotId>{SlotId(1)});
  unlock(below);
  EXPECT_EQ(tree.evict_pages(100).pages.size(), 4u);
  EXPECT_EQ(tree.counts().nodes, 0);
}

TEST_F(F17, UnlockingTwiceIsRefused) {
  const Ids t = run_of(0, 128);
  publish(t, 1);
  const LockHandle a = lock(t, 128), b = lock(t, 128);
  unlock(a);
  EXPECT_THROW(tree.unlock(a), base::Error);
  tree.check();
  EXPECT_EQ(tree.counts().locked_states, 1);
  unlock(b);
}

// Whatever is evicted to make room for a request, its own match stays.
TEST_F(F18, EvictionForTheMatchedRequestSparesItsMatch) {
  const Ids t = run_of(0, 256), u = run_of(5000, 128);
  publish(Ids(t.begin(), t.begin() + 128), 1);
  publish(t, 2);
  publish(u, 3);
  const MatchResult m = tree.match("", t, 200, kGrid);
  ASSERT_EQ(m.resumable, 128);
  const LockHandle h = lock(t, m.resumable);
  std::vector<SlotId> gone;
  for (int i = 0; i < 5; ++i) {
    for (const SlotId s : tree.evict_state().states) gone.push_back(s);
    for (const SlotId s : tree.evict_pages(100).states) gone.push_back(s);
    tree.check();
  }
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(gone, (std::vector<SlotId>{SlotId(2), SlotId(3)}));
  const MatchResult again = tree.match("", t, 200, kGrid);
  EXPECT_EQ(again.resumable, 128);
  EXPECT_EQ(again.state, m.state);
  EXPECT_EQ(again.pages, m.pages);
  EXPECT_TRUE(tree.clear().states.empty());
  unlock(h);
}

// 63 of 64 tokens are no match, and leave no empty node behind.
TEST_F(F19, PartialPagesDoNotMatch) {
  const Ids t = run_of(0, 128);
  publish(t, 1);
  EXPECT_EQ(match(run_of(0, 63)).matched, 0);
  Ids near = run_of(0, 64);
  near[63] = -5;
  EXPECT_EQ(match(near).matched, 0);
  publish(near, 2);
  EXPECT_EQ(tree.nodes().size(), 2u);  // siblings at the root, no shared 63 tokens
  Ids middle = run_of(0, 192);
  middle[100] = -5;
  const MatchResult m = match(middle);
  EXPECT_EQ(m.matched, 64);
  EXPECT_EQ(m.branch, 64);
  publish(middle, 3);
  for (const auto& n : tree.nodes()) EXPECT_EQ(n.tokens % 64, 0);
  while (!tree.evict_state().states.empty()) tree.check();
  EXPECT_EQ(tree.counts().nodes, 0);
}

// A hit on the deep end of a session does not keep the session's older states alive.
TEST_F(F20, HitRefreshesTheStateItUsedOnly) {
  const Ids t = run_of(0, 256), u = run_of(5000, 64);
  publish(Ids(t.begin(), t.begin() + 64), 1);
  publish(Ids(t.begin(), t.begin() + 128), 2);
  publish(t, 3);
  publish(u, 4);
  EXPECT_EQ(match(join(t, {1})).state, SlotId(3));
  std::vector<SlotId> order;
  for (int i = 0; i < 4; ++i) order.push_back(tree.evict_state().states.at(0));
  EXPECT_EQ(order, (std::vector<SlotId>{SlotId(1), SlotId(2), SlotId(4), SlotId(3)}));
}

TEST_F(Tree, PagesOfAHitSessionOutliveColdOnes) {
  const Ids t = run_of(0, 192), u = run_of(5000, 128), v = run_of(7000, 128);
  publish(t, 1);
  publish(u, 2);
  publish(v, 3);
  match(join(t, {1}));
  EXPECT_EQ(tree.evict_pages(1).states, std::vector<SlotId>{SlotId(2)});  // whole leaves
  EXPECT_EQ(tree.evict_pages(1).states, std::vector<SlotId>{SlotId(3)});
  EXPECT_EQ(tree.evict_pages(1).pages.size(), 3u);
}

TEST_F(Tree, LeavesThatNobodyCanResumeGoFirst) {
  const Ids p = run_of(0, 128), q = run_of(5000, 64);
  publish(q, 1);  // the oldest
  publish(join(p, run_of(900, 64)), 2);
  publish(join(p, run_of(800, 64)));  // the newest, without a state
  const Evicted e = tree.evict_pages(1);
  EXPECT_EQ(e.pages, std::vector<PageId>{PageId(6)});
  EXPECT_TRUE(e.states.empty());
  EXPECT_EQ(tree.evict_pages(1).states, std::vector<SlotId>{SlotId(1)});
  const Evicted rest = tree.evict_pages(1);  // the fork above goes with its last child
  EXPECT_EQ(rest.pages.size(), 3u);
  EXPECT_EQ(tree.counts().nodes, 0);
}

TEST_F(Tree, EvictedInnerStateKeepsItsPages) {
  const Ids t = run_of(0, 128);
  publish(Ids(t.begin(), t.begin() + 64), 1);
  publish(t, 2);
  const Evicted inner = tree.evict_state();
  EXPECT_EQ(inner.states, std::vector<SlotId>{SlotId(1)});
  EXPECT_TRUE(inner.pages.empty());
  EXPECT_EQ(match(join(t, {1})).pages.size(), 2u);
  const Evicted leaf = tree.evict_state();  // and now everything above goes, too
  EXPECT_EQ(leaf.states, std::vector<SlotId>{SlotId(2)});
  EXPECT_EQ(leaf.pages.size(), 2u);
  EXPECT_EQ(tree.counts().nodes, 0);
}

TEST_F(Tree, ClearDropsEverythingUnlocked) {
  const Ids t = run_of(0, 256);
  publish(Ids(t.begin(), t.begin() + 64), 1);
  publish(Ids(t.begin(), t.begin() + 128), 2);
  publish(t, 3);
  publish(run_of(900, 64), 4, "salt");
  const LockHandle h = lock(t, 128);
  const Evicted e = tree.clear();
  tree.check();
  EXPECT_EQ(e.states.size(), 3u);
  EXPECT_EQ(e.pages.size(), 3u);
  EXPECT_EQ(tree.counts().states, 1);
  EXPECT_EQ(tree.counts().pages, 2);
  EXPECT_EQ(match(t).state, SlotId(2));
  unlock(h);
  EXPECT_EQ(tree.clear().pages.size(), 2u);
}

TEST_F(Tree, MovesWithItsContents) {
  publish(run_of(0, 64), 1);
  const LockHandle h = lock(run_of(0, 64), 64);
  RadixTree other(std::move(tree));
  other.unlock(h);
  EXPECT_EQ(other.counts().states, 1);
  other.check();
  tree = RadixTree({64, 64});
  tree.check();
}

TEST(TreeScale, MillionTokens) {
  constexpr int64_t n = 1 << 20;
  RadixTree tree({1, 1});
  const Ids t = run_of(0, n);
  tree.insert("", t, page_run(0, n), SlotId(0));
  EXPECT_EQ(tree.match("", t, n, 64).resumable, n);
  const LockHandle h = tree.lock("", t, n / 2);
  EXPECT_EQ(tree.counts().locked_pages, n / 2);
  EXPECT_EQ(static_cast<int64_t>(tree.evict_pages(1).pages.size()), n / 2);
  tree.check();
  tree.unlock(h);
  EXPECT_EQ(static_cast<int64_t>(tree.evict_pages(1).pages.size()), n / 2);
}

// A chain of thousands of nodes on a small stack: nothing may recurse over the depth.
TEST(TreeScale, LongChainsNeedNoStack) {
  constexpr int64_t kNodes = 3500;
  const auto work = +[](void* failed) -> void* {
    RadixTree tree({1, 1});
    const Ids t = run_of(0, kNodes);
    const auto pages = page_run(0, kNodes);
    for (int64_t d = 1; d <= kNodes; ++d) {
      tree.insert("", std::span(t).first(static_cast<size_t>(d)), std::span(pages).first(static_cast<size_t>(d)),
                  SlotId());
    }
    const LockHandle h = tree.lock("", t, kNodes);
    tree.check();
    const bool grown = tree.nodes().size() == kNodes && tree.counts().locked_pages == kNodes;
    tree.unlock(h);
    if (grown && tree.evict_pages(1).pages.size() == kNodes) {  // one tombstone leaf, and all above it
      tree.insert("", t, pages, SlotId(3));
      for (int64_t d = 1; d < kNodes; ++d) tree.unlock(tree.lock("", t, d));
      RadixTree moved = std::move(tree);  // dies with its chain
      *static_cast<bool*>(failed) = false;
    }
    return nullptr;
  };
  bool failed = true;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  ASSERT_EQ(pthread_attr_setstacksize(&attr, 128 * 1024), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attr, work, &failed), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attr);
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace kadence::prefix
