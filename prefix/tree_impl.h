// Inside of RadixTree. Nodes are owned by one table, never by each other, so nothing recurses over the depth of the
// tree.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "prefix/radix_tree.h"

namespace kadence::prefix {

using Tokens = std::span<const int32_t>;

struct Node {
  struct FirstPageLess {
    bool operator()(Tokens a, Tokens b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };

  uint64_t id = 0;  // 0 = a root
  Node* parent = nullptr;
  // By the first tree page of the child's tokens (the key views them). Siblings differ in it, so a look-up compares
  // tokens and nothing else, and the order is the same in every run.
  std::map<Tokens, Node*, FirstPageLess> children;
  std::vector<int32_t> tokens;             // of the edge from the parent
  std::vector<PageId> pages;               // of these tokens
  int64_t depth = 0;                       // tokens from the root to the end of this node
  SlotId state;                            // has seen exactly `depth` tokens
  int32_t path_locks = 0;                  // handles on this node or below it
  int32_t state_locks = 0;                 // handles on this node that found its state
  uint64_t page_tick = 0, state_tick = 0;  // last use
  const Namespace* ns = nullptr;           // of a root: its key

  bool is_root() const { return parent == nullptr; }
  int64_t start() const { return depth - static_cast<int64_t>(tokens.size()); }
};

struct RadixTree::Impl {
  // Order of eviction. A leaf without a state holds pages that nobody can resume, so it goes before any leaf with one.
  struct LeafLess {
    bool operator()(const Node* a, const Node* b) const {
      return std::tuple(a->state.valid(), a->page_tick, a->id) < std::tuple(b->state.valid(), b->page_tick, b->id);
    }
  };
  struct StateLess {
    bool operator()(const Node* a, const Node* b) const {
      return std::tuple(a->state_tick, a->id) < std::tuple(b->state_tick, b->id);
    }
  };
  struct Lock {
    Node* node = nullptr;
    bool state = false;  // the state was there when the lock was taken
  };
  struct Walk {
    std::vector<Node*> path;  // without the root; the last one may be matched in part
    int64_t matched = 0;
  };

  explicit Impl(const TreeOptions& o);

  Node* find_root(const Namespace& ns) const;
  Walk walk(Node* root, Tokens tokens) const;
  // What a walk means for a request; `best` = the node whose state it would use, or null.
  MatchResult resolve(const Walk& w, int64_t limit, int64_t grid, Node*& best) const;
  Node* add_child(Node* parent, Tokens tokens, std::span<const PageId> pages);
  Node* split(Node* lower, int64_t depth);  // the new upper node
  void attach(Node* node, SlotId state);
  void touch(const std::vector<Node*>& path);
  void touch_state(Node* node);
  void remove(Node* leaf, Evicted& out);  // and every ancestor that is left without child, state and lock
  void drop_state(Node* node, Evicted& out);
  void evict_one_state(Evicted& out);

  // Every change to what the LRU orders look at happens between unlist() and list().
  bool is_free_leaf(const Node* n) const { return !n->is_root() && n->children.empty() && n->path_locks == 0; }
  void unlist(Node* n);
  void list(Node* n);

  Tokens first_page(const Node* n) const { return Tokens(n->tokens).first(static_cast<size_t>(options.tree_page)); }
  bool owns(PageId p) const {
    return static_cast<size_t>(p.value) < page_owned.size() && page_owned[static_cast<size_t>(p.value)];
  }
  bool owns(SlotId s) const {
    return static_cast<size_t>(s.value) < state_owned.size() && state_owned[static_cast<size_t>(s.value)];
  }
  void own(PageId p, bool yes) { mark(page_owned, p.value, yes); }
  void own(SlotId s, bool yes) { mark(state_owned, s.value, yes); }
  static void mark(std::vector<bool>& v, int32_t i, bool yes) {
    if (static_cast<size_t>(i) >= v.size()) v.resize(std::max<size_t>(static_cast<size_t>(i) + 1, v.size() * 2));
    v[static_cast<size_t>(i)] = yes;
  }

  TreeOptions options;
  std::map<Namespace, std::unique_ptr<Node>> roots;  // only those with children
  std::unordered_map<uint64_t, std::unique_ptr<Node>> nodes;
  std::unordered_map<uint64_t, Lock> locks;  // by ticket
  std::set<Node*, LeafLess> leaves;          // unlocked leaves
  std::set<Node*, StateLess> states;         // nodes whose state is unlocked
  std::vector<bool> page_owned, state_owned;
  int64_t pages_count = 0, states_count = 0, locked_pages = 0, locked_states = 0;
  uint64_t next_node = 1, next_ticket = 1, clock = 0;
};

}  // namespace kadence::prefix
