// One step: pages for who decodes, admission, grants, one extend call, one step call, and what follows from them.
#include <algorithm>
#include <array>
#include <exception>

#include "base/math.h"
#include "engine/engine_impl.h"

namespace kadence::engine {

namespace {

// A replay's grant is short, so that a request that arrives meanwhile does not wait long.
constexpr int64_t kReplayTokens = 1024;

bool all_finite(std::span<const float> v) {
  // x * 0 is NaN for NaN and infinities. Independent lanes, because the compiler may not reorder one sum.
  std::array<float, 16> lanes{};
  size_t i = 0;
  for (; i + lanes.size() <= v.size(); i += lanes.size()) {
    for (size_t j = 0; j < lanes.size(); ++j) lanes[j] += v[i + j] * 0.0f;
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < v.size(); ++i) sum += v[i] * 0.0f;
  return sum == 0.0f;
}

std::string problem(const std::string& error, const auto& result) {
  if (!error.empty()) return error;
  return "NaN or infinite logits at position " + std::to_string(result.bad_position);
}

}  // namespace

SchedulerState Engine::Impl::view() const {
  SchedulerState s;
  if (!waiting.empty()) {  // only the first in line can be admitted next
    const Request* r = *waiting.begin();
    s.waiting.push_back({r->id, r->place, r->prompt});
  }
  for (const Request* r : running) {
    if (r->stage == Stage::kPrefill) s.prefilling.push_back({r->id, r->place, r->prompt - r->computed});
  }
  s.running = static_cast<int32_t>(running.size());
  return s;
}

bool Engine::Impl::step() {
  if (requests.empty() && replays.empty() && !replay) return false;
  ++counters.steps;
  counters.last_step_extend_rows = counters.last_step_decode_rows = 0;
  grow_decoding();
  admit_waiting();

  std::vector<ExtendRow> extend;
  for (const Grant& g : grant_prefill(limits, view())) extend.push_back({requests.at(g.id).get(), g.tokens, {}});
  std::vector<Request*> decode;
  for (Request* r : running) {
    if (r->stage == Stage::kDecode) decode.push_back(r);
  }
  if (extend.empty() && decode.empty()) {
    if (!waiting.empty()) {
      // Nobody runs, so nothing will ever be given back. submit() checks that this cannot be.
      Request& r = **waiting.begin();
      finish(r, FinishReason::kError,
             "needs more than the empty pools hold: " + std::to_string(r.tokens.size()) + " tokens of " +
                 std::to_string(plan.kv_tokens));
    } else {
      step_replay();
    }
  }
  if (!extend.empty()) run_extend(extend);
  if (!decode.empty()) run_decode(decode);

  const bool idle = requests.empty() && replays.empty() && !replay;
#ifdef KADENCE_DEBUG_CHECKS
  constexpr bool kAlways = true;
#else
  constexpr bool kAlways = false;
#endif
  if (kAlways || idle) check_accounting();
  return true;
}

void Engine::Impl::grow_decoding() {
  const std::vector<Request*> line(running.begin(), running.end());
  for (Request* r : line) {
    if (r->stage != Stage::kDecode) continue;  // prefilling, or just retracted
    if (base::ceil_div(r->computed + 1, int64_t{options.page_size}) <= static_cast<int64_t>(r->pages.size())) continue;
    while (r->stage == Stage::kDecode && !take_page(*r)) {
      std::vector<RunningView> views;
      for (const Request* other : running) views.push_back({other->id, other->place});
      const std::optional<RequestId> victim = retraction_victim(views, r->id);
      KADENCE_CHECK(victim);  // alone, it fits: submit() cut max_new to the pools
      retract(*requests.at(*victim));
    }
  }
}

void Engine::Impl::admit_waiting() {
  while (const std::optional<RequestId> id = next_admission(limits, view())) {
    Request& r = *requests.at(*id);
    if (!admit(r)) break;
    waiting.erase(&r);
    running.insert(&r);
    if (r.admitted < 0) r.admitted = clock.now();
  }
}

bool Engine::Impl::step_replay() {
  if (!replay) {
    std::unique_ptr<Request> next = std::move(replays.front());
    replays.pop_front();
    // Another request may have published it meanwhile.
    const auto known = tree.peek(next->spec.cache_salt, next->prompt_span(), next->prompt, limits.grid);
    if (known.resumable == next->prompt) return true;
    if (!admit(*next)) {
      ++counters.replays_dropped;
      return true;
    }
    replay = std::move(next);
  }
  const int64_t most =
      std::max(limits.grid, base::round_down(std::min(limits.chunk_tokens, kReplayTokens), limits.grid));
  std::vector<ExtendRow> rows{{replay.get(), std::min(replay->prompt - replay->computed, most), {}}};
  run_extend(rows);
  return true;
}

void Engine::Impl::run_extend(std::vector<ExtendRow>& rows) {
  std::vector<Request*> requests_of;
  for (ExtendRow& row : rows) {
    Request& r = *row.request;
    requests_of.push_back(&r);
    if (!r.cached) continue;
    std::vector<int64_t> depths = state::checkpoint_depths(row.begin(), row.end(), r.prompt, r.branch, limits.grid);
    for (auto depth = depths.rbegin(); depth != depths.rend(); ++depth) {  // if slots are short, the deepest first
      if (const std::optional<SlotId> slot = reserve_checkpoint(r.replay)) row.checkpoints.push_back({*depth, *slot});
    }
    std::reverse(row.checkpoints.begin(), row.checkpoints.end());
  }

  const BuiltBatch built = build_extend(rows, options.page_size);
  counters.last_step_extend_rows = built.batch.rows();
  std::vector<RowResult> results;
  const std::string error = forward(built, requests_of, results);

  for (size_t i = 0; i < rows.size(); ++i) {
    ExtendRow& row = rows[i];
    Request& r = *row.request;
    if (!error.empty() || results[i].bad) {
      for (const CheckpointTarget& c : row.checkpoints) states.release(c.slot);
      if (error.empty()) ++counters.nan_alarms;
      if (r.replay) {
        release_all(r);
        replay.reset();
        ++counters.replays_dropped;
      } else {
        finish(r, FinishReason::kError, problem(error, results[i]));
      }
      continue;
    }
    r.computed = row.end();
    r.resume = SlotId();
    (r.replay ? counters.replayed_tokens : counters.prefill_tokens) += row.tokens;
    for (const CheckpointTarget& c : row.checkpoints) publish(r, c.depth, c.slot);
    if (r.computed < r.prompt) continue;
    if (r.replay) {
      release_all(r);
      replay.reset();
      continue;
    }
    if (r.prefill_done < 0) r.prefill_done = clock.now();
    r.stage = Stage::kDecode;
    if (r.max_new == 0) {
      finish(r, FinishReason::kLength);
    } else {
      accept_token(r, results[i].sampled);
    }
  }
}

void Engine::Impl::run_decode(const std::vector<Request*>& rows) {
  state::CopyPlan copies;
  std::vector<SlotId> tracked(rows.size());
  if (options.cache_generated == CacheGenerated::kStep) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const Request& r = *rows[i];
      if (!r.cached || track_index(r.computed, r.computed + 1, plan.grids.track) < 0) continue;
      if (const std::optional<SlotId> slot = reserve_checkpoint(false)) {
        tracked[i] = *slot;
        copies.copy(r.slot, *slot);
      }
    }
  }
  const BuiltBatch built = build_step(rows, options.page_size);
  counters.last_step_decode_rows = built.batch.rows();
  std::vector<RowResult> results;
  std::string error = forward(built, rows, results);
  if (error.empty()) {
    try {
      executor->run(copies);
    } catch (const std::exception& e) {
      error = e.what();
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Request& r = *rows[i];
    if (!error.empty() || results[i].bad) {
      if (tracked[i].valid()) states.release(tracked[i]);
      if (error.empty()) ++counters.nan_alarms;
      finish(r, FinishReason::kError, problem(error, results[i]));
      continue;
    }
    ++r.computed;
    ++counters.decode_tokens;
    if (tracked[i].valid()) publish(r, r.computed, tracked[i]);
    accept_token(r, results[i].sampled);
  }
}

