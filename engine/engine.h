// Continuous batching over one model: queue, prefix cache, chunked prefill, decode, replay. Engine is single-threaded:
// whoever calls step() is the engine thread. EngineThread (engine_thread.h) runs one and passes values through queues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "device/device.h"
#include "model/model.h"
#include "ops/sampling.h"
#include "prefix/radix_tree.h"
#include "state/kv_pool.h"
#include "state/state_pool.h"

namespace kadence::engine {

using base::RequestId;

enum class CacheGenerated : uint8_t {
  kReplay,  // a finished request's generated tokens are extended again at the lowest priority, then published (exact)
  kStep,    // decode-tracked states are published (outside the bit promise)
  kOff,
};

struct EngineOptions {
  int32_t max_running_requests = 16;
  int64_t chunked_prefill_size = 8192;  // tokens of one request in one step; >= the checkpoint grid
  int64_t max_prefill_tokens = 16384;   // prefill tokens of one step, all requests
  int32_t page_size = 64;
  int64_t track_interval = 256;                 // --mamba-track-interval
  base::DType state_dtype = base::DType::kF32;  // --mamba-ssm-dtype
  std::string prefill_backend = "auto", decode_backend = "auto", verify_backend = "auto";
  int32_t extend_block_tokens = 0;
  bool radix_cache = true;
  CacheGenerated cache_generated = CacheGenerated::kReplay;
  int32_t state_slots = 0;     // 0 = derived
  int64_t kv_tokens = 0;       // 0 = derived
  int64_t context_length = 0;  // 0 = the config's
  int64_t memory_bytes = 0;    // for deriving state_slots and kv_tokens; 0 = a default share of the device's memory
};

// Pool sizes that `options` mean for a model, without loading weights: what `kadence plan` prints and Engine allocates.
struct MemoryPlan {
  size_t weight_bytes = 0, workspace_bytes = 0;
  size_t bytes_per_slot = 0, bytes_per_kv_token = 0;
  int32_t state_slots = 0;
  int64_t kv_tokens = 0;                 // multiple of the page size
  size_t state_bytes = 0, kv_bytes = 0;  // of the pools
  size_t total_bytes = 0;
  int32_t slots_per_request = 0;           // working + reserved, measured peak of one request
  int32_t effective_running_requests = 0;  // min(asked, what the slots allow)
  int64_t context_length = 0;
  state::Grids grids;
  int64_t shortest_hit = 0;        // prompts shorter than this never hit
  std::vector<std::string> notes;  // clamps and warnings, in words
};
// Throws Error{kInvalidArgument} for contradictory options, naming flags and the number to use.
MemoryPlan plan_memory(const std::filesystem::path& model_dir, const model::ModelConfig& config,
                       const EngineOptions& options, const device::DeviceInfo& device);

// What one request may generate next. Called for that request only, by one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the logits of tokens that may not come next to -infinity; false if none may. Sampling sees the result;
  // log-probs are those of the model.
  virtual bool mask(std::span<float> logits) = 0;
  // `token` was generated. True if nothing more may come: the request ends there, kStop.
  virtual bool advance(int32_t token) = 0;
};

struct RequestSpec {
  std::vector<int32_t> ids;  // prompt, not empty
  int64_t score_from = -1;   // log-probs of prompt positions [score_from, n); -1 = none; else >= 1
  int32_t max_tokens = 0;    // tokens to generate; 0 = score only
  ops::SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // besides the model's eos ids
  bool ignore_eos = false;
  bool use_cache = true;   // false: neither read nor write the prefix cache
  std::string cache_salt;  // namespace of the cache
  bool output_logprobs = false;
  int32_t top_logprobs = 0;                     // per scored and generated token
  int32_t priority = 0;                         // higher first; equal: arrival order
  bool early_scores = false;                    // the first token's event has the prompt's log-probs, too
  std::shared_ptr<TokenConstraint> constraint;  // null = none; used by this request alone
};

