// Host metadata of extend: validation, and the upload into the caller's buffer.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {

// Byte offsets of the arrays inside the buffer; a function of the bounds alone.
struct Layout {
  size_t seq_begin, state_in, state_out, ckpt_begin, ckpt_depth, ckpt_slot, rows, status, bytes;
};

Layout layout_of(const KdaProblem& p) {
  const size_t n = static_cast<size_t>(p.bounds.max_rows), m = static_cast<size_t>(p.bounds.max_checkpoints);
  size_t at = 0;
  const auto place = [&at](size_t bytes) {
    const size_t offset = at;
    at += base::round_up(bytes, kTensorAlign);
    return offset;
  };
  Layout l{};
  l.seq_begin = place((n + 1) * (p.seq_int64 ? 8 : 4));
  l.state_in = place(n * 4);
  l.state_out = place(n * 4);
  l.ckpt_begin = place((n + 1) * 4);
  l.ckpt_depth = place(m * 4);
  l.ckpt_slot = place(m * 4);
  l.rows = place(4);
  l.status = place(8);
  l.bytes = base::round_up(at, kWorkspaceAlign);
  return l;
}

[[noreturn]] void refuse(int64_t row, const std::string& field, const std::string& wanted, int64_t got) {
  base::throw_invalid("metadata row " + std::to_string(row) + ", " + field, wanted, std::to_string(got));
}

void want_size(size_t got, size_t wanted, const char* field) {
  if (got != wanted)
    base::throw_invalid(std::string("metadata ") + field, std::to_string(wanted) + " entries", std::to_string(got));
}

struct Use {
  int32_t slot;
  int64_t row;
  const char* field;
  bool operator<(const Use& o) const { return slot != o.slot ? slot < o.slot : row < o.row; }
};

void refuse_two_writers(std::vector<Use>& writes) {
  std::sort(writes.begin(), writes.end());
  for (size_t i = 1; i < writes.size(); ++i)
    if (writes[i].slot == writes[i - 1].slot)
      refuse(writes[i].row, writes[i].field,
             "a slot that no other entry writes (row " + std::to_string(writes[i - 1].row) + " writes it as " +
                 writes[i - 1].field + ")",
             writes[i].slot);
}

void validate_slots(const KdaHostMetadata& m, int64_t rows) {
  std::vector<Use> outs, ckpts;
  for (int64_t i = 0; i < rows; ++i) {
    if (m.state_out[i] >= 0) outs.push_back({m.state_out[i], i, "state_out"});
    if (m.ckpt_begin.empty()) continue;
    for (int32_t c = m.ckpt_begin[i]; c < m.ckpt_begin[i + 1]; ++c)
      if (m.ckpt_slot[c] >= 0) ckpts.push_back({m.ckpt_slot[c], i, "ckpt_slot"});
  }
  if (!m.same_pool) {
    refuse_two_writers(outs);
    refuse_two_writers(ckpts);
    return;
  }
  outs.insert(outs.end(), ckpts.begin(), ckpts.end());
  refuse_two_writers(outs);
  for (int64_t i = 0; i < rows; ++i) {
    if (m.state_in[i] < 0) continue;
    const auto it = std::lower_bound(outs.begin(), outs.end(), Use{m.state_in[i], -1, ""});
    if (it != outs.end() && it->slot == m.state_in[i] && it->row != i)
      refuse(i, "state_in",
             "a slot that no other row writes (row " + std::to_string(it->row) + " writes it as " + it->field + ")",
             it->slot);
  }
}

}  // namespace

size_t kda_metadata_bytes(const KdaProblem& problem) { return layout_of(problem).bytes; }