// An error of the model ends the requests of its batch and nobody else's; the message is returned.
std::string Engine::Impl::forward(const BuiltBatch& built, const std::vector<Request*>& requests_of,
                                  std::vector<RowResult>& results) {
  results.assign(requests_of.size(), {});
  const auto vocab = static_cast<size_t>(model->config().vocab);
  try {
    executor->forward(built.batch, [&](int64_t first, int64_t count, const float* logits) {
      const LogitWant* wants = built.wants.data() + first;
      std::vector<LogitFacts> facts(static_cast<size_t>(count));
      const auto look = [&](int64_t i, int worker) {
        const std::span row(logits + static_cast<size_t>(i) * vocab, vocab);
        facts[static_cast<size_t>(i)] = look_at(*requests_of[static_cast<size_t>(wants[i].row)], wants[i].position, row,
                                                scratch[static_cast<size_t>(worker)]);
      };
      if (stream.info().kind == device::DeviceKind::kCpu) {
        stream.parallel_for(count, look);
      } else {
        for (int64_t i = 0; i < count; ++i) look(i, 0);
      }
      for (int64_t i = 0; i < count; ++i) {
        const auto row = static_cast<size_t>(wants[i].row);
        take(*requests_of[row], wants[i].position, std::move(facts[static_cast<size_t>(i)]), results[row]);
      }
    });
  } catch (const std::exception& e) {
    return *e.what() ? e.what() : "the forward pass failed";
  }
  return {};
}

