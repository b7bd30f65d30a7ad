// Random operations on the tree against a model that has no tree: a flat map from every cached prefix to its pages, and
// a flat map of the prefixes that end a node. A prefix is a word of letters, one letter a tree page, so the model never
// compares tokens. Everything is compared after every operation, and what a page or a state was made for is known from
// labels that the test keeps beside the tree.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "prefix/radix_tree.h"

namespace kadence::prefix {
namespace {

using Word = std::vector<int>;

bool begins(const Word& word, const Word& prefix) {
  return word.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), word.begin());
}
Word first(const Word& word, size_t n) { return Word(word.begin(), word.begin() + static_cast<int64_t>(n)); }

struct Place {  // a prefix in a namespace
  Namespace ns;
  Word word;
  auto operator<=>(const Place&) const = default;
};

struct Cut {
  int state = -1;
  uint64_t page_tick = 0, state_tick = 0;
};

struct Held {
  LockHandle handle;
  Place place;
  bool state = false;
};

class Model {
 public:
  Model(int64_t tree_page, int64_t kv_page) : tree_page_(tree_page), kv_page_(kv_page) {}

  size_t matched(const Place& p) const {
    size_t n = 0;
    while (n < p.word.size() && pages.contains({p.ns, first(p.word, n + 1)})) ++n;
    return n;
  }

  // The node that holds the last page of a cached prefix.
  std::map<Place, Cut>::iterator holder(const Place& p) {
    auto best = cuts.end();
    for (auto it = cuts.begin(); it != cuts.end(); ++it) {
      if (it->first.ns == p.ns && begins(it->first.word, p.word) &&
          (best == cuts.end() || it->first.word.size() < best->first.word.size())) {
        best = it;
      }
    }
    return best;
  }

  void touch(const Place& p, size_t m) {
    for (size_t n = 1; n <= m; ++n) holder({p.ns, first(p.word, n)})->second.page_tick = now;
  }

  MatchResult match(const Place& p, int64_t limit, int64_t grid) {
    ++now;
    const size_t m = matched(p);
    touch(p, m);
    MatchResult r;
    r.matched = static_cast<int64_t>(m) * tree_page_;
    const int64_t most = std::min(r.matched, limit);
    for (size_t n = 1; n <= m; ++n) {
      const auto it = cuts.find({p.ns, first(p.word, n)});
      const int64_t depth = static_cast<int64_t>(n) * tree_page_;
      if (it != cuts.end() && it->second.state >= 0 && depth <= most)
        r.resumable = depth, r.state = SlotId(it->second.state);
    }
    const auto whole = static_cast<size_t>(r.resumable / tree_page_);
    if (whole) cuts.at({p.ns, first(p.word, whole)}).state_tick = now;
    r.pages = pages_of(p, whole);
    for (int64_t d = grid; d <= most; d += grid) {
      if (d > r.resumable) r.branch = d;
    }
    return r;
  }

  std::vector<PageId> pages_of(const Place& p, size_t letters) const {
    std::vector<PageId> all;
    for (size_t n = 1; n <= letters; ++n) {
      for (const int page : pages.at({p.ns, first(p.word, n)})) all.emplace_back(page);
    }
    return all;
  }

  void cut_at(const Place& p) {
    if (p.word.empty() || cuts.contains(p)) return;
    Cut c;
    c.page_tick = holder(p)->second.page_tick;
    cuts.emplace(p, c);
  }

  // True if the state went in.
  bool insert(const Place& p, const std::vector<PageId>& given, int state) {
    ++now;
    const size_t m = matched(p);
    if (m < p.word.size() || state >= 0) cut_at({p.ns, first(p.word, m)});
    touch(p, m);
    if (m < p.word.size()) {
      const auto each = static_cast<size_t>(tree_page_ / kv_page_);
      for (size_t n = m; n < p.word.size(); ++n) {
        std::vector<int> ids;
        for (size_t i = 0; i < each; ++i) ids.push_back(given[n * each + i].value);
        pages[{p.ns, first(p.word, n + 1)}] = ids;
      }
      cuts[p].page_tick = now;
    }
    if (state < 0) return false;
    Cut& c = cuts.at(p);
    c.state_tick = now;
    if (c.state >= 0) return false;
    c.state = state;
    return true;
  }

