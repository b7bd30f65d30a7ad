// What a request holds, from admission to release, and what is published.
#include <algorithm>

#include "base/math.h"
#include "engine/engine_impl.h"

namespace kadence::engine {

namespace {

// Replays wait in memory for their tokens only; when requests end faster than the engine is ever idle, the oldest go.
constexpr int64_t kMostReplayTokens = int64_t{1} << 22;

}  // namespace

int64_t Engine::Impl::resume_limit(const Request& r) const {
  const int64_t last = r.prompt - 1;
  return r.score_next < r.prompt ? std::min(last, r.score_next - 1) : last;
}

bool Engine::Impl::admit(Request& r) {
  const int64_t page = options.page_size;
  prefix::MatchResult match;
  if (r.cached) {
    match = tree.match(r.spec.cache_salt, r.prompt_span(), resume_limit(r), limits.grid);
    if (match.resumable > 0) {
      states.require_publishable(match.state, match.resumable, exact());
      r.lock = tree.lock(r.spec.cache_salt, r.prompt_span(), match.resumable);
    }
  }
  // Up front: the prompt, tokens to be replayed after a retraction, and one more if there will be one.
  const int64_t tokens = std::min(r.most_fed(), static_cast<int64_t>(r.tokens.size()) + 1);
  const int64_t own = base::ceil_div(std::max(tokens, r.prompt), page) - match.resumable / page;
  // One page for everybody who decodes, or the newcomer would be retracted at once.
  const auto headroom = static_cast<int64_t>(running.size());
  const auto fits = [&] {
    const state::PageCounts p = pages.counts();
    const prefix::TreeCounts t = tree.counts();
    return p.free + t.evictable_pages >= own + headroom && states.counts().free + t.evictable_states >= 1;
  };
  bool enough = fits();
  if (!enough && !r.replay && replay) {
    pause_replay();
    enough = fits();
  }
  enough = enough && make_room_for_pages(own) && make_room_for_slot();
  if (!enough) {
    tree.unlock(r.lock);
    r.lock = {};
    return false;
  }
  std::optional<SlotId> slot = states.allocate(state::SlotUse::kWorking);
  std::optional<std::vector<PageId>> fresh = pages.allocate(static_cast<int32_t>(own));
  KADENCE_CHECK(slot && fresh);
  r.slot = *slot;
  r.resume = match.resumable > 0 ? match.state : SlotId();
  r.pages = std::move(match.pages);
  r.shared = static_cast<int64_t>(r.pages.size());
  r.pages.insert(r.pages.end(), fresh->begin(), fresh->end());
  r.branch = match.branch;
  r.computed = match.resumable;
  r.stage = Stage::kPrefill;
  if (!r.replay) count_lookup(r, match);
  return true;
}

void Engine::Impl::count_lookup(Request& r, const prefix::MatchResult& match) {
  if (r.looked_up) return;
  r.looked_up = true;
  r.output.cached_tokens = match.resumable;
  ++counters.lookups;
  counters.restored_tokens += match.resumable;
  if (match.resumable > 0) {
    ++counters.hits;
  } else if (!r.cached) {
    ++counters.misses_disabled;
  } else if (resume_limit(r) < limits.grid) {
    ++counters.misses_too_short;
  } else if (match.matched < limits.grid) {
    ++counters.misses_no_match;
  } else {
    ++counters.misses_no_state;
  }
}

bool Engine::Impl::make_room_for_pages(int64_t count) {
  const int64_t missing = count - pages.counts().free;
  if (missing <= 0) return true;
  if (tree.counts().evictable_pages < missing) return false;
  release(tree.evict_pages(missing));
  return pages.counts().free >= count;
}

bool Engine::Impl::make_room_for_slot() {
  if (states.counts().free == 0) release(tree.evict_state());
  return states.counts().free > 0;
}

bool Engine::Impl::take_page(Request& r) {
  bool enough = make_room_for_pages(1);
  if (!enough && replay) {
    pause_replay();
    enough = make_room_for_pages(1);
  }
  if (!enough) return false;
  r.pages.push_back(pages.allocate(1).value().front());
  return true;
}

std::optional<SlotId> Engine::Impl::reserve_checkpoint(bool for_replay) {
  // Cached states that running requests lock would in time take the slots of requests yet to be admitted; so a
  // checkpoint leaves one for each of those.
  const int64_t places = limits.max_running - static_cast<int64_t>(running.size());
  const auto available = [&] { return states.counts().free + tree.counts().evictable_states; };
  if (available() <= places && replay && !for_replay) pause_replay();
  if (available() <= places || !make_room_for_slot()) {
    ++counters.checkpoints_skipped;
    return std::nullopt;
  }
  return states.allocate(state::SlotUse::kReserved);
}

void Engine::Impl::publish(Request& r, int64_t depth, SlotId slot) {
  states.require_publishable(slot, depth, exact());
  const auto key = std::span(r.tokens).first(static_cast<size_t>(depth));
  const auto count = static_cast<size_t>(depth / options.page_size);
  const prefix::InsertResult inserted = tree.insert(r.spec.cache_salt, key, std::span(r.pages).first(count), slot);
  for (auto i = static_cast<size_t>(r.shared); i < count; ++i) {
    if (inserted.pages[i] == r.pages[i]) {
      pages.set_use(r.pages[i], state::PageUse::kCached);
    } else {  // somebody published the same tokens first: read theirs
      pages.release(r.pages[i]);
      r.pages[i] = inserted.pages[i];
    }
  }
  r.shared = std::max(r.shared, static_cast<int64_t>(count));
  if (inserted.state_taken) {
    states.set_use(slot, state::SlotUse::kCached);
    ++counters.checkpoints_written;
  } else {
    states.release(slot);
    ++counters.checkpoints_duplicate;
  }
  const prefix::LockHandle deeper = tree.lock(r.spec.cache_salt, key, depth);
  tree.unlock(r.lock);
  r.lock = deeper;
}

void Engine::Impl::release(const prefix::Evicted& evicted) {
  pages.release(evicted.pages);
  for (const SlotId s : evicted.states) states.release(s);
}

void Engine::Impl::release_all(Request& r) {
  tree.unlock(r.lock);
  r.lock = {};
  if (r.slot.valid()) states.release(r.slot);
  r.slot = r.resume = SlotId();
  pages.release(std::span(r.pages).subspan(static_cast<size_t>(r.shared)));
  r.pages.clear();
  r.shared = r.branch = r.computed = 0;
  r.stage = Stage::kWaiting;
}

void Engine::Impl::retract(Request& r) {
  running.erase(&r);
  release_all(r);
  waiting.insert(&r);
  ++counters.retracted;
}

void Engine::Impl::pause_replay() {
  release_all(*replay);
  replays.push_front(std::move(replay));
}

void Engine::Impl::queue_replay(const Request& f) {
  if (options.cache_generated != CacheGenerated::kReplay || !f.cached || f.generated() == 0) return;
  const auto depth = base::round_down(static_cast<int64_t>(f.tokens.size()), limits.grid);
  if (depth <= base::round_down(f.prompt, limits.grid)) return;
  auto r = std::make_unique<Request>();
  r->replay = r->cached = true;
  r->tokens.assign(f.tokens.begin(), f.tokens.begin() + depth);
  r->prompt = r->score_next = depth;
  r->spec.cache_salt = f.spec.cache_salt;
  replays.push_back(std::move(r));
  int64_t held = 0;
  for (const auto& pending : replays) held += pending->prompt;
  for (; held > kMostReplayTokens && replays.size() > 1; ++counters.replays_dropped) {
    held -= replays.front()->prompt;
    replays.pop_front();
  }
}

}  // namespace kadence::engine
