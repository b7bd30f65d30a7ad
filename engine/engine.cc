#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"

namespace kadence::engine {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

Engine::Impl::Impl(std::unique_ptr<model::Model> m, const EngineOptions& o, const MemoryPlan& p, device::Stream s,
                   const base::Clock* c)
    : model(std::move(m)),
      options(o),
      plan(p),
      stream(std::move(s)),
      clock(c ? *c : static_cast<const base::Clock&>(steady)),
      limits(scheduler_limits(o, p.grids, p.effective_running_requests)),
      states(state_shape(model::cache_shape(model->config()), o), p.state_slots, stream.info()),
      pages(kv_shape(model::cache_shape(model->config()), o), static_cast<int32_t>(p.kv_tokens / o.page_size),
            stream.info()),
      tree({.tree_page = p.grids.tree_page, .kv_page = o.page_size}) {
  model->prepare(forward_options(options), stream);
  scratch.resize(static_cast<size_t>(std::max(stream.info().threads, 1)));
  executor = std::make_unique<Executor>(*model, states, pages, stream);
}

std::string Engine::Impl::refusal(const RequestSpec& spec) const {
  const auto n = static_cast<int64_t>(spec.ids.size());
  const int64_t vocab = model->config().vocab;
  const auto words = [](int64_t v) { return std::to_string(v); };
  if (n == 0) return "empty prompt: wanted at least 1 token, got 0";
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = spec.ids[static_cast<size_t>(i)];
    if (id < 0 || id >= vocab) {
      return "token id at position " + words(i) + ": wanted 0 to " + words(vocab - 1) + ", got " + words(id);
    }
  }
  const int64_t generate = spec.max_tokens > 0 ? 1 : 0;
  if (n + generate > plan.context_length) {
    return "prompt of " + words(n) + " tokens" + (generate ? " and one to generate" : "") + ": the context length is " +
           words(plan.context_length) + " (--context-length)";
  }
  if (n > plan.kv_tokens) {
    return "prompt of " + words(n) + " tokens: the pools hold " + words(plan.kv_tokens) + " (--kv-tokens)";
  }
  if (spec.max_tokens < 0) return "max_tokens: wanted 0 or more, got " + words(spec.max_tokens);
  if (spec.score_from != -1 && (spec.score_from < 1 || spec.score_from > n)) {
    return "first scored position: wanted 1 to " + words(n) + ", got " + words(spec.score_from);
  }
  if (spec.top_logprobs < 0 || spec.top_logprobs > vocab) {
    return "top log-probs: wanted 0 to " + words(vocab) + ", got " + words(spec.top_logprobs);
  }
  try {
    ops::validate(spec.sampling);
  } catch (const base::Error& e) {
    return e.what();
  }
  return {};
}

void Engine::Impl::finish(Request& r, FinishReason reason, std::string error) {
  waiting.erase(&r);
  running.erase(&r);
  release_all(r);
  const double now = clock.now();
  RequestOutput& out = r.output;
  out.reason = reason;
  out.error = std::move(error);
  out.prompt_tokens = r.prompt;
  const double admitted = r.admitted < 0 ? now : r.admitted;
  const double prefilled = r.prefill_done < 0 ? now : r.prefill_done;
  out.queue_seconds = admitted - r.submitted;
  out.prefill_seconds = prefilled - admitted;
  out.decode_seconds = now - prefilled;
  out.first_token_seconds = r.first_token < 0 ? 0 : r.first_token - r.submitted;
  if (reason == FinishReason::kLength || reason == FinishReason::kStop) queue_replay(r);
  ++(reason == FinishReason::kCancelled ? counters.cancelled : counters.finished);
  const RequestId id = r.id;
  outputs.emplace(id, std::move(out));
  requests.erase(id);
}

EngineStats Engine::Impl::snapshot() const {
  EngineStats s = counters;
  s.slots = states.counts();
  s.pages = pages.counts();
  s.tree = tree.counts();
  s.waiting = static_cast<int32_t>(waiting.size());
  s.running = static_cast<int32_t>(running.size());
  s.replaying = static_cast<int32_t>(replays.size()) + (replay ? 1 : 0);
  return s;
}