  int locks_below(const Place& p) const {
    return static_cast<int>(std::count_if(
        held.begin(), held.end(), [&](const Held& h) { return h.place.ns == p.ns && begins(h.place.word, p.word); }));
  }
  bool state_locked(const Place& p) const {
    return std::any_of(held.begin(), held.end(), [&](const Held& h) { return h.state && h.place == p; });
  }
  bool is_leaf(const Place& p) const {
    return std::none_of(cuts.begin(), cuts.end(), [&](const auto& c) {
      return c.first.ns == p.ns && c.first.word.size() > p.word.size() && begins(c.first.word, p.word);
    });
  }
  size_t parent_length(const Place& p) const {
    size_t n = p.word.size() - 1;
    while (n > 0 && !cuts.contains({p.ns, first(p.word, n)})) --n;
    return n;
  }

  void remove(Place p, Evicted& out) {
    while (true) {
      if (cuts.at(p).state >= 0) out.states.emplace_back(cuts.at(p).state);
      const size_t up = parent_length(p);
      for (size_t n = up + 1; n <= p.word.size(); ++n) {
        const auto it = pages.find({p.ns, first(p.word, n)});
        for (const int page : it->second) out.pages.emplace_back(page);
        pages.erase(it);
      }
      cuts.erase(p);
      p.word.resize(up);
      if (up == 0 || !is_leaf(p) || locks_below(p) > 0 || cuts.at(p).state >= 0) return;
    }
  }

  std::optional<Place> next_leaf() const {
    std::optional<Place> best;
    std::pair<bool, uint64_t> key;
    for (const auto& [p, c] : cuts) {
      if (!is_leaf(p) || locks_below(p) > 0) continue;
      const std::pair k{c.state >= 0, c.page_tick};
      if (!best || k < key) best = p, key = k;
    }
    return best;
  }
  Evicted evict_pages(int64_t count) {
    Evicted out;
    while (static_cast<int64_t>(out.pages.size()) < count) {
      const auto leaf = next_leaf();
      if (!leaf) break;
      remove(*leaf, out);
    }
    return out;
  }
  std::optional<Place> next_state() const {
    std::optional<Place> best;
    for (const auto& [p, c] : cuts) {
      if (c.state >= 0 && !state_locked(p) && (!best || c.state_tick < cuts.at(*best).state_tick)) best = p;
    }
    return best;
  }
  Evicted evict_state() {
    Evicted out;
    const auto p = next_state();
    if (!p) return out;
    if (is_leaf(*p) && locks_below(*p) == 0) {
      remove(*p, out);
    } else {
      out.states.emplace_back(cuts.at(*p).state);
      cuts.at(*p).state = -1;
    }
    return out;
  }
  Evicted clear() {
    Evicted out = evict_pages(INT64_MAX);
    while (const auto p = next_state()) {
      out.states.emplace_back(cuts.at(*p).state);
      cuts.at(*p).state = -1;
    }
    return out;
  }

  std::map<Place, std::vector<int>> pages;  // every cached prefix: the pages of its last letter
  std::map<Place, Cut> cuts;                // prefixes that end a node
  std::vector<Held> held;
  uint64_t now = 0;

 private:
  int64_t tree_page_, kv_page_;
};

// A letter's tokens: letters that agree in all but the last token, in all but the first, and in nothing.
std::vector<int32_t> spell(const Word& word, int64_t tree_page) {
  std::vector<int32_t> tokens;
  for (const int letter : word) {
    for (int64_t i = 0; i < tree_page; ++i) {
      int32_t t = 7;
      if (letter == 1 && i == tree_page - 1) t = 8;
      if (letter == 2 && i == 0) t = 9;
      if (letter >= 3) t = 100 + letter;
      tokens.push_back(t);
    }
  }
  return tokens;
}

enum class Owner { kFree, kWorking, kCached };

struct Params {
  int64_t tree_page, kv_page;
  int letters, pages, slots, steps;
};

class TreeProperty : public ::testing::TestWithParam<Params> {
 protected:
  void SetUp() override {
    page_owner_.assign(static_cast<size_t>(GetParam().pages), Owner::kFree);
    page_label_.resize(page_owner_.size());
    slot_owner_.assign(static_cast<size_t>(GetParam().slots), Owner::kFree);
    slot_label_.resize(slot_owner_.size());
  }