enum class FinishReason : uint8_t { kLength, kStop, kCancelled, kError };
const char* to_string(FinishReason reason);

using TopLogProbs = std::vector<std::pair<int32_t, float>>;

struct RequestOutput {
  FinishReason reason = FinishReason::kLength;
  std::string error;  // kError
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;              // resume depth of the first prefill
  std::vector<float> logprobs;            // of positions [score_from, n)
  std::vector<TopLogProbs> top_logprobs;  // of the same positions, if asked
  std::vector<int32_t> output_ids;        // the stop token is not included
  std::vector<float> output_logprobs;
  std::vector<TopLogProbs> output_top_logprobs;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0,
         first_token_seconds = 0;  // first token: from submission
};

struct PromptScores {
  std::vector<float> logprobs;  // as in RequestOutput
  std::vector<TopLogProbs> top_logprobs;
};

struct TokenEvent {
  RequestId request;
  int32_t token = -1;
  int64_t index = 0;                           // of the generated tokens
  float logprob = 0;                           // if asked
  TopLogProbs top;                             // if asked
  std::shared_ptr<const PromptScores> scores;  // of the first token, if asked
};

// What happened so far; counters never decrease.
struct EngineStats {
  state::SlotCounts slots;
  state::PageCounts pages;
  prefix::TreeCounts tree;
  int32_t waiting = 0, running = 0, replaying = 0;
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, replayed_tokens = 0, restored_tokens = 0;
  int64_t finished = 0, cancelled = 0, retracted = 0;
  int64_t lookups = 0, hits = 0, misses_too_short = 0, misses_no_match = 0, misses_no_state = 0, misses_disabled = 0;
  int64_t checkpoints_written = 0, checkpoints_skipped = 0, checkpoints_duplicate = 0;
  int64_t nan_alarms = 0;
  int64_t replays_dropped = 0;  // replays given up: no room even on an idle engine, or too many were waiting
  int64_t last_step_extend_rows = 0, last_step_decode_rows = 0;  // rows of the last step's operator calls
};

class Engine {
 public:
  // Allocates the pools of `plan` and prepares the model. `clock` may be null (steady clock).
  Engine(std::unique_ptr<model::Model> model, const EngineOptions& options, const MemoryPlan& plan,
         device::Stream stream, const base::Clock* clock = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. A failure (expected, in words with both numbers) when it can never run: empty prompt, ids outside
  // the vocabulary, longer than the context or the pools, bad sampling values.
  base::Result<RequestId> submit(RequestSpec spec);
  // Ends a request at any stage; its output has kCancelled and what was produced. False if it is unknown or finished.
  bool cancel(RequestId id);
  // Ends every request with kError and this reason, and forgets pending replays. For a caller that caught step()
  // throwing.
  void abort_all(const std::string& reason);
  // Runs one batch. False when there is nothing to do (no request, no replay).
  bool step();
  // Steps until all requests and replays are done.
  void run_until_idle();
  // The output of a finished request, once.
  std::optional<RequestOutput> take_output(RequestId id);
  // Tokens since the last call, in order of production.
  std::vector<TokenEvent> take_events();
  // Drops every unlocked cache entry; returns what was dropped and what stayed.
  struct FlushResult {
    int64_t pages = 0, states = 0, locked_pages = 0, locked_states = 0;
  };
  FlushResult flush_cache();

  EngineStats stats() const;
  // What the cache would give for a prompt now (for predictions and /v1/cache); changes no recency.
  int64_t predict_cached_tokens(const RequestSpec& spec);
  const prefix::RadixTree& tree() const;
  const MemoryPlan& memory_plan() const;
  const EngineOptions& options() const;
  model::Model& model();
  // Lines for the start-up log: backend of each phase, dtypes, grids, slots, effective concurrency, shortest prompt
  // that can hit.
  std::vector<std::string> describe() const;
  // free + working + reserved + cached = capacity in both pools, tree invariants, no slot with two owners. Throws
  // Error{kInternal}.
  void check_accounting() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kadence::engine
