// Pools and tree together, driven the way an engine drives them: match, lock, admit, grant by grant with checkpoints,
// finish or give up at any point. The content of a page or a state is a hash of the tokens that it stands for, so what
// a resumed request would read is compared with what it should be. Identities are checked after every move.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "prefix/radix_tree.h"
#include "state/kv_pool.h"
#include "state/state_pool.h"

namespace kadence {
namespace {

using base::PageId;
using base::SlotId;
using prefix::Evicted;
using prefix::LockHandle;
using prefix::MatchResult;
using state::SlotUse;
using Ids = std::vector<int32_t>;

uint64_t content_of(const Ids& tokens, int64_t n) {
  uint64_t h = 99;
  for (int64_t i = 0; i < n; ++i) h = base::mix64(h * 31 + static_cast<uint64_t>(tokens[static_cast<size_t>(i)]) + 1);
  return h;
}

Ids run_of(int32_t first, int64_t n) {
  Ids t(static_cast<size_t>(n));
  std::iota(t.begin(), t.end(), first);
  return t;
}
Ids join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Request {
  explicit Request(Ids t) : tokens(std::move(t)) {}
  Ids tokens;
  bool admitted = false;
  int64_t done = 0, resumed = 0, branch = 0;
  LockHandle lock;
  int64_t locked = 0;         // depth of the lock
  std::vector<PageId> pages;  // of the whole prompt: the tree's up to `shared`, then its own
  int64_t shared = 0;         // tokens
  SlotId slot;
};

class Little {  // engine
 public:
  Little(int32_t slots, int32_t pages, int64_t page = 64)
      : grids(state::make_grids(page, 256)),
        states(state_shape(), slots, device::cpu_info(1)),
        kv(kv_shape(page), pages, device::cpu_info(1)),
        tree({grids.tree_page, page}),
        slot_content(static_cast<size_t>(slots)),
        page_content(static_cast<size_t>(pages)) {}

  // All or nothing: what cannot be admitted holds nothing and waits.
  bool admit(Request& r) {
    const auto n = static_cast<int64_t>(r.tokens.size());
    const MatchResult m = tree.match("", r.tokens, n - 1, grids.checkpoint);
    const LockHandle lock = tree.lock("", r.tokens, m.resumable);
    check();
    const auto need = static_cast<int32_t>((n + kv.shape().page_size - 1) / kv.shape().page_size -
                                           static_cast<int64_t>(m.pages.size()));
    auto own = allocate_pages(need);
    if (own) live_pages += need;
    std::optional<SlotId> slot;
    if (own) slot = allocate_slot(SlotUse::kWorking);
    if (!own || !slot) {
      if (own) kv.release(*own), live_pages -= need;
      tree.unlock(lock);
      check();
      return false;
    }
    if (m.resumable > 0) {
      states.require_publishable(m.state, m.resumable, true);
      EXPECT_EQ(slot_content[static_cast<size_t>(m.state.value)], content_of(r.tokens, m.resumable));
      for (size_t i = 0; i < m.pages.size(); ++i) {
        EXPECT_EQ(page_content[static_cast<size_t>(m.pages[i].value)],
                  content_of(r.tokens, static_cast<int64_t>(i + 1) * kv.shape().page_size));
      }
    }
    r.admitted = true, r.lock = lock, r.slot = *slot;
    r.done = r.resumed = r.shared = r.locked = m.resumable, r.branch = m.branch;
    r.pages = m.pages;
    r.pages.insert(r.pages.end(), own->begin(), own->end());
    ++live_slots;
    check();
    return true;
  }

  void grant(Request& r, int64_t tokens) {
    const auto n = static_cast<int64_t>(r.tokens.size());
    if (r.done == n) return;
    const int64_t end = std::min(r.done + tokens, n);
    const int64_t page = kv.shape().page_size;
    for (int64_t d = (r.done / page + 1) * page; d <= end; d += page) {
      page_content[static_cast<size_t>(r.pages[static_cast<size_t>(d / page) - 1].value)] = content_of(r.tokens, d);
    }
    std::vector<std::pair<int64_t, SlotId>> written;
    for (const int64_t d : state::checkpoint_depths(r.done, end, n, r.branch, grids.checkpoint)) {
      const auto slot = allocate_slot(SlotUse::kReserved);
      if (!slot) {
        ++skipped;
        continue;
      }
      slot_content[static_cast<size_t>(slot->value)] = content_of(r.tokens, d);
      states.set_stamp(*slot, {d, true, true, state::Origin::kExtend});
      written.emplace_back(d, *slot);
      ++reserved;
      check();
    }
    r.done = end;
    for (const auto& [d, slot] : written) publish(r, d, slot);
  }