  int take_slot() {
    for (size_t s = 0; s < slot_owner_.size(); ++s) {
      if (slot_owner_[s] == Owner::kFree) return slot_owner_[s] = Owner::kWorking, static_cast<int>(s);
    }
    return -1;
  }
  std::vector<PageId> take_pages(size_t n) {
    std::vector<PageId> got;
    for (size_t p = 0; p < page_owner_.size() && got.size() < n; ++p) {
      if (page_owner_[p] == Owner::kFree) got.emplace_back(static_cast<int32_t>(p));
    }
    if (got.size() < n) return {};
    for (const PageId p : got) page_owner_[static_cast<size_t>(p.value)] = Owner::kWorking;
    return got;
  }
  void give_back(const Evicted& e) {
    for (const PageId p : e.pages) {
      ASSERT_EQ(page_owner_[static_cast<size_t>(p.value)], Owner::kCached) << "page " << p.value;
      page_owner_[static_cast<size_t>(p.value)] = Owner::kFree;
    }
    for (const SlotId s : e.states) {
      ASSERT_EQ(slot_owner_[static_cast<size_t>(s.value)], Owner::kCached) << "slot " << s.value;
      slot_owner_[static_cast<size_t>(s.value)] = Owner::kFree;
    }
  }
  static void same(const Evicted& got, const Evicted& want) {
    EXPECT_EQ(got.states, want.states);
    EXPECT_EQ(got.pages.size(), want.pages.size());
    const auto sorted = [](std::vector<PageId> v) { return std::sort(v.begin(), v.end()), v; };
    EXPECT_EQ(sorted(got.pages), sorted(want.pages));
  }

  // Accounting identity, and the tree's own view against the model's.
  void compare(const RadixTree& tree, const Model& model) {
    tree.check();
    const auto count = [](const auto& v, Owner o) { return std::count(v.begin(), v.end(), o); };
    const TreeCounts c = tree.counts();
    ASSERT_EQ(c.pages, count(page_owner_, Owner::kCached));
    ASSERT_EQ(c.states, count(slot_owner_, Owner::kCached));
    ASSERT_EQ(count(page_owner_, Owner::kWorking), 0);  // no operation keeps any
    ASSERT_EQ(count(slot_owner_, Owner::kWorking), 0);
    int64_t locked_pages = 0, locked_states = 0;
    const auto views = tree.nodes();
    ASSERT_EQ(views.size(), model.cuts.size());
    ASSERT_EQ(c.nodes, static_cast<int64_t>(views.size()));
    size_t i = 0;
    for (const auto& [place, cut] : model.cuts) {  // the order of a depth-first walk
      const auto& v = views[i++];
      const auto length = place.word.size() - model.parent_length(place);
      ASSERT_EQ(v.depth, static_cast<int64_t>(place.word.size()) * GetParam().tree_page);
      ASSERT_EQ(v.tokens, static_cast<int64_t>(length) * GetParam().tree_page);
      ASSERT_EQ(v.has_state, cut.state >= 0);
      ASSERT_EQ(v.locks, model.locks_below(place));
      if (v.locks > 0) locked_pages += v.tokens / GetParam().kv_page;
      if (model.state_locked(place)) ++locked_states;
    }
    ASSERT_EQ(c.locked_pages, locked_pages);
    ASSERT_EQ(c.locked_states, locked_states);
    ASSERT_EQ(c.evictable_pages, c.pages - locked_pages);
    ASSERT_EQ(c.evictable_states, c.states - locked_states);
  }

  std::vector<Owner> page_owner_, slot_owner_;
  std::vector<std::pair<Place, size_t>> page_label_;  // made for this prefix, page number so and so
  std::vector<Place> slot_label_;                     // has seen exactly this prefix
};