void Engine::Impl::check_accounting() const {
  states.check_accounting();
  pages.check_accounting();
  tree.check();
  const auto broken = [](const std::string& what) {
    base::throw_error(base::ErrorCode::kInternal, "accounting: " + what);
  };
  std::vector<bool> slot_taken(static_cast<size_t>(states.slots())), page_taken(static_cast<size_t>(pages.pages()));
  int64_t working_slots = 0, working_pages = 0;
  const auto visit = [&](const Request& r, bool admitted) {
    const std::string who = r.replay ? "a replay" : "request " + std::to_string(r.id.value);
    if (!admitted) {
      if (r.slot.valid() || r.resume.valid() || !r.pages.empty() || r.lock.valid())
        broken(who + " waits and holds something");
      return;
    }
    if (states.use(r.slot) != state::SlotUse::kWorking) broken(who + " works in a slot that is not a working slot");
    if (slot_taken[static_cast<size_t>(r.slot.value)]) broken(who + " shares its working slot");
    slot_taken[static_cast<size_t>(r.slot.value)] = true;
    ++working_slots;
    if (r.resume.valid() && states.use(r.resume) != state::SlotUse::kCached)
      broken(who + " resumes from a slot that left the cache");
    for (size_t i = 0; i < r.pages.size(); ++i) {
      const bool shared = static_cast<int64_t>(i) < r.shared;
      if (pages.use(r.pages[i]) != (shared ? state::PageUse::kCached : state::PageUse::kWorking)) {
        broken(who + ", page " + std::to_string(i) + ": " +
               (shared ? "the tree's, but not cached" : "its own, but not a working page"));
      }
      if (shared) continue;
      if (page_taken[static_cast<size_t>(r.pages[i].value)]) broken(who + " shares a page that the tree does not own");
      page_taken[static_cast<size_t>(r.pages[i].value)] = true;
      ++working_pages;
    }
    if (r.shared > 0 && !r.lock.valid()) broken(who + " reads the tree's pages without a lock");
  };
  for (const Request* r : waiting) visit(*r, false);
  for (const Request* r : running) visit(*r, true);
  if (replay) visit(*replay, true);
  for (const auto& r : replays) visit(*r, false);
  const state::SlotCounts s = states.counts();
  const state::PageCounts p = pages.counts();
  const prefix::TreeCounts t = tree.counts();
  const auto same = [&](int64_t pool, int64_t owners, const char* what) {
    if (pool != owners)
      broken(std::to_string(pool) + " " + what + " in the pool, owners have " + std::to_string(owners));
  };
  same(s.working, working_slots, "working slots");
  same(s.reserved, 0, "reserved slots between steps");
  same(s.cached, t.states, "cached slots");
  same(p.working, working_pages, "working pages");
  same(p.cached, t.pages, "cached pages");
  if (requests.size() != waiting.size() + running.size()) broken("a request is neither waiting nor running");
  if (running.empty() && !replay && (t.locked_pages || t.locked_states)) broken("locks are held, but nobody runs");
}

Engine::Engine(std::unique_ptr<model::Model> model, const EngineOptions& options, const MemoryPlan& plan,
               device::Stream stream, const base::Clock* clock)
    : impl_(std::make_unique<Impl>(std::move(model), options, plan, std::move(stream), clock)) {}
Engine::~Engine() = default;

base::Result<RequestId> Engine::submit(RequestSpec spec) {
  Impl& e = *impl_;
  std::string why = e.refusal(spec);
  if (!why.empty()) return base::Result<RequestId>::failure(std::move(why));
  auto r = std::make_unique<Request>();
  r->id = RequestId(e.next_id++);
  r->place = {spec.priority, e.next_arrival++};
  r->tokens = std::move(spec.ids);
  r->prompt = static_cast<int64_t>(r->tokens.size());
  r->spec = std::move(spec);
  r->spec.ids.clear();
  // Fed are prompt and all generated tokens but the last; the context counts that one too.
  r->max_new =
      std::min({int64_t{r->spec.max_tokens}, e.plan.context_length - r->prompt, e.plan.kv_tokens - r->prompt + 1});
  r->score_next = r->spec.score_from < 0 ? r->prompt : r->spec.score_from;
  r->cached = e.options.radix_cache && r->spec.use_cache;
  r->submitted = e.clock.now();
  const RequestId id = r->id;
  e.waiting.insert(r.get());
  e.requests.emplace(id, std::move(r));
  return id;
}