void validate(const KdaPlan& plan, const KdaHostMetadata& m) {
  const KdaBounds& bounds = plan.problem().bounds;
  if (plan.problem().phase != KdaPhase::kExtend)
    base::throw_invalid("metadata", "an extend plan", "a plan of another phase");
  if (m.seq_begin.empty()) base::throw_invalid("metadata seq_begin", "rows + 1 entries", "none");
  const int64_t rows = static_cast<int64_t>(m.seq_begin.size()) - 1;
  if (rows > bounds.max_rows)
    base::throw_invalid("metadata rows", "at most bounds.max_rows = " + std::to_string(bounds.max_rows),
                        std::to_string(rows));
  if (m.tokens < 0 || m.tokens > bounds.max_tokens)
    base::throw_invalid("metadata tokens", "0 to bounds.max_tokens = " + std::to_string(bounds.max_tokens),
                        std::to_string(m.tokens));
  want_size(m.state_in.size(), static_cast<size_t>(rows), "state_in");
  want_size(m.state_out.size(), static_cast<size_t>(rows), "state_out");
  if (m.seq_begin[0] != 0) refuse(0, "seq_begin", "0 for the first row", m.seq_begin[0]);
  for (int64_t i = 0; i < rows; ++i) {
    if (m.seq_begin[i + 1] < m.seq_begin[i])
      refuse(i, "seq_begin", "an end at or after the row's start " + std::to_string(m.seq_begin[i]),
             m.seq_begin[i + 1]);
    if (m.seq_begin[i + 1] > m.tokens)
      refuse(i, "seq_begin", "an end within the " + std::to_string(m.tokens) + " tokens", m.seq_begin[i + 1]);
    if (m.state_in[i] < -1 || m.state_in[i] >= m.state_in_slots)
      refuse(i, "state_in", "-1 or a slot below " + std::to_string(m.state_in_slots), m.state_in[i]);
    if (m.state_out[i] < -1 || m.state_out[i] >= m.state_out_slots)
      refuse(i, "state_out", "-1 or a slot below " + std::to_string(m.state_out_slots), m.state_out[i]);
  }
  if (m.seq_begin[rows] > INT32_MAX && !plan.problem().seq_int64)
    refuse(rows - 1, "seq_begin", "an offset of int32 (KdaProblem::seq_int64 lifts it)", m.seq_begin[rows]);

  if (m.ckpt_begin.empty()) {
    want_size(m.ckpt_depth.size(), 0, "ckpt_depth (without ckpt_begin)");
    want_size(m.ckpt_slot.size(), 0, "ckpt_slot (without ckpt_begin)");
  } else {
    want_size(m.ckpt_begin.size(), static_cast<size_t>(rows) + 1, "ckpt_begin");
    const int64_t total = static_cast<int64_t>(m.ckpt_depth.size());
    if (total > bounds.max_checkpoints)
      base::throw_invalid("metadata checkpoints",
                          "at most bounds.max_checkpoints = " + std::to_string(bounds.max_checkpoints),
                          std::to_string(total));
    want_size(m.ckpt_slot.size(), m.ckpt_depth.size(), "ckpt_slot");
    if (m.ckpt_begin[0] != 0) refuse(0, "ckpt_begin", "0 for the first row", m.ckpt_begin[0]);
    if (m.ckpt_begin[rows] != total)
      refuse(rows - 1, "ckpt_begin", "the number of checkpoints " + std::to_string(total) + " at the end",
             m.ckpt_begin[rows]);
    for (int64_t i = 0; i < rows; ++i) {
      if (m.ckpt_begin[i + 1] < m.ckpt_begin[i] || m.ckpt_begin[i + 1] > total)
        refuse(i, "ckpt_begin", "an end at or after the start and within " + std::to_string(total),
               m.ckpt_begin[i + 1]);
      const int64_t len = m.seq_begin[i + 1] - m.seq_begin[i];
      int64_t previous = 0;
      for (int32_t c = m.ckpt_begin[i]; c < m.ckpt_begin[i + 1]; ++c) {
        const int64_t depth = m.ckpt_depth[c];
        if (depth <= 0 || depth % kChunkTokens != 0) refuse(i, "ckpt_depth", "a positive multiple of 64", depth);
        if (depth > len) refuse(i, "ckpt_depth", "at most the row's length " + std::to_string(len), depth);
        if (depth <= previous)
          refuse(i, "ckpt_depth", "more than the depth before it, " + std::to_string(previous), depth);
        if (m.ckpt_slot[c] < -1 || m.ckpt_slot[c] >= m.ckpt_slots)
          refuse(i, "ckpt_slot", "-1 or a slot below " + std::to_string(m.ckpt_slots), m.ckpt_slot[c]);
        previous = depth;
      }
    }
  }
  validate_slots(m, rows);
}

KdaMetadata upload(const KdaPlan& plan, const KdaHostMetadata& m, void* buffer, device::Stream& stream) {
  validate(plan, m);
  if (!buffer || reinterpret_cast<uintptr_t>(buffer) % kTensorAlign != 0)
    base::throw_invalid("metadata buffer", "device memory aligned to 16 bytes",
                        buffer ? "a misaligned address" : "null");
  const KdaProblem& p = plan.problem();
  const Layout l = layout_of(p);
  const int32_t max_rows = p.bounds.max_rows;
  const int64_t rows = static_cast<int64_t>(m.seq_begin.size()) - 1;

  // Rows beyond the actual ones are empty and without slots, for kernels that are launched over max_rows.
  static thread_local std::vector<char> staging;
  staging.assign(l.bytes, 0);
  const auto ints = [](size_t offset) { return reinterpret_cast<int32_t*>(staging.data() + offset); };
  for (int64_t i = 0; i <= max_rows; ++i) {
    const int64_t begin = m.seq_begin[static_cast<size_t>(std::min(i, rows))];
    if (p.seq_int64)
      std::memcpy(staging.data() + l.seq_begin + i * 8, &begin, 8);
    else
      ints(l.seq_begin)[i] = static_cast<int32_t>(begin);
  }
  std::fill_n(ints(l.state_in), max_rows, -1);
  std::fill_n(ints(l.state_out), max_rows, -1);
  std::copy(m.state_in.begin(), m.state_in.end(), ints(l.state_in));
  std::copy(m.state_out.begin(), m.state_out.end(), ints(l.state_out));
  for (int64_t i = 0; i <= max_rows; ++i)
    ints(l.ckpt_begin)[i] = m.ckpt_begin.empty() ? 0 : m.ckpt_begin[static_cast<size_t>(std::min(i, rows))];
  std::copy(m.ckpt_depth.begin(), m.ckpt_depth.end(), ints(l.ckpt_depth));
  std::copy(m.ckpt_slot.begin(), m.ckpt_slot.end(), ints(l.ckpt_slot));
  *ints(l.rows) = static_cast<int32_t>(rows);
  device::copy_async(buffer, staging.data(), l.bytes, stream);

  char* b = static_cast<char*>(buffer);
  const auto device_ints = [b](size_t offset) { return reinterpret_cast<int32_t*>(b + offset); };
  KdaMetadata view;
  view.seq_begin = b + l.seq_begin;
  view.state_in = device_ints(l.state_in);
  view.state_out = device_ints(l.state_out);
  if (p.bounds.max_checkpoints > 0) {
    view.ckpt_begin = device_ints(l.ckpt_begin);
    view.ckpt_depth = device_ints(l.ckpt_depth);
    view.ckpt_slot = device_ints(l.ckpt_slot);
  }
  view.rows = max_rows;
  view.rows_device = device_ints(l.rows);
  view.status = device_ints(l.status);
  return view;
}

}  // namespace kadence::ops
