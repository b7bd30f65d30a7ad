// What RadixTree says about itself: the walk that verifies every invariant, and the view for people and tests.
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "prefix/tree_impl.h"

namespace kadence::prefix {

namespace {

[[noreturn]] void broken(const std::string& what, const Node* n = nullptr) {
  std::string m = "radix tree: " + what;
  if (n) m += " at node " + std::to_string(n->id) + " (depth " + std::to_string(n->depth) + ")";
  base::throw_error(base::ErrorCode::kInternal, m);
}

// Roots first, every node after its parent; siblings in the order of their tokens.
std::vector<const Node*> depth_first(const std::map<Namespace, std::unique_ptr<Node>>& roots, size_t expected) {
  std::vector<const Node*> order, stack;
  for (auto it = roots.rbegin(); it != roots.rend(); ++it) stack.push_back(it->second.get());
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    order.push_back(n);
    if (order.size() > expected) broken("more nodes are reachable than there are, or a cycle", n);
    for (auto it = n->children.rbegin(); it != n->children.rend(); ++it) stack.push_back(it->second);
  }
  return order;
}

}  // namespace

std::vector<RadixTree::NodeView> RadixTree::nodes() const {
  std::vector<NodeView> views;
  for (const Node* n : depth_first(impl_->roots, impl_->nodes.size() + impl_->roots.size())) {
    if (n->is_root()) continue;
    views.push_back(
        {n->id, n->parent->id, n->depth, static_cast<int64_t>(n->tokens.size()), n->state.valid(), n->path_locks});
  }
  return views;
}

void RadixTree::check() const {
  const Impl& t = *impl_;
  const std::vector<const Node*> order = depth_first(t.roots, t.nodes.size() + t.roots.size());
  if (order.size() != t.nodes.size() + t.roots.size()) broken("a node is not reachable from its root");

  std::unordered_map<const Node*, int64_t> path_locks, state_locks;  // recomputed from the handles that are out
  for (const auto& [ticket, lock] : t.locks) {
    const auto it = lock.node ? t.nodes.find(lock.node->id) : t.nodes.end();
    if (it == t.nodes.end() || it->second.get() != lock.node) broken("a lock is held on a node that is gone");
    ++path_locks[lock.node];
    if (lock.state) ++state_locks[lock.node];
  }
  for (size_t i = order.size(); i-- > 0;) {  // children before parents
    const Node* n = order[i];
    const auto it = path_locks.find(n);
    if (it != path_locks.end() && !n->is_root()) path_locks[n->parent] += it->second;
  }
  const auto value = [](const auto& map, const Node* n) {
    const auto it = map.find(n);
    return it == map.end() ? int64_t{0} : it->second;
  };

  std::vector<bool> page_seen(t.page_owned.size()), state_seen(t.state_owned.size());
  int64_t pages = 0, states = 0, locked_pages = 0, locked_states = 0;
  size_t free_leaves = 0, free_states = 0;
  for (const Node* n : order) {
    for (const auto& [key, child] : n->children) {
      if (child->parent != n) broken("a child has another parent", child);
      const Tokens first = t.first_page(child);
      if (key.data() != first.data() || key.size() != first.size())
        broken("a child is filed under other tokens", child);
    }
    if (n->is_root()) {
      const auto it = n->ns ? t.roots.find(*n->ns) : t.roots.end();
      if (it == t.roots.end() || it->second.get() != n) broken("a root is filed under another namespace", n);
      if (n->children.empty()) broken("a root without children", n);
      if (n->id != 0 || n->depth != 0 || !n->tokens.empty() || !n->pages.empty() || n->state.valid() ||
          n->path_locks != 0) {
        broken("a root that is not empty", n);
      }
      continue;
    }
    const auto length = static_cast<int64_t>(n->tokens.size());
    const auto owner = t.nodes.find(n->id);
    if (owner == t.nodes.end() || owner->second.get() != n) broken("a node is filed under another id", n);
    if (length == 0 || length % t.options.tree_page != 0) broken("an edge of " + std::to_string(length) + " tokens", n);
    if (n->depth != n->parent->depth + length) broken("depth is not the parent's and the edge's", n);
    if (static_cast<int64_t>(n->pages.size()) * t.options.kv_page != length) broken("tokens and pages disagree", n);
    if (n->page_tick > t.clock || n->state_tick > t.clock) broken("a tick of the future", n);
    if (!n->parent->is_root() && n->parent->page_tick < n->page_tick) broken("used after its parent", n);
    if (n->path_locks != value(path_locks, n)) broken("path locks and handles disagree", n);
    if (n->state_locks != value(state_locks, n)) broken("state locks and handles disagree", n);
    if (n->state_locks > 0 && !n->state.valid()) broken("a locked state is gone", n);
    for (const PageId p : n->pages) {
      if (!p.valid() || !t.owns(p)) broken("page " + std::to_string(p.value) + " is not marked as owned", n);
      if (page_seen[static_cast<size_t>(p.value)])
        broken("page " + std::to_string(p.value) + " is in the tree twice", n);
      page_seen[static_cast<size_t>(p.value)] = true;
    }
    pages += static_cast<int64_t>(n->pages.size());
    if (n->path_locks > 0) locked_pages += static_cast<int64_t>(n->pages.size());
    if (n->state.valid()) {
      if (!t.owns(n->state)) broken("state " + std::to_string(n->state.value) + " is not marked as owned", n);
      if (state_seen[static_cast<size_t>(n->state.value)])
        broken("state " + std::to_string(n->state.value) + " is in the tree twice", n);
      state_seen[static_cast<size_t>(n->state.value)] = true;
      ++states;
      if (n->state_locks > 0) {
        ++locked_states;
      } else {
        ++free_states;
        const auto it = t.states.find(const_cast<Node*>(n));
        if (it == t.states.end() || *it != n) broken("an unlocked state is not in its LRU", n);
      }
    }
    if (t.is_free_leaf(n)) {
      ++free_leaves;
      const auto it = t.leaves.find(const_cast<Node*>(n));
      if (it == t.leaves.end() || *it != n) broken("an unlocked leaf is not in its LRU", n);
    }
  }
  if (free_leaves != t.leaves.size()) broken("the LRU of leaves has a node that is none");
  if (free_states != t.states.size()) broken("the LRU of states has a node that has none");
  if (page_seen != t.page_owned) broken("a page is marked as owned, but in no node");
  if (state_seen != t.state_owned) broken("a state is marked as owned, but in no node");
  const auto same = [](int64_t counted, int64_t kept, const char* what) {
    if (counted != kept)
      broken(std::string(what) + ": counted " + std::to_string(counted) + ", kept " + std::to_string(kept));
  };
  same(pages, t.pages_count, "pages");
  same(states, t.states_count, "states");
  same(locked_pages, t.locked_pages, "locked pages");
  same(locked_states, t.locked_states, "locked states");
}

}  // namespace kadence::prefix