bool Engine::cancel(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end()) return false;
  impl_->finish(*it->second, FinishReason::kCancelled);
  return true;
}

void Engine::abort_all(const std::string& reason) {
  Impl& e = *impl_;
  while (!e.requests.empty()) e.finish(*e.requests.begin()->second, FinishReason::kError, reason);
  if (e.replay) e.pause_replay();
  e.counters.replays_dropped += static_cast<int64_t>(e.replays.size());
  e.replays.clear();
}

bool Engine::step() { return impl_->step(); }

void Engine::run_until_idle() {
  while (step()) {
  }
}

std::optional<RequestOutput> Engine::take_output(RequestId id) {
  auto node = impl_->outputs.extract(id);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

std::vector<TokenEvent> Engine::take_events() { return std::exchange(impl_->events, {}); }

Engine::FlushResult Engine::flush_cache() {
  const prefix::Evicted dropped = impl_->tree.clear();
  impl_->release(dropped);
  const prefix::TreeCounts left = impl_->tree.counts();
  return {static_cast<int64_t>(dropped.pages.size()), static_cast<int64_t>(dropped.states.size()), left.pages,
          left.states};
}

EngineStats Engine::stats() const { return impl_->snapshot(); }

int64_t Engine::predict_cached_tokens(const RequestSpec& spec) {
  const Impl& e = *impl_;
  if (!e.options.radix_cache || !spec.use_cache || spec.ids.empty()) return 0;
  Request r;
  r.prompt = static_cast<int64_t>(spec.ids.size());
  r.score_next = spec.score_from < 0 ? r.prompt : spec.score_from;
  return e.tree.peek(spec.cache_salt, spec.ids, e.resume_limit(r), e.limits.grid).resumable;
}

const prefix::RadixTree& Engine::tree() const { return impl_->tree; }
const MemoryPlan& Engine::memory_plan() const { return impl_->plan; }
const EngineOptions& Engine::options() const { return impl_->options; }
model::Model& Engine::model() { return *impl_->model; }
void Engine::check_accounting() const { impl_->check_accounting(); }

std::vector<std::string> Engine::describe() const {
  const Impl& e = *impl_;
  const MemoryPlan& p = e.plan;
  const EngineOptions& o = e.options;
  const auto words = [](int64_t v) { return std::to_string(v); };
  const auto mib = [](size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  std::vector<std::string> lines;
  lines.push_back(e.model->config().architecture + " on " + e.stream.info().name + ": prefill " +
                  e.model->prefill_backend() + ", decode " + e.model->decode_backend() + ", states " +
                  base::to_string(o.state_dtype) + ", pages float32");
  lines.push_back("memory: weights " + mib(e.model->weight_bytes()) + ", workspace " + mib(e.model->workspace_bytes()) +
                  ", " + words(p.state_slots) + " state slots " + mib(e.states.bytes()) + ", " + words(p.kv_tokens) +
                  " tokens of pages " + mib(e.pages.bytes()));
  lines.push_back("running requests: " + words(p.effective_running_requests) + " of " + words(o.max_running_requests) +
                  " asked; state slots of one: " + words(p.slots_per_request) + "; context " + words(p.context_length));
  lines.push_back("grids: tree page " + words(p.grids.tree_page) + ", checkpoint " + words(p.grids.checkpoint) +
                  ", track " + words(p.grids.track) + "; prefill " + words(o.chunked_prefill_size) + " of " +
                  words(o.max_prefill_tokens) + " tokens a step");
  if (o.radix_cache) {
    const char* generated = o.cache_generated == CacheGenerated::kReplay ? "replay"
                            : o.cache_generated == CacheGenerated::kStep ? "step"
                                                                         : "off";
    lines.push_back(std::string("prefix cache: on, generated tokens: ") + generated + "; prompts shorter than " +
                    words(p.shortest_hit) + " tokens never hit");
  } else {
    lines.push_back("prefix cache: off");
  }
  lines.insert(lines.end(), p.notes.begin(), p.notes.end());
  return lines;
}

}  // namespace kadence::engine
