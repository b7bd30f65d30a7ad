#include "model/bpe.h"

#include <algorithm>
#include <cstddef>
#include <queue>

namespace kadence::model {
namespace {

constexpr size_t kScanLength = 48;  // symbols; above this the heap wins

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(std::vector<std::string> tokens, bool whole_pieces) : tokens_(std::move(tokens)), whole_pieces_(whole_pieces) {
  byte_ids_.fill(-1);
  ids_.reserve(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].empty()) continue;
    ids_.emplace(tokens_[i], static_cast<int32_t>(i));
    if (tokens_[i].size() == 1) byte_ids_[static_cast<uint8_t>(tokens_[i][0])] = static_cast<int32_t>(i);
  }
}

int32_t Bpe::id_of(std::string_view bytes) const {
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? -1 : it->second;
}

bool Bpe::add_merge(int32_t left, int32_t right, BpeMerge merge) {
  return merges_.emplace(pair_key(left, right), merge).second;
}

void Bpe::add_merges_by_rank() {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view t = tokens_[i];
    for (size_t cut = 1; cut < t.size(); ++cut) {
      const int32_t left = id_of(t.substr(0, cut)), right = id_of(t.substr(cut));
      if (left >= 0 && right >= 0) add_merge(left, right, {static_cast<int32_t>(i), static_cast<int32_t>(i)});
    }
  }
}

const BpeMerge* Bpe::find(int32_t left, int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out, BpeMethod method) const {
  if (piece.empty()) return;
  if (whole_pieces_) {
    if (const int32_t id = id_of(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  std::vector<int32_t> ids;
  ids.reserve(piece.size());
  for (const char c : piece)
    if (const int32_t id = byte_ids_[static_cast<uint8_t>(c)]; id >= 0) ids.push_back(id);
  if (method == BpeMethod::kAuto) method = ids.size() <= kScanLength ? BpeMethod::kScan : BpeMethod::kHeap;
  method == BpeMethod::kScan ? merge_scan(ids) : merge_heap(ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

void Bpe::merge_scan(std::vector<int32_t>& ids) const {
  std::vector<BpeMerge> next(ids.size());  // merge of ids[i] with ids[i+1]
  const auto look = [&](size_t i) {
    const BpeMerge* m = i + 1 < ids.size() ? find(ids[i], ids[i + 1]) : nullptr;
    next[i] = m ? *m : BpeMerge{};
  };
  for (size_t i = 0; i < ids.size(); ++i) look(i);
  while (ids.size() > 1) {
    size_t best = ids.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (next[i].rank >= 0 && (best == ids.size() || next[i].rank < next[best].rank)) best = i;
    if (best == ids.size()) return;
    ids[best] = next[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    next.erase(next.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look(best);
    if (best > 0) look(best - 1);
  }
}

void Bpe::merge_heap(std::vector<int32_t>& ids) const {
  struct Node {
    int64_t before, after;
  };
  struct Candidate {
    int32_t rank;
    int64_t at;
    int32_t left, right, id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const int64_t n = static_cast<int64_t>(ids.size());
  std::vector<Node> nodes(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](int64_t at) {
    if (at < 0 || nodes[static_cast<size_t>(at)].after >= n) return;
    const int32_t left = ids[static_cast<size_t>(at)],
                  right = ids[static_cast<size_t>(nodes[static_cast<size_t>(at)].after)];
    if (const BpeMerge* m = find(left, right)) heap.push({m->rank, at, left, right, m->id});
  };
  for (int64_t i = 0; i < n; ++i) nodes[static_cast<size_t>(i)] = {i - 1, i + 1};
  for (int64_t i = 0; i < n; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Node& node = nodes[static_cast<size_t>(c.at)];
    // A candidate is stale once either symbol has changed; swallowed symbols are -1.
    if (ids[static_cast<size_t>(c.at)] != c.left || node.after >= n || ids[static_cast<size_t>(node.after)] != c.right)
      continue;
    ids[static_cast<size_t>(c.at)] = c.id;
    ids[static_cast<size_t>(node.after)] = -1;
    node.after = nodes[static_cast<size_t>(node.after)].after;
    if (node.after < n) nodes[static_cast<size_t>(node.after)].before = c.at;
    offer(node.before);
    offer(c.at);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
}

}  // namespace kadence::model