  void leave(Request& r) {
    if (!r.admitted) return;
    const auto own = std::span(r.pages).subspan(static_cast<size_t>(r.shared / kv.shape().page_size));
    kv.release(own);
    live_pages -= static_cast<int64_t>(own.size()), --live_slots;
    states.release(r.slot);
    tree.unlock(r.lock);
    r = Request(r.tokens);
    check();
  }

  // Runs a prompt alone to the end; tokens that it found in the cache, or -1 if it was not admitted.
  int64_t run(const Ids& tokens, int64_t chunk = 8192) {
    Request r(tokens);
    if (!admit(r)) return -1;
    while (r.done < static_cast<int64_t>(tokens.size())) grant(r, chunk);
    const int64_t resumed = r.resumed;
    leave(r);
    return resumed;
  }

  void check() {
    states.check_accounting();
    kv.check_accounting();
    tree.check();
    const auto s = states.counts();
    const auto p = kv.counts();
    const auto t = tree.counts();
    ASSERT_EQ(s.cached, t.states);
    ASSERT_EQ(s.reserved, reserved);
    ASSERT_EQ(s.working, live_slots);
    ASSERT_EQ(s.free + s.working + s.reserved + s.cached, states.slots());
    ASSERT_EQ(p.cached, t.pages);
    ASSERT_EQ(p.working, live_pages);
    ASSERT_EQ(p.free + p.working + p.cached, kv.pages());
  }

  void take_back(const Evicted& e) {
    kv.release(e.pages);
    for (const SlotId s : e.states) states.release(s);
    check();
  }

  state::Grids grids;
  state::StatePool states;
  state::KvPool kv;
  prefix::RadixTree tree;
  std::vector<uint64_t> slot_content, page_content;
  int64_t reserved = 0, live_slots = 0, live_pages = 0, skipped = 0;

 private:
  static state::StateShape state_shape() {
    state::StateShape s;
    s.layers = 1, s.HV = 1, s.V = s.K = 2, s.conv_channels = 6;
    return s;
  }
  static state::KvShape kv_shape(int64_t page) {
    state::KvShape s;
    s.layers = 1, s.width = 1, s.page_size = static_cast<int32_t>(page);
    return s;
  }

  std::optional<std::vector<PageId>> allocate_pages(int32_t n) {
    if (kv.counts().free < n) take_back(tree.evict_pages(n - kv.counts().free));
    return kv.allocate(n);
  }
  std::optional<SlotId> allocate_slot(SlotUse use) {
    if (states.counts().free == 0) take_back(tree.evict_state());
    return states.allocate(use);
  }

