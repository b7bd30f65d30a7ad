// How the CPU kinds of backend read rows of metadata: every value is checked before it is used as an index.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops {

// One row, decoded and judged. With status != kOk nothing else but begin/len may be used.
struct KdaRow {
  int64_t begin = 0, len = 0;
  int32_t state_in = -1, state_out = -1;
  int32_t ckpt_begin = 0, ckpt_end = 0;
  KdaRowStatus status = KdaRowStatus::kOk;
};

// Walks the rows in order. A row that starts before the end of an earlier good row counts as kBadOffsets, so no token
// belongs to two rows.
class KdaRowCursor {
 public:
  KdaRowCursor(const KdaMetadata& metadata, const KdaProblem& problem, int64_t tokens, int64_t in_slots,
               int64_t out_slots, int64_t ckpt_slots)
      : m_(metadata),
        int64_(problem.seq_int64),
        max_checkpoints_(problem.bounds.max_checkpoints),
        tokens_(tokens),
        in_slots_(in_slots),
        out_slots_(out_slots),
        ckpt_slots_(ckpt_slots),
        rows_(metadata.rows_device ? std::clamp(*metadata.rows_device, 0, metadata.rows) : metadata.rows) {}

  int32_t rows() const { return rows_; }
  int64_t covered() const { return covered_; }  // end of the last good row so far

  KdaRow next() {
    const int32_t i = index_++;
    KdaRow r;
    const int64_t begin = offset(i), end = offset(i + 1);
    if (begin < covered_ || end < begin || end > tokens_) {
      r.status = KdaRowStatus::kBadOffsets;
      return r;
    }
    r.begin = begin, r.len = end - begin;
    r.state_in = m_.state_in[i], r.state_out = m_.state_out[i];
    if (r.state_in < -1 || r.state_in >= in_slots_) {
      r.status = KdaRowStatus::kBadStateIn;
    } else if (r.state_out < -1 || r.state_out >= out_slots_) {
      r.status = KdaRowStatus::kBadStateOut;
    } else if (m_.ckpt_begin && !read_checkpoints(i, r)) {
      r.status = KdaRowStatus::kBadCheckpoint;
    }
    if (r.status == KdaRowStatus::kOk) covered_ = end;
    return r;
  }

 private:
  int64_t offset(int32_t i) const {
    return int64_ ? static_cast<const int64_t*>(m_.seq_begin)[i] : static_cast<const int32_t*>(m_.seq_begin)[i];
  }
  bool read_checkpoints(int32_t i, KdaRow& r) const {
    // The arrays hold at most what the plan was made for: nothing beyond is dereferenced.
    const int32_t total = std::min(m_.ckpt_begin[rows_], max_checkpoints_);
    r.ckpt_begin = m_.ckpt_begin[i], r.ckpt_end = m_.ckpt_begin[i + 1];
    if (r.ckpt_begin < 0 || r.ckpt_end < r.ckpt_begin || r.ckpt_end > total) return false;
    int64_t previous = 0;
    for (int32_t c = r.ckpt_begin; c < r.ckpt_end; ++c) {
      const int64_t depth = m_.ckpt_depth[c];
      if (depth <= previous || depth % kChunkTokens != 0 || depth > r.len) return false;
      if (m_.ckpt_slot[c] < -1 || m_.ckpt_slot[c] >= ckpt_slots_) return false;
      previous = depth;
    }
    return true;
  }

  const KdaMetadata& m_;
  const bool int64_;
  const int32_t max_checkpoints_;
  const int64_t tokens_, in_slots_, out_slots_, ckpt_slots_;
  const int32_t rows_;
  int32_t index_ = 0;
  int64_t covered_ = 0;
};

// Leaves (row, reason) unless an earlier row was reported.
inline void report_row(int32_t* status, int32_t row, KdaRowStatus reason) {
  if (status && reason != KdaRowStatus::kOk && status[1] == 0) {
    status[0] = row;
    status[1] = static_cast<int32_t>(reason);
  }
}

// Ancestors of `node`, oldest first, ending with `node` itself. Returns their number, or 0 if the node or a parent is
// out of range. `path` has room for kMaxDraftTokens.
inline int32_t draft_path(const int32_t* parent, int32_t n_draft, int32_t node, int32_t* path) {
  if (node < 0 || node >= n_draft) return 0;
  int32_t count = 0;
  for (int32_t at = node; at >= 0; at = parent[at]) {
    if (parent[at] >= at || parent[at] < -1) return 0;
    path[count++] = at;
  }
  std::reverse(path, path + count);
  return count;
}

// What commit does for one row: up to two paths of nodes, each into a slot.
struct KdaCommitRow {
  struct Target {
    int32_t slot = -1;
    int32_t depth = 0;  // nodes in the path; 0 = nothing to do
    int32_t path[kMaxDraftTokens];
  };
  Target commit, track;
  KdaRowStatus status = KdaRowStatus::kOk;
};

// Reads and judges row `row`; what is out of range counts as none.
inline KdaCommitRow read_commit_row(const KdaProblem& p, const KdaCommitArgs& a, int64_t row) {
  KdaCommitRow r;
  if (a.slot_in[row] == -1) return r;
  if (a.slot_in[row] < -1 || a.slot_in[row] >= a.states.slots) {
    r.status = KdaRowStatus::kBadStateIn;
    return r;
  }
  const int32_t drafts = a.n_draft[row];
  const int32_t* parent = a.parent + row * p.D;
  const auto read = [&](int32_t node, int32_t slot, KdaCommitRow::Target& target) {
    if (node == -1 || slot == -1) return;
    target.depth = drafts >= 0 && drafts <= p.D ? draft_path(parent, drafts, node, target.path) : 0;
    target.slot = slot;
    if (target.depth == 0) r.status = KdaRowStatus::kBadNode;
    if (slot < -1 || slot >= a.states.slots) {
      r.status = KdaRowStatus::kBadStateOut;
      target.depth = 0;
    }
  };
  read(a.node[row], a.slot_out[row], r.commit);
  if (a.track_node) read(a.track_node[row], a.track_slot[row], r.track);
  return r;
}

// Address of an element of a state or window slot.
inline char* slot_address(void* base, DType dtype, int64_t slot, int64_t slot_pitch, int64_t layer,
                          int64_t layer_pitch) {
  return static_cast<char*>(base) +
         (slot * slot_pitch + layer * layer_pitch) * static_cast<int64_t>(base::size_of(dtype));
}
inline char* slot_address(const StateView& v, int64_t slot, int64_t layer = 0) {
  return slot_address(v.base, v.dtype, slot, v.slot_pitch, layer, v.layer_pitch);
}
inline char* slot_address(const WindowView& v, int64_t slot, int64_t layer = 0) {
  return slot_address(v.base, v.dtype, slot, v.slot_pitch, layer, v.layer_pitch);
}

// Address of a token's first element.
inline const char* token_address(const ConstTokenTensor& t, int64_t token, DType dtype) {
  return static_cast<const char*>(t.data) + token * t.pitch * static_cast<int64_t>(base::size_of(dtype));
}
inline char* token_address(const TokenTensor& t, int64_t token, DType dtype) {
  return static_cast<char*>(t.data) + token * t.pitch * static_cast<int64_t>(base::size_of(dtype));
}

}  // namespace kadence::ops