TEST_P(TreeProperty, AgreesWithAFlatMap) {
  const Params prm = GetParam();
  RadixTree tree({prm.tree_page, prm.kv_page});
  Model model(prm.tree_page, prm.kv_page);
  base::Rng rng(static_cast<uint64_t>(prm.tree_page * 1000 + prm.kv_page));
  const auto each = static_cast<size_t>(prm.tree_page / prm.kv_page);
  const auto label = [&](const Place& p, size_t page) {
    return std::pair(Place{p.ns, first(p.word, page / each + 1)}, page);
  };

  const auto some_place = [&] {  // mostly near something cached
    Place p{rng.below(5) == 0 ? "salted" : "", {}};
    if (!model.cuts.empty() && rng.below(5) != 0) {
      p = std::next(model.cuts.begin(), static_cast<int64_t>(rng.below(model.cuts.size())))->first;
      if (rng.below(2)) p.word.resize(rng.below(p.word.size() + 1));
      if (rng.below(16) == 0) p.ns = p.ns.empty() ? "salted" : "";
    }
    for (size_t n = rng.below(4); n-- > 0 && p.word.size() < 9;)
      p.word.push_back(static_cast<int>(rng.below(static_cast<uint64_t>(prm.letters))));
    return p;
  };

  int inserted = 0, hits = 0, forks = 0, evicted_inner = 0, splits_with_state = 0;
  for (int step = 0; step < prm.steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const uint64_t what = rng.below(100);
    if (what < 30) {
      const Place p = some_place();
      const auto m = model.matched(p);
      const bool reuse = rng.below(2);  // brings the tree's own pages, or recomputed duplicates
      std::vector<PageId> pages = reuse ? model.pages_of(p, m) : std::vector<PageId>();
      const std::vector<PageId> fresh = take_pages(p.word.size() * each - pages.size());
      pages.insert(pages.end(), fresh.begin(), fresh.end());
      if (pages.size() == p.word.size() * each) {
        for (size_t i = 0; i < pages.size(); ++i) {
          if (!reuse || i >= m * each) page_label_[static_cast<size_t>(pages[i].value)] = label(p, i);
        }
        const int slot = p.word.empty() || rng.below(3) == 0 ? -1 : take_slot();
        if (slot >= 0) slot_label_[static_cast<size_t>(slot)] = p;
        const size_t nodes_before = model.cuts.size();
        const InsertResult r = tree.insert(p.ns, spell(p.word, prm.tree_page), pages, SlotId(slot));
        ASSERT_EQ(r.state_taken, model.insert(p, pages, slot));
        if (model.cuts.size() == nodes_before + 2) ++splits_with_state;
        ASSERT_EQ(r.pages, model.pages_of(p, p.word.size()));
        for (size_t i = 0; i < pages.size(); ++i) {
          const bool kept = r.pages[i] == pages[i];
          page_owner_[static_cast<size_t>(pages[i].value)] = kept ? Owner::kCached : Owner::kFree;
        }
        if (slot >= 0) slot_owner_[static_cast<size_t>(slot)] = r.state_taken ? Owner::kCached : Owner::kFree;
        ++inserted;
      } else {
        for (const PageId q : fresh) page_owner_[static_cast<size_t>(q.value)] = Owner::kFree;
        const Evicted e = tree.evict_pages(4);
        same(e, model.evict_pages(4));
        give_back(e);
      }
    } else if (what < 60) {
      const Place p = some_place();
      std::vector<int32_t> tokens = spell(p.word, prm.tree_page);
      for (uint64_t extra = rng.below(static_cast<uint64_t>(prm.tree_page)); extra-- > 0;)
        tokens.push_back(7);  // a partial page
      const int64_t grid = prm.tree_page * static_cast<int64_t>(1 + rng.below(3));
      const int64_t limit = rng.below(4) == 0 ? static_cast<int64_t>(rng.below(tokens.size() + 1))
                                              : static_cast<int64_t>(tokens.size()) - 1;
      const MatchResult seen = tree.peek(p.ns, tokens, limit, grid);  // the model does not hear of it
      const MatchResult got = tree.match(p.ns, tokens, limit, grid);
      const MatchResult want = model.match(p, limit, grid);
      ASSERT_EQ(got.matched, want.matched);
      ASSERT_EQ(got.resumable, want.resumable);
      ASSERT_EQ(got.state, want.state);
      ASSERT_EQ(got.pages, want.pages);
      ASSERT_EQ(got.branch, want.branch);
      ASSERT_EQ(std::tie(seen.matched, seen.resumable, seen.state, seen.pages, seen.branch),
                std::tie(want.matched, want.resumable, want.state, want.pages, want.branch));
      if (got.resumable > 0) {  // the label is the truth, whatever tree and model believe
        const Place whole{p.ns, first(p.word, static_cast<size_t>(got.resumable / prm.tree_page))};
        ASSERT_EQ(slot_label_[static_cast<size_t>(got.state.value)], whole);
        ++hits;
      }
      for (size_t i = 0; i < got.pages.size(); ++i)
        ASSERT_EQ(page_label_[static_cast<size_t>(got.pages[i].value)], label(p, i));
      if (got.branch) ++forks;
      const Place q = some_place();
      tree.peek(q.ns, spell(q.word, prm.tree_page), limit, grid);  // refreshes nothing: evictions still agree
    } else if (what < 72 && model.held.size() < 6) {
      const Place p = some_place();
      const size_t m = model.matched(p);
      Held h{{}, {p.ns, first(p.word, m ? rng.below(m + 1) : 0)}, false};
      const auto depth = static_cast<int64_t>(h.place.word.size()) * prm.tree_page;
      h.handle = tree.lock(p.ns, spell(p.word, prm.tree_page), depth);
      ASSERT_EQ(h.handle.valid(), depth > 0);
      if (depth > 0) {
        model.cut_at(h.place);
        h.state = model.cuts.at(h.place).state >= 0;
        model.held.push_back(h);
      }
    } else if (what < 86) {
      if (!model.held.empty()) {
        const auto it = model.held.begin() + static_cast<int64_t>(rng.below(model.held.size()));
        tree.unlock(it->handle);
        EXPECT_THROW(tree.unlock(it->handle), base::Error);  // once only
        model.held.erase(it);
      }
    } else if (what < 91) {
      const auto n = static_cast<int64_t>(rng.below(6));
      const Evicted e = tree.evict_pages(n);
      same(e, model.evict_pages(n));
      give_back(e);
    } else if (what < 99 || rng.below(20) != 0) {
      const Evicted e = tree.evict_state();
      same(e, model.evict_state());
      if (!e.states.empty() && e.pages.empty()) ++evicted_inner;
      give_back(e);
    } else {
      const Evicted e = tree.clear();
      same(e, model.clear());
      give_back(e);
    }
    compare(tree, model);
    if (HasFailure()) return;
  }
  for (const Held& h : model.held) tree.unlock(h.handle);
  model.held.clear();
  const Evicted e = tree.clear();
  same(e, model.clear());
  give_back(e);
  compare(tree, model);
  EXPECT_EQ(tree.counts().nodes, 0);
  // The sequence went where it should.
  EXPECT_GT(inserted, prm.steps / 20);
  EXPECT_GT(hits, prm.steps / 50);
  EXPECT_GT(forks, prm.steps / 200);
  EXPECT_GT(evicted_inner, prm.steps / 500);
  EXPECT_GT(splits_with_state, prm.steps / 500);
}

