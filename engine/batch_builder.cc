#include "engine/batch_builder.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace kadence::engine {

namespace {

// Starts the row [begin, end) of `r`.
void add_row(model::ForwardBatch& b, const Request& r, int64_t begin, int64_t end) {
  if (b.seq_begin.empty()) b.seq_begin.push_back(0);
  b.tokens.insert(b.tokens.end(), r.tokens.begin() + begin, r.tokens.begin() + end);
  b.seq_begin.push_back(static_cast<int64_t>(b.tokens.size()));
  b.start.push_back(begin);
}

// Row i's table covers positions [0, ends[i]); entries past it are -1 and never read.
void fill_page_table(model::ForwardBatch& b, std::span<const Request* const> requests, int64_t page_size) {
  const size_t n = b.start.size();
  const auto end_of = [&](size_t i) { return b.start[i] + b.seq_begin[i + 1] - b.seq_begin[i]; };
  for (size_t i = 0; i < n; ++i) b.max_pages = std::max(b.max_pages, base::ceil_div(end_of(i), page_size));
  b.page_table.assign(n * static_cast<size_t>(b.max_pages), -1);
  for (size_t i = 0; i < n; ++i) {
    const std::vector<PageId>& pages = requests[i]->pages;
    const int64_t used = base::ceil_div(end_of(i), page_size);
    KADENCE_CHECK(used <= static_cast<int64_t>(pages.size()));
    for (int64_t p = 0; p < used; ++p) {
      b.page_table[i * static_cast<size_t>(b.max_pages) + static_cast<size_t>(p)] = pages[static_cast<size_t>(p)].value;
    }
  }
}

}  // namespace

BuiltBatch build_extend(std::span<const ExtendRow> rows, int64_t page_size) {
  BuiltBatch out;
  model::ForwardBatch& b = out.batch;
  b.phase = ops::GemmPhase::kPrefill;
  b.ckpt_begin.push_back(0);
  std::vector<const Request*> requests;
  for (const ExtendRow& row : rows) {
    const Request& r = *row.request;
    const auto index = static_cast<int32_t>(b.start.size());
    const auto packed = static_cast<int64_t>(b.tokens.size());
    add_row(b, r, row.begin(), row.end());
    b.state_in.push_back(r.resume.valid() ? r.resume.value : row.begin() == 0 ? -1 : r.slot.value);
    b.state_out.push_back(r.slot.value);
    for (const CheckpointTarget& c : row.checkpoints) {
      b.ckpt_depth.push_back(static_cast<int32_t>(c.depth - row.begin()));
      b.ckpt_slot.push_back(c.slot.value);
    }
    b.ckpt_begin.push_back(static_cast<int32_t>(b.ckpt_slot.size()));
    // The log-prob of position p comes from the logits after p-1.
    int64_t position = std::min(row.end() - 1, std::max(row.begin(), r.score_next - 1));
    for (; position < row.end(); ++position) {
      b.logit_tokens.push_back(packed + position - row.begin());
      out.wants.push_back({index, position});
    }
    requests.push_back(&r);
  }
  fill_page_table(b, requests, page_size);
  return out;
}

BuiltBatch build_step(std::span<Request* const> rows, int64_t page_size) {
  BuiltBatch out;
  model::ForwardBatch& b = out.batch;
  b.phase = ops::GemmPhase::kDecode;
  b.ckpt_begin.push_back(0);
  for (const Request* r : rows) {
    const auto index = static_cast<int32_t>(b.start.size());
    add_row(b, *r, r->computed, r->computed + 1);
    b.state_in.push_back(r->slot.value);
    b.state_out.push_back(r->slot.value);
    b.ckpt_begin.push_back(0);
    if (r->computed + 1 == static_cast<int64_t>(r->tokens.size())) {
      b.logit_tokens.push_back(index);
      out.wants.push_back({index, r->computed});
    }
  }
  fill_page_table(b, std::vector<const Request*>(rows.begin(), rows.end()), page_size);
  return out;
}

}  // namespace kadence::engine
