// A request inside the engine: what it asked for, how far it is, and everything it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"

namespace kadence::engine {

using base::PageId;
using base::SlotId;

enum class Stage : uint8_t {
  kWaiting,  // holds nothing
  kPrefill,  // admitted; computed < prompt
  kDecode,   // prompt done; tokens[computed] is what the next step feeds
};

struct Request {
  RequestId id;
  Place place;
  bool replay = false;          // the engine's own: extends the generated tokens of a finished request, answers nobody
  RequestSpec spec;             // ids moved to tokens
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt = 0;           // n
  int64_t max_new = 0;          // spec.max_tokens, cut to what context and pools hold
  bool cached = false;          // reads and writes the prefix cache

  Stage stage = Stage::kWaiting;
  int64_t computed = 0;    // tokens that the working slot has seen and the pages hold
  int64_t score_next = 0;  // next position whose log-prob is wanted; >= prompt when there is none

  // Held resources; all empty while waiting.
  SlotId slot;                // working
  SlotId resume;              // locked slot of the tree that the first grant reads; none = fresh
  std::vector<PageId> pages;  // [0, shared) belong to the tree and are locked, the rest is our own
  int64_t shared = 0;
  prefix::LockHandle lock;
  int64_t branch = 0;  // discovered branch point, 0 = none

  RequestOutput output;
  bool looked_up = false;  // counted in the statistics of the cache
  double submitted = 0, admitted = -1, first_token = -1, prefill_done = -1;

  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt; }
  std::span<const int32_t> prompt_span() const { return std::span(tokens).first(static_cast<size_t>(prompt)); }
  std::span<const int32_t> generated_span() const { return std::span(tokens).subspan(static_cast<size_t>(prompt)); }
  // Tokens fed to the model by the time the last one has been sampled: the last one never is.
  int64_t most_fed() const { return prompt + std::max<int64_t>(max_new - 1, 0); }
};

}  // namespace kadence::engine