INSTANTIATE_TEST_SUITE_P(Pages, TreeProperty,
                         ::testing::Values(Params{1, 1, 3, 60, 14, 40000}, Params{4, 1, 4, 200, 12, 20000},
                                           Params{4, 4, 3, 50, 10, 40000}, Params{64, 16, 3, 160, 12, 20000},
                                           Params{64, 64, 4, 40, 30, 20000}),
                         [](const auto& param) {
                           return "tree" + std::to_string(param.param.tree_page) + "kv" +
                                  std::to_string(param.param.kv_page);
                         });

TEST(TreeDeterminism, SameCallsSameTree) {
  const auto run = [] {
    RadixTree tree({4, 4});
    base::Rng rng(5);
    std::vector<int64_t> log;
    int32_t page = 0, slot = 0;
    for (int i = 0; i < 3000; ++i) {
      Word w;
      for (size_t n = 1 + rng.below(5); n-- > 0;) w.push_back(static_cast<int>(rng.below(3)));
      const auto tokens = spell(w, 4);
      std::vector<PageId> pages;
      for (size_t p = 0; p < w.size(); ++p) pages.emplace_back(page++);
      const auto r = tree.insert("", tokens, pages, SlotId(slot++));
      log.push_back(r.state_taken);
      if (tree.counts().pages > 40) {
        const Evicted e = i % 2 ? tree.evict_pages(3) : tree.evict_state();
        for (const PageId p : e.pages) log.push_back(p.value);
        for (const SlotId s : e.states) log.push_back(s.value);
      }
    }
    for (const auto& v : tree.nodes())
      log.insert(log.end(), {static_cast<int64_t>(v.id), static_cast<int64_t>(v.parent), v.depth});
    return log;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace kadence::prefix