  void publish(Request& r, int64_t d, SlotId slot) {
    states.require_publishable(slot, d, true);
    const auto count = static_cast<size_t>(d / kv.shape().page_size);
    const auto known = static_cast<size_t>(r.shared / kv.shape().page_size);
    const auto result =
        tree.insert("", std::span(r.tokens).first(static_cast<size_t>(d)), std::span(r.pages).first(count), slot);
    for (size_t i = 0; i < count; ++i) {
      if (result.pages[i] != r.pages[i]) {
        kv.release(r.pages[i]);
        r.pages[i] = result.pages[i];
        --live_pages;
      } else if (i >= known) {
        kv.set_use(r.pages[i], state::PageUse::kCached);
        --live_pages;
      }
    }
    if (result.state_taken) {
      states.set_use(slot, SlotUse::kCached);
    } else {
      states.release(slot);
    }
    --reserved;
    if (d > r.locked) {
      const LockHandle deeper = tree.lock("", r.tokens, d);
      tree.unlock(r.lock);
      r.lock = deeper, r.locked = d;
    }
    r.shared = std::max(r.shared, d);
    check();
  }
};

TEST(B46, ThreeSiblingsAndAResend) {
  Little e(32, 64);
  const Ids p = run_of(0, 256), a = run_of(1000, 130), b = run_of(2000, 130), c = run_of(3000, 130);
  EXPECT_EQ(e.run(join(p, a)), 0);
  EXPECT_EQ(e.run(join(p, b)), 0);
  EXPECT_EQ(e.run(join(p, c)), 256);
  EXPECT_GE(e.run(join(p, a)), 386 - 64);                  // an identical prompt: all but a grid unit
  EXPECT_EQ(e.run(Ids(p.begin(), p.begin() + 256)), 0);    // 255 may be skipped, and no state is at 192 yet ...
  EXPECT_EQ(e.run(Ids(p.begin(), p.begin() + 256)), 192);  // ... but now there is
}

TEST(B46, BranchIsFoundInsideALongChunkAndInSmallOnes) {
  for (const int64_t chunk : {64, 128, 8192}) {
    Little e(64, 128);
    const Ids p = run_of(0, 1000);
    EXPECT_EQ(e.run(join(p, run_of(5000, 700)), chunk), 0);
    const int64_t second = e.run(join(p, run_of(6000, 700)), chunk);
    EXPECT_EQ(second, chunk == 8192 ? 0 : (chunk == 64 ? 960 : 896));  // small chunks left states at their ends
    EXPECT_EQ(e.run(join(p, run_of(7000, 700)), chunk), 960);
  }
}

// A shared prefix of 100 tokens is worth 64.
TEST(B48, ShortPromptsAreReusedAtSixtyFourTokens) {
  for (const int64_t page : {1, 16, 64}) {
    Little e(32, static_cast<int32_t>(4096 / page), page);
    EXPECT_EQ(e.grids.checkpoint, 64);
    const Ids p = run_of(0, 100);
    EXPECT_EQ(e.run(p), 0);
    EXPECT_EQ(e.run(p), 64);
    EXPECT_EQ(e.run(join(p, run_of(500, 50))), 64);
    EXPECT_EQ(e.run(run_of(0, 64)), 0);  // nothing to skip: its last token is computed, and the grid is 64
  }
}

// States run out long before pages: what cannot be resumed does not keep pages, and what is said to be reusable is.
TEST(B51, NoPagesWithoutAStateThatReachesThem) {
  Little e(4, 400);  // one works, three are cached
  const auto session = [](int s) { return run_of(10000 * (s + 1), 4 * 64 + 1); };
  for (int s = 0; s < 5; ++s) EXPECT_EQ(e.run(session(s), 64), 0);
  EXPECT_EQ(e.tree.counts().states, 3);
  EXPECT_EQ(e.tree.counts().pages, 4);  // the last session's, whose three deepest states are left
  for (int s = 0; s < 4; ++s) EXPECT_EQ(e.tree.match("", session(s), 256, 64).matched, 0);
  const MatchResult m = e.tree.match("", session(4), 256, 64);
  EXPECT_EQ(m.matched, 256);
  EXPECT_EQ(m.resumable, 256);
  EXPECT_EQ(e.run(session(4)), 256);
}

// Whatever keeps a request from running or ends it early, it holds nothing afterwards.
TEST(B57, RequestThatLeavesAtAnyStageHoldsNothing) {
  Little e(3, 12);
  Request hog(run_of(90000, 64 * 5));  // takes pages for good
  ASSERT_TRUE(e.admit(hog));
  const Ids p = run_of(0, 200), big = run_of(0, 64 * 9);
  EXPECT_EQ(e.run(p), 0);
  const auto before = e.kv.counts();
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    Request waits(big);  // matches, is locked, gets no pages
    if (!e.admit(waits)) ++refused;
    const int stage = i % 5;  // queued, matched, after one chunk of three or so, prefilled, finished before
    Request leaves(join(Ids(p.begin(), p.begin() + 70), run_of(stage == 4 ? 3 : 1000 * i, 130)));
    if (stage >= 1) {
      ASSERT_TRUE(e.admit(leaves));
    }
    if (stage >= 2) e.grant(leaves, 64);
    if (stage >= 3) e.grant(leaves, 8192);
    e.leave(leaves);
    const auto t = e.tree.counts();
    ASSERT_EQ(t.locked_pages, 0);
    ASSERT_EQ(t.locked_states, 0);
    ASSERT_EQ(e.kv.counts().working, before.working);
    ASSERT_EQ(e.states.counts().working, 1);
    ASSERT_EQ(e.states.counts().reserved, 0);
  }
  EXPECT_EQ(refused, 1000);
  e.leave(hog);
  e.take_back(e.tree.clear());
  EXPECT_EQ(e.kv.counts().free, 12);
  EXPECT_EQ(e.states.counts().free, 3);
}

// Every slot is pinned: checkpoints are skipped and counted, new requests wait, nothing throws.
TEST(B58, ExhaustedPoolsAreAnAnswer) {
  Little e(6, 60);
  std::vector<LockHandle> pins;
  for (int i = 0; i < 4; ++i) {
    const Ids t = run_of(10000 * (i + 1), 65);
    EXPECT_EQ(e.run(t), 0);
    pins.push_back(e.tree.lock("", t, 64));  // as a slow reader would
  }
  std::vector<Request> four;
  int waiting = 0;
  for (int i = 0; i < 4; ++i) {
    four.emplace_back(run_of(100000 * (i + 1), 320));
    if (!e.admit(four.back())) ++waiting;
  }
  EXPECT_EQ(waiting, 2);
  for (int i = 0; i < 5; ++i) {
    e.grant(four[0], 64);
    e.grant(four[1], 64);
  }
  EXPECT_GT(e.skipped, 0);
  EXPECT_EQ(e.tree.counts().states, 4);
  EXPECT_EQ(four[0].done, 320);
  e.leave(four[0]);
  EXPECT_TRUE(e.admit(four[2]));  // the one that waited goes on as soon as there is room
  for (Request& r : four) e.leave(r);
  for (const LockHandle h : pins) e.tree.unlock(h);
  e.take_back(e.tree.clear());
  EXPECT_EQ(e.states.counts().free, 6);
}

TEST(V15, IdentitiesHoldUnderRandomRequests) {
  for (const int64_t page : {1, 16, 64, 128}) {
    Little e(9, static_cast<int32_t>(4000 / page), page);
    base::Rng rng(static_cast<uint64_t>(page));
    std::vector<Request> live;
    std::vector<Ids> history{run_of(0, 300)};
    int64_t resumed = 0, refused = 0, finished = 0, aborted = 0;
    for (int step = 0; step < 1500; ++step) {
      switch (rng.below(5)) {
        case 0:
        case 1: {
          if (live.size() >= 5) break;
          Ids t = history[rng.below(history.size())];
          t.resize(rng.below(t.size() + 1));
          const auto more = static_cast<int64_t>(1 + rng.below(300));
          t = rng.below(4) ? join(t, run_of(static_cast<int32_t>(rng.below(3)) * 7777, more))
                           : history[rng.below(history.size())];
          if (t.size() > 1200) break;
          Request r(t);
          if (e.admit(r)) {
            resumed += r.resumed > 0;
            live.push_back(r);
          } else {
            ++refused;
          }
          if (history.size() < 30) history.push_back(t);
          break;
        }
        case 2:
        case 3: {
          if (live.empty()) break;
          const size_t i = rng.below(live.size());
          const auto n = static_cast<int64_t>(live[i].tokens.size());
          if (live[i].done < n) e.grant(live[i], e.grids.checkpoint * static_cast<int64_t>(1 + rng.below(4)));
          if (live[i].done < n && rng.below(8)) break;
          ++(live[i].done < n ? aborted : finished);
          e.leave(live[i]);
          live.erase(live.begin() + static_cast<int64_t>(i));
          break;
        }
        default:
          e.take_back(rng.below(2) ? e.tree.evict_state() : e.tree.evict_pages(static_cast<int64_t>(rng.below(4))));
      }
      if (HasFailure()) return;
    }
    for (Request& r : live) e.leave(r);
    EXPECT_EQ(e.tree.counts().locked_pages, 0);
    e.take_back(e.tree.clear());
    EXPECT_EQ(e.kv.counts().free, e.kv.pages());
    EXPECT_EQ(e.states.counts().free, e.states.slots());
    EXPECT_GT(resumed, 30) << page;
    EXPECT_GT(finished, 100) << page;
    EXPECT_GT(aborted, 10) << page;
    EXPECT_GT(refused + e.skipped, 0) << page;
  }
}

}  // namespace
}  // namespace kadence
