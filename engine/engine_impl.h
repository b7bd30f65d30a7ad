// Inside of Engine. engine.cc: the public calls; engine_step.cc: one step; engine_cache.cc: what requests hold and what
// is published.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/batch_builder.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace kadence::engine {

struct Engine::Impl {
  Impl(std::unique_ptr<model::Model> m, const EngineOptions& o, const MemoryPlan& p, device::Stream s,
       const base::Clock* c);

  // What the logits after one token say. A pure function of logits and request, so rows are looked at in parallel.
  struct LogitFacts {
    bool finite = false;
    bool scores = false;           // logprob is that of the prompt's next token
    std::optional<int32_t> token;  // sampled; logprob and top are its
    bool stuck = false;            // the request's constraint leaves no token
    float logprob = 0;
    TopLogProbs top;
  };
  // What a forward pass told about a row.
  struct RowResult {
    bool bad = false;  // a logit was NaN or infinite
    int64_t bad_position = 0;
    LogitFacts sampled;
  };

  // --- engine_step.cc
  bool step();
  void grow_decoding();
  void admit_waiting();
  bool step_replay();
  void run_extend(std::vector<ExtendRow>& rows);
  void run_decode(const std::vector<Request*>& rows);
  std::string forward(const BuiltBatch& built, const std::vector<Request*>& requests, std::vector<RowResult>& results);
  LogitFacts look_at(const Request& r, int64_t position, std::span<const float> logits,
                     std::vector<float>& buffer) const;
  void take(Request& r, int64_t position, LogitFacts facts, RowResult& row);
  // Nothing if nothing was sampled: a retracted request's tokens are known and go through step again.
  void accept_token(Request& r, LogitFacts& sampled);
  bool is_stop(const Request& r, int32_t token) const;
  SchedulerState view() const;

  // --- engine_cache.cc
  bool exact() const { return options.cache_generated != CacheGenerated::kStep; }
  int64_t resume_limit(const Request& r) const;
  // Everything that `r` needs to run, or nothing: false leaves it and the cache's locks as they were.
  bool admit(Request& r);
  // Evicts until `count` pages are free. False, with nothing evicted, if even everything would not do.
  bool make_room_for_pages(int64_t count);
  bool make_room_for_slot();
  bool take_page(Request& r);
  std::optional<SlotId> reserve_checkpoint(bool for_replay);
  // `slot` (reserved, stamped) under the first `depth` tokens of `r`, with their pages. Throws if the stamp disagrees.
  void publish(Request& r, int64_t depth, SlotId slot);
  void count_lookup(Request& r, const prefix::MatchResult& match);
  void release(const prefix::Evicted& evicted);
  void release_all(Request& r);
  void retract(Request& r);
  void pause_replay();
  void queue_replay(const Request& finished);

  // --- engine.cc
  std::string refusal(const RequestSpec& spec) const;
  // Ends `r`: frees everything, keeps the output. `r` is gone afterwards.
  void finish(Request& r, FinishReason reason, std::string error = {});
  void check_accounting() const;
  EngineStats snapshot() const;

  std::unique_ptr<model::Model> model;
  EngineOptions options;
  MemoryPlan plan;
  device::Stream stream;
  base::SteadyClock steady;
  const base::Clock& clock;
  SchedulerLimits limits;
  state::StatePool states;
  state::KvPool pages;
  prefix::RadixTree tree;
  std::unique_ptr<Executor> executor;

  struct InLine {
    bool operator()(const Request* a, const Request* b) const { return precedes(a->place, b->place); }
  };
  std::map<RequestId, std::unique_ptr<Request>> requests;  // of users, not finished
  std::set<Request*, InLine> waiting, running;             // a request is in exactly one
  std::unique_ptr<Request> replay;                         // has resources; runs when nobody else does
  std::deque<std::unique_ptr<Request>> replays;            // have none
  std::map<RequestId, RequestOutput> outputs;
  std::vector<TokenEvent> events;
  std::vector<std::vector<float>> scratch;  // of sampling, one a worker
  EngineStats counters;
  int64_t next_id = 0, next_arrival = 0;
};

}  // namespace kadence::engine