Engine::Impl::LogitFacts Engine::Impl::look_at(const Request& r, int64_t position, std::span<const float> logits,
                                               std::vector<float>& buffer) const {
  LogitFacts f;
  f.finite = all_finite(logits);
  if (!f.finite) return f;
  const int64_t next = position + 1;
  if (next < r.prompt) {
    f.scores = next >= r.score_next;
    if (!f.scores) return f;
    f.logprob = ops::log_prob(logits, r.tokens[static_cast<size_t>(next)]);
  } else {
    if (next != static_cast<int64_t>(r.tokens.size()) || r.generated() >= r.max_new) return f;
    std::span<const float> allowed = logits;
    if (r.spec.constraint) {
      thread_local std::vector<float> masked;
      masked.assign(logits.begin(), logits.end());
      f.stuck = !r.spec.constraint->mask(masked);
      if (f.stuck) return f;
      allowed = masked;
    }
    f.token = ops::sample(allowed, {r.prompt_span(), r.generated_span()}, r.spec.sampling,
                          static_cast<uint64_t>(r.generated()), buffer);
    if (r.spec.output_logprobs) f.logprob = ops::log_prob(logits, *f.token);
  }
  if (r.spec.top_logprobs > 0) f.top = ops::top_log_probs(logits, r.spec.top_logprobs);
  return f;
}

void Engine::Impl::take(Request& r, int64_t position, LogitFacts facts, RowResult& row) {
  if (row.bad) return;
  if (!facts.finite) {
    row.bad = true;
    row.bad_position = position;
  } else if (facts.scores) {
    r.output.logprobs.push_back(facts.logprob);
    if (r.spec.top_logprobs > 0) r.output.top_logprobs.push_back(std::move(facts.top));
    r.score_next = position + 2;
  } else if (facts.token || facts.stuck) {
    row.sampled = std::move(facts);
  }
}

bool Engine::Impl::is_stop(const Request& r, int32_t token) const {
  const auto has = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return has(r.spec.stop_ids) || (!r.spec.ignore_eos && has(model->config().eos_ids));
}

void Engine::Impl::accept_token(Request& r, LogitFacts& sampled) {
  if (sampled.stuck) return finish(r, FinishReason::kError, "no token of the vocabulary continues what was asked for");
  if (!sampled.token) return;
  const int32_t token = *sampled.token;
  if (r.first_token < 0) r.first_token = clock.now();
  r.tokens.push_back(token);
  if (is_stop(r, token)) return finish(r, FinishReason::kStop);
  RequestOutput& out = r.output;
  events.push_back({r.id, token, static_cast<int64_t>(out.output_ids.size()), sampled.logprob, sampled.top, nullptr});
  if (r.spec.early_scores && out.output_ids.empty())
    events.back().scores = std::make_shared<PromptScores>(PromptScores{out.logprobs, out.top_logprobs});
  out.output_ids.push_back(token);
  if (r.spec.output_logprobs) out.output_logprobs.push_back(sampled.logprob);
  if (r.spec.top_logprobs > 0) out.output_top_logprobs.push_back(std::move(sampled.top));
  if (r.spec.constraint && r.spec.constraint->advance(token)) return finish(r, FinishReason::kStop);
  if (r.generated() >= r.max_new) finish(r, FinishReason::kLength);
}

}  // namespace kadence::engine
