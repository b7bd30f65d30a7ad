// What runs next, as pure functions: state in, decisions out. No pool, tree, clock or token is seen here, so every rule
// can be tested on a few numbers. Engine asks, in this order, in every step: who is retracted (only if pages are
// short), who is admitted (one at a time, until the answer is nobody or the pools say no), who gets how many prefill
// tokens. Every request that decodes gets its token in every step; no decision is needed for that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace kadence::engine {

using base::RequestId;

struct SchedulerLimits {
  int64_t grid = 64;                   // checkpoint grid, tokens
  int64_t chunk_tokens = 8192;         // most prefill tokens of one request in a step; >= grid
  int64_t max_prefill_tokens = 16384;  // of all requests in a step; >= grid
  int32_t max_running = 16;
};
// Throws Error{kInvalidArgument} that names the flag and the number to use.
void validate(const SchedulerLimits& limits);

// A request's place in line: higher priority first, then earlier arrival. Arrival numbers are unique and kept over a
// retraction, so nobody is overtaken for ever within a priority.
struct Place {
  int32_t priority = 0;
  int64_t arrival = 0;
  friend bool operator==(const Place&, const Place&) = default;
};
bool precedes(const Place& a, const Place& b);

struct WaitingView {
  RequestId id;
  Place place;
  int64_t tokens = 0;  // of the prompt: what it needs at most before its first token
};
struct PrefillView {
  RequestId id;
  Place place;
  int64_t rest = 0;  // prompt tokens that have not run, >= 1
};
struct SchedulerState {
  std::vector<WaitingView> waiting;
  std::vector<PrefillView> prefilling;
  int32_t running = 0;  // admitted requests, prefilling ones counted
};

struct Grant {
  RequestId id;
  int64_t tokens = 0;
  friend bool operator==(const Grant&, const Grant&) = default;
};

// Prefill tokens of this step, in order of place. A grant is a multiple of the grid or the whole rest of a prompt; a
// budget below both is left unused. The first in line always gets at least one grid unit or its rest.
std::vector<Grant> grant_prefill(const SchedulerLimits& limits, const SchedulerState& state);

// The first in line, if there is a place for it and it would get a grant in this step. Nobody behind it is considered:
// a request that needs many pages waits until the requests before it have given them back, and smaller ones do not pass
// it.
std::optional<RequestId> next_admission(const SchedulerLimits& limits, const SchedulerState& state);

struct RunningView {
  RequestId id;
  Place place;
};
// Who gives everything back when `needs` cannot get a page: the last in line, which may be `needs` itself. Nobody if it
// runs alone: then the pools were sized or the request was checked wrongly.
std::optional<RequestId> retraction_victim(std::span<const RunningView> running, RequestId needs);

// Decode tracking: which token of the step that takes a sequence from `pre` to `post` tokens ends on a multiple of
// `grid`: its index from 0, the last one if several do, -1 if none. (With one token a step, 0 or -1.)
int64_t track_index(int64_t pre, int64_t post, int64_t grid);

}  // namespace kadence::engine
