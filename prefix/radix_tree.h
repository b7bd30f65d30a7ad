// What is the same: a radix tree from token sequences to opaque page ids and at most one state id per node. It knows no
// device and no bytes. A state is valid at its node's end only; splitting an edge leaves the upper node without one.
// Matching, splitting and insertion happen at multiples of the tree page. Deterministic: the same calls give the same
// tree, evictions included. One engine thread owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace kadence::prefix {

using base::PageId;
using base::SlotId;

// Root of a key: requests with different namespaces (cache_salt, adapter) never share or see each other's entries.
using Namespace = std::string;

struct TreeOptions {
  int64_t tree_page = 64;  // tokens; a multiple of kv_page
  int64_t kv_page = 64;    // tokens per PageId
};

struct MatchResult {
  int64_t matched = 0;        // tokens whose pages are in the tree (multiple of tree_page)
  int64_t resumable = 0;      // depth of the deepest state at or below min(matched, limit); 0 = none
  SlotId state;               // that state; none if resumable == 0
  std::vector<PageId> pages;  // of [0, resumable)
  int64_t branch = 0;  // floor(min(matched, limit) / grid) * grid if > resumable, else 0: where a sibling wants a state
};

// Keeps a path from eviction. Obtained from lock(); must be given back to unlock() exactly once.
struct LockHandle {
  uint64_t node = 0;    // 0 = holds nothing
  uint64_t ticket = 0;  // this very lock: a second unlock() is refused
  bool valid() const { return node != 0; }
};

struct InsertResult {
  // For every page index of the key: the page that the tree now holds there. Where it differs from the page given, the
  // tree already had one (duplicate): the caller switches to the tree's page and frees its own.
  std::vector<PageId> pages;
  // The tree now owns the state; false = it already had one there (the caller frees its copy) or none was given.
  bool state_taken = false;
};

struct Evicted {
  std::vector<PageId> pages;
  std::vector<SlotId> states;
};

struct TreeCounts {
  int64_t nodes = 0, pages = 0, states = 0;           // owned by the tree (root not counted)
  int64_t locked_pages = 0, locked_states = 0;        // not evictable
  int64_t evictable_pages = 0, evictable_states = 0;  // what repeated eviction can yield
};

class RadixTree {
 public:
  explicit RadixTree(const TreeOptions& options);
  ~RadixTree();
  RadixTree(RadixTree&&) noexcept;
  RadixTree& operator=(RadixTree&&) noexcept;

  // Longest cached prefix of `tokens`, resumable at `limit` or below (limit = tokens that may be skipped: n-1, or f-1
  // for a request that scores from f). Refreshes the used state and the matched pages in their LRUs, not every ancestor
  // state. `grid` = checkpoint grid, for MatchResult::branch. Splits nothing.
  MatchResult match(const Namespace& ns, std::span<const int32_t> tokens, int64_t limit, int64_t grid);
  // The same answer, but nothing is refreshed: for predictions.
  MatchResult peek(const Namespace& ns, std::span<const int32_t> tokens, int64_t limit, int64_t grid) const;
  // Locks the path of `tokens` [0, depth): its pages, and the state at `depth` if there is one. depth is a multiple of
  // the tree page and cached; splits a node if depth is inside it. depth 0 gives a handle that holds nothing.
  LockHandle lock(const Namespace& ns, std::span<const int32_t> tokens, int64_t depth);
  // Throws Error{kInternal} for a handle that is not held. A handle that holds nothing is ignored.
  void unlock(LockHandle handle);

  // Publishes tokens [0, d) with their pages and, if valid, the state at exactly d. d = tokens.size() is a multiple of
  // the tree page, pages.size() = d / kv_page. Throws Error{kInvalidArgument} otherwise, and for a page that the tree
  // holds elsewhere or a state that it owns; nothing has changed then.
  InsertResult insert(const Namespace& ns, std::span<const int32_t> tokens, std::span<const PageId> pages,
                      SlotId state);

  // Frees at least `count` pages if it can, whole leaves: first unlocked leaves without a state, whose pages nobody can
  // resume, then the least recently used ones, whose states go with them. A parent left without child, state and lock
  // goes too.
  Evicted evict_pages(int64_t count);
  // Frees one state: the least recently used unlocked one; an inner node keeps its pages, a leaf whose pages nobody can
  // resume any more goes too. Empty if all are locked.
  Evicted evict_state();
  // Drops everything unlocked.
  Evicted clear();

  TreeCounts counts() const;
  // Walks the tree and checks every invariant (lengths, uniqueness of pages and states, lock counts, LRU membership,
  // counters). Throws Error{kInternal} naming the first broken one.
  void check() const;

  // For people and tests: nodes in depth-first order.
  struct NodeView {
    uint64_t id;
    uint64_t parent;  // 0 = a root
    int64_t depth;    // tokens from the root to the node's end
    int64_t tokens;   // of its edge
    bool has_state;
    int32_t locks;
  };
  std::vector<NodeView> nodes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kadence::prefix
