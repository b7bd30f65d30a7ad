// An engine on the fake model, on a virtual clock, with small pools; and helpers to say what is expected of it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/testing/fake_model.h"

namespace kadence::engine::testing {

using Ids = std::vector<int32_t>;

// `n` tokens that depend on `seed`; never the end token.
inline Ids some_tokens(uint64_t seed, int64_t n) {
  base::Rng rng(seed);
  Ids ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(kVocab - 1));
  return ids;
}
inline Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Ids head(const Ids& ids, int64_t n) { return Ids(ids.begin(), ids.begin() + n); }

inline RequestSpec generate(Ids ids, int32_t max_tokens) {
  RequestSpec spec;
  spec.ids = std::move(ids);
  spec.max_tokens = max_tokens;
  spec.ignore_eos = true;
  spec.output_logprobs = true;
  return spec;
}
inline RequestSpec score(Ids ids, int64_t from) {
  RequestSpec spec;
  spec.ids = std::move(ids);
  spec.score_from = from;
  return spec;
}

inline void expect_same(const RequestOutput& got, const RequestOutput& want) {
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(to_string(got.reason), std::string(to_string(want.reason)));
  EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
  EXPECT_EQ(got.output_ids, want.output_ids);
  EXPECT_EQ(got.logprobs, want.logprobs);
  EXPECT_EQ(got.output_logprobs, want.output_logprobs);
  EXPECT_EQ(got.top_logprobs, want.top_logprobs);
  EXPECT_EQ(got.output_top_logprobs, want.output_top_logprobs);
}

struct Rig {
  using Tweak = std::function<void(EngineOptions&)>;
  explicit Rig(int32_t slots = 24, int64_t pages = 64, const Tweak& tweak = {}, const FakeOptions& fake = {}) {
    auto owned = std::make_unique<FakeModel>(fake);
    model = owned.get();
    options.max_running_requests = 8;
    options.chunked_prefill_size = 512;
    options.max_prefill_tokens = 1024;
    if (tweak) tweak(options);
    const MemoryPlan plan = fake_plan(*owned, options, slots, pages);
    engine = std::make_unique<Engine>(std::move(owned), options, plan, device::Stream::cpu(2), &clock);
  }
  RequestId submit(const RequestSpec& spec) {
    const auto result = engine->submit(spec);
    EXPECT_TRUE(result.ok()) << result.reason();
    return result.ok() ? result.value() : RequestId();
  }
  // Every step is followed by a check, whatever the build.
  bool step() {
    const bool more = engine->step();
    engine->check_accounting();
    return more;
  }
  // Fails instead of running for ever.
  void drain(int most_steps = 100000) {
    while (most_steps-- > 0) {
      if (!step()) return;
    }
    FAIL() << "still busy";
  }
  RequestOutput output(RequestId id) {
    std::optional<RequestOutput> out = engine->take_output(id);
    EXPECT_TRUE(out.has_value()) << "request " << id.value << " has no output";
    return out ? std::move(*out) : RequestOutput{};
  }
  RequestOutput run(const RequestSpec& spec) {
    const RequestId id = submit(spec);
    drain();
    return output(id);
  }
  // Runs, compares with the naive model, returns the cached tokens.
  int64_t run_and_compare(const RequestSpec& spec) {
    const RequestOutput got = run(spec);
    expect_same(got, naive_run(spec));
    return got.cached_tokens;
  }
  // Nothing held, nothing lost: what is not free is in the tree.
  void expect_at_rest() {
    const EngineStats s = engine->stats();
    EXPECT_EQ(s.slots.working, 0);
    EXPECT_EQ(s.slots.reserved, 0);
    EXPECT_EQ(s.pages.working, 0);
    EXPECT_EQ(s.slots.free + s.slots.cached, s.slots.capacity);
    EXPECT_EQ(s.pages.free + s.pages.cached, s.pages.capacity);
    EXPECT_EQ(s.tree.locked_pages, 0);
    EXPECT_EQ(s.waiting + s.running + s.replaying, 0);
  }

  base::VirtualClock clock;
  EngineOptions options;
  FakeModel* model = nullptr;
  std::unique_ptr<Engine> engine;
};

}  // namespace kadence::engine::testing
