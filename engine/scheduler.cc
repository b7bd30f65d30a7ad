#include "engine/scheduler.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/math.h"

namespace kadence::engine {

namespace {

void require_grid(const char* flag, int64_t value, int64_t grid) {
  if (value >= grid) return;
  base::throw_invalid(flag,
                      "at least " + std::to_string(grid) + ", the checkpoint grid (use " + std::to_string(grid) +
                          " or a multiple of it)",
                      std::to_string(value));
}

}  // namespace

void validate(const SchedulerLimits& limits) {
  if (limits.grid < 1) base::throw_invalid("checkpoint grid", "at least 1", std::to_string(limits.grid));
  require_grid("--chunked-prefill-size", limits.chunk_tokens, limits.grid);
  require_grid("--max-prefill-tokens", limits.max_prefill_tokens, limits.grid);
  if (limits.max_running < 1) {
    base::throw_invalid("--max-running-requests", "at least 1", std::to_string(limits.max_running));
  }
}

bool precedes(const Place& a, const Place& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.arrival < b.arrival;
}

std::vector<Grant> grant_prefill(const SchedulerLimits& limits, const SchedulerState& state) {
  std::vector<PrefillView> line = state.prefilling;
  std::sort(line.begin(), line.end(),
            [](const PrefillView& a, const PrefillView& b) { return precedes(a.place, b.place); });
  std::vector<Grant> grants;
  int64_t budget = limits.max_prefill_tokens;
  for (const PrefillView& v : line) {
    int64_t tokens = std::min({v.rest, limits.chunk_tokens, budget});
    if (tokens < v.rest) tokens = base::round_down(tokens, limits.grid);
    if (tokens == 0) continue;  // a later, shorter rest may still fit
    grants.push_back({v.id, tokens});
    budget -= tokens;
  }
  return grants;
}

std::optional<RequestId> next_admission(const SchedulerLimits& limits, const SchedulerState& state) {
  if (state.waiting.empty() || state.running >= limits.max_running) return std::nullopt;
  const auto first =
      std::min_element(state.waiting.begin(), state.waiting.end(),
                       [](const WaitingView& a, const WaitingView& b) { return precedes(a.place, b.place); });
  // Admitted without a grant it would hold a slot and pages for nothing.
  SchedulerState with = state;
  with.prefilling.push_back({first->id, first->place, first->tokens});
  const std::vector<Grant> grants = grant_prefill(limits, with);
  const bool served = std::any_of(grants.begin(), grants.end(), [&](const Grant& g) { return g.id == first->id; });
  return served ? std::optional(first->id) : std::nullopt;
}

std::optional<RequestId> retraction_victim(std::span<const RunningView> running, RequestId needs) {
  const RunningView* last = nullptr;
  for (const RunningView& v : running) {
    if (!last || precedes(last->place, v.place)) last = &v;
  }
  if (!last || (running.size() == 1 && last->id == needs)) return std::nullopt;
  return last->id;
}

int64_t track_index(int64_t pre, int64_t post, int64_t grid) {
  const int64_t point = base::round_down(post, grid);
  return point > pre ? point - pre - 1 : -1;
}

}  // namespace kadence::engine
