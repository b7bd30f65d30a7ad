#include "prefix/radix_tree.h"

#include "base/error.h"
#include "base/math.h"
#include "prefix/tree_impl.h"

namespace kadence::prefix {

using base::ErrorCode;
using base::throw_error;
using base::throw_invalid;

namespace {

void require_multiple(int64_t value, int64_t of, const char* what) {
  if (value < 0 || value % of != 0) throw_invalid(what, "a multiple of " + std::to_string(of), std::to_string(value));
}

}  // namespace

RadixTree::Impl::Impl(const TreeOptions& o) : options(o) {
  if (o.kv_page < 1) throw_invalid("kv_page", "at least 1", std::to_string(o.kv_page));
  if (o.tree_page < 1) throw_invalid("tree_page", "at least 1", std::to_string(o.tree_page));
  require_multiple(o.tree_page, o.kv_page, "tree_page");
}

Node* RadixTree::Impl::find_root(const Namespace& ns) const {
  const auto it = roots.find(ns);
  return it == roots.end() ? nullptr : it->second.get();
}

// Follows `tokens` as far as whole tree pages agree.
RadixTree::Impl::Walk RadixTree::Impl::walk(Node* root, Tokens tokens) const {
  Walk w;
  const auto page = static_cast<size_t>(options.tree_page);
  const Node* node = root;
  while (node && tokens.size() >= page) {
    const auto it = node->children.find(tokens.first(page));
    if (it == node->children.end()) break;
    Node* child = it->second;
    const size_t most = std::min(child->tokens.size(), tokens.size());
    const auto differ =
        std::mismatch(child->tokens.begin(), child->tokens.begin() + static_cast<int64_t>(most), tokens.begin());
    const size_t common = base::round_down(static_cast<size_t>(differ.first - child->tokens.begin()), page);
    w.path.push_back(child);
    w.matched += static_cast<int64_t>(common);
    if (common < child->tokens.size()) break;
    tokens = tokens.subspan(common);
    node = child;
  }
  return w;
}

void RadixTree::Impl::unlist(Node* n) {
  if (is_free_leaf(n)) leaves.erase(n);
  if (n->state.valid() && n->state_locks == 0) states.erase(n);
}

void RadixTree::Impl::list(Node* n) {
  if (is_free_leaf(n)) leaves.insert(n);
  if (n->state.valid() && n->state_locks == 0) states.insert(n);
}

void RadixTree::Impl::touch(const std::vector<Node*>& path) {
  for (Node* n : path) {
    const bool leaf = is_free_leaf(n);  // only a leaf's tick orders anything
    if (leaf) leaves.erase(n);
    n->page_tick = clock;
    if (leaf) leaves.insert(n);
  }
}

void RadixTree::Impl::touch_state(Node* n) {
  unlist(n);
  n->state_tick = clock;
  list(n);
}

Node* RadixTree::Impl::add_child(Node* parent, Tokens tokens, std::span<const PageId> pages) {
  auto owned = std::make_unique<Node>();
  Node* n = owned.get();
  n->id = next_node++;
  n->parent = parent;
  n->tokens.assign(tokens.begin(), tokens.end());
  n->pages.assign(pages.begin(), pages.end());
  n->depth = parent->depth + static_cast<int64_t>(tokens.size());
  n->page_tick = clock;
  nodes.emplace(n->id, std::move(owned));
  unlist(parent);  // no longer a leaf
  parent->children.emplace(first_page(n), n);
  list(parent);
  list(n);
  pages_count += static_cast<int64_t>(pages.size());
  for (const PageId p : pages) own(p, true);
  return n;
}

// The state and the handles stay with the lower node, whose end they are about; the locks of the path pass the new
// node.
Node* RadixTree::Impl::split(Node* lower, int64_t depth) {
  const auto cut = static_cast<size_t>(depth - lower->start());
  const auto page_cut = cut / static_cast<size_t>(options.kv_page);
  auto owned = std::make_unique<Node>();
  Node* upper = owned.get();
  upper->id = next_node++;
  nodes.emplace(upper->id, std::move(owned));
  Node* parent = lower->parent;
  parent->children.erase(first_page(lower));

  upper->parent = parent;
  upper->depth = depth;
  upper->path_locks = lower->path_locks;
  upper->page_tick = lower->page_tick;
  upper->tokens.assign(lower->tokens.begin(), lower->tokens.begin() + static_cast<int64_t>(cut));
  upper->pages.assign(lower->pages.begin(), lower->pages.begin() + static_cast<int64_t>(page_cut));
  lower->tokens = std::vector<int32_t>(lower->tokens.begin() + static_cast<int64_t>(cut), lower->tokens.end());
  lower->pages = std::vector<PageId>(lower->pages.begin() + static_cast<int64_t>(page_cut), lower->pages.end());
  lower->parent = upper;

  parent->children.emplace(first_page(upper), upper);
  upper->children.emplace(first_page(lower), lower);
  return upper;
}

void RadixTree::Impl::attach(Node* n, SlotId state) {
  unlist(n);
  n->state = state;
  n->state_tick = clock;
  list(n);
  own(state, true);
  ++states_count;
}

void RadixTree::Impl::drop_state(Node* n, Evicted& out) {
  unlist(n);
  out.states.push_back(n->state);
  own(n->state, false);
  --states_count;
  n->state = SlotId();
  list(n);
}

void RadixTree::Impl::remove(Node* n, Evicted& out) {
  while (true) {
    if (n->state.valid()) drop_state(n, out);
    unlist(n);
    out.pages.insert(out.pages.end(), n->pages.begin(), n->pages.end());
    for (const PageId p : n->pages) own(p, false);
    pages_count -= static_cast<int64_t>(n->pages.size());
    Node* parent = n->parent;
    parent->children.erase(first_page(n));
    nodes.erase(n->id);
    if (parent->is_root()) {
      if (parent->children.empty()) roots.erase(Namespace(*parent->ns));
      return;
    }
    if (!is_free_leaf(parent)) return;
    if (parent->state.valid()) {
      list(parent);
      return;
    }
    leaves.insert(parent);  // for the next round's unlist()
    n = parent;
  }
}

void RadixTree::Impl::evict_one_state(Evicted& out) {
  Node* n = *states.begin();
  if (is_free_leaf(n)) {
    remove(n, out);
  } else {
    drop_state(n, out);
  }
}

RadixTree::RadixTree(const TreeOptions& options) : impl_(std::make_unique<Impl>(options)) {}
RadixTree::~RadixTree() = default;
RadixTree::RadixTree(RadixTree&&) noexcept = default;
RadixTree& RadixTree::operator=(RadixTree&&) noexcept = default;

MatchResult RadixTree::Impl::resolve(const Walk& w, int64_t limit, int64_t grid, Node*& best) const {
  if (grid < 1) throw_invalid("grid", "at least 1", std::to_string(grid));
  require_multiple(grid, options.tree_page, "grid");
  MatchResult m;
  m.matched = w.matched;
  const int64_t most = std::max<int64_t>(std::min(w.matched, limit), 0);
  best = nullptr;
  for (Node* n : w.path) {
    if (n->depth <= most && n->state.valid()) best = n;
  }
  if (best) {
    m.resumable = best->depth;
    m.state = best->state;
    m.pages.reserve(static_cast<size_t>(best->depth / options.kv_page));
    for (const Node* n : w.path) {
      m.pages.insert(m.pages.end(), n->pages.begin(), n->pages.end());
      if (n == best) break;
    }
  }
  const int64_t fork = base::round_down(most, grid);
  if (fork > m.resumable) m.branch = fork;
  return m;
}

MatchResult RadixTree::match(const Namespace& ns, Tokens tokens, int64_t limit, int64_t grid) {
  Impl& t = *impl_;
  const Impl::Walk w = t.walk(t.find_root(ns), tokens);
  Node* best = nullptr;
  MatchResult m = t.resolve(w, limit, grid, best);
  ++t.clock;
  t.touch(w.path);
  if (best) t.touch_state(best);
  return m;
}

MatchResult RadixTree::peek(const Namespace& ns, Tokens tokens, int64_t limit, int64_t grid) const {
  const Impl& t = *impl_;
  Node* best = nullptr;
  return t.resolve(t.walk(t.find_root(ns), tokens), limit, grid, best);
}

LockHandle RadixTree::lock(const Namespace& ns, Tokens tokens, int64_t depth) {
  Impl& t = *impl_;
  require_multiple(depth, t.options.tree_page, "depth to lock");
  if (depth > static_cast<int64_t>(tokens.size())) {
    throw_invalid("depth to lock", "at most the " + std::to_string(tokens.size()) + " tokens given",
                  std::to_string(depth));
  }
  if (depth == 0) return {};
  const Impl::Walk w = t.walk(t.find_root(ns), tokens.first(static_cast<size_t>(depth)));
  if (w.matched != depth) {
    throw_invalid("depth to lock", "at most the " + std::to_string(w.matched) + " tokens cached",
                  std::to_string(depth));
  }
  Node* target = w.path.back();
  if (target->depth > depth) target = t.split(target, depth);
  for (Node* n = target; !n->is_root(); n = n->parent) {
    if (n->path_locks == 0) t.locked_pages += static_cast<int64_t>(n->pages.size());
    t.unlist(n);
    ++n->path_locks;
    t.list(n);
  }
  const bool has_state = target->state.valid();
  if (has_state) {
    if (target->state_locks == 0) ++t.locked_states;
    t.unlist(target);
    ++target->state_locks;
    t.list(target);
  }
  const LockHandle handle{target->id, t.next_ticket++};
  t.locks.emplace(handle.ticket, Impl::Lock{target, has_state});
  return handle;
}

void RadixTree::unlock(LockHandle handle) {
  Impl& t = *impl_;
  if (!handle.valid()) return;
  const auto it = t.locks.find(handle.ticket);
  if (it == t.locks.end() || it->second.node->id != handle.node) {
    throw_error(ErrorCode::kInternal, "lock " + std::to_string(handle.ticket) + " on node " +
                                          std::to_string(handle.node) +
                                          " is not held: given back twice, or of another tree");
  }
  const Impl::Lock lock = it->second;
  t.locks.erase(it);
  if (lock.state) {
    t.unlist(lock.node);
    --lock.node->state_locks;
    t.list(lock.node);
    if (lock.node->state_locks == 0) --t.locked_states;
  }
  for (Node* n = lock.node; !n->is_root(); n = n->parent) {
    t.unlist(n);
    --n->path_locks;
    t.list(n);
    if (n->path_locks == 0) t.locked_pages -= static_cast<int64_t>(n->pages.size());
  }
}

InsertResult RadixTree::insert(const Namespace& ns, Tokens tokens, std::span<const PageId> pages, SlotId state) {
  Impl& t = *impl_;
  const auto d = static_cast<int64_t>(tokens.size());
  const int64_t kv_page = t.options.kv_page;
  require_multiple(d, t.options.tree_page, "tokens to publish");
  if (static_cast<int64_t>(pages.size()) != d / kv_page) {
    throw_invalid("pages to publish", std::to_string(d / kv_page), std::to_string(pages.size()));
  }
  if (d == 0) {
    if (state.valid()) throw_invalid("state to publish", "a depth above 0", "depth 0");
    return {};
  }

  // Everything is checked before anything changes.
  Impl::Walk w = t.walk(t.find_root(ns), tokens);
  InsertResult result;
  result.pages.reserve(pages.size());
  for (const Node* n : w.path) result.pages.insert(result.pages.end(), n->pages.begin(), n->pages.end());
  const auto known = static_cast<size_t>(w.matched / kv_page);
  result.pages.resize(known);
  result.pages.insert(result.pages.end(), pages.begin() + static_cast<int64_t>(known), pages.end());
  if (state.valid() && t.owns(state)) {
    throw_invalid("state to publish", "a slot that the tree does not own", "slot " + std::to_string(state.value));
  }
  size_t marked = known;
  std::string bad;
  for (size_t i = 0; i < pages.size() && bad.empty(); ++i) {
    if (!pages[i].valid()) {
      bad = "none";
    } else if ((i >= known || pages[i] != result.pages[i]) && t.owns(pages[i])) {
      bad = "page " + std::to_string(pages[i].value) + ", which the tree holds elsewhere or the key has twice";
    } else if (i >= known) {
      t.own(pages[i], true);
      marked = i + 1;
    }
  }
  for (size_t i = known; i < marked; ++i) t.own(pages[i], false);
  if (!bad.empty()) throw_invalid("pages to publish", "pages that are valid and nowhere else", bad);

  // Split before touching: what the key does not share keeps its own last use.
  ++t.clock;
  if (!w.path.empty() && w.path.back()->depth > w.matched && (w.matched < d || state.valid())) {
    w.path.back() = t.split(w.path.back(), w.matched);
  }
  t.touch(w.path);
  Node* end = w.path.empty() ? nullptr : w.path.back();
  if (w.matched < d) {
    if (!end) {
      const auto [it, added] = t.roots.try_emplace(ns);
      if (added) {
        it->second = std::make_unique<Node>();
        it->second->ns = &it->first;
      }
      end = it->second.get();
    }
    end = t.add_child(end, tokens.subspan(static_cast<size_t>(w.matched)), pages.subspan(known));
  }
  if (state.valid()) {
    if (end->state.valid()) {
      t.touch_state(end);
    } else {
      t.attach(end, state);
      result.state_taken = true;
    }
  }
  return result;
}

Evicted RadixTree::evict_pages(int64_t count) {
  Impl& t = *impl_;
  Evicted out;
  while (static_cast<int64_t>(out.pages.size()) < count && !t.leaves.empty()) t.remove(*t.leaves.begin(), out);
  return out;
}

Evicted RadixTree::evict_state() {
  Evicted out;
  if (!impl_->states.empty()) impl_->evict_one_state(out);
  return out;
}

Evicted RadixTree::clear() {
  Impl& t = *impl_;
  Evicted out;
  while (!t.leaves.empty()) t.remove(*t.leaves.begin(), out);
  while (!t.states.empty()) t.drop_state(*t.states.begin(), out);  // of nodes that a lock below keeps
  return out;
}

TreeCounts RadixTree::counts() const {
  const Impl& t = *impl_;
  TreeCounts c;
  c.nodes = static_cast<int64_t>(t.nodes.size());
  c.pages = t.pages_count, c.states = t.states_count;
  c.locked_pages = t.locked_pages, c.locked_states = t.locked_states;
  c.evictable_pages = c.pages - c.locked_pages;
  c.evictable_states = c.states - c.locked_states;
  return c;
}

}  // namespace kadence::prefix
