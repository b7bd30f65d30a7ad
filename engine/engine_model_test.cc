// The engine on a real model (random weights, all operators): what the cache gives is a cold run's bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/math.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"

namespace kadence::engine {
namespace {

using Ids = std::vector<int32_t>;

const std::filesystem::path kDir = std::filesystem::path(KADENCE_SOURCE_DIR) / "models/random-kimi";

struct Fixture {
  explicit Fixture(const std::function<void(EngineOptions&)>& tweak = {}, int threads = 2)
      : stream(device::Stream::cpu(threads)) {
    options.max_running_requests = 8;
    options.chunked_prefill_size = 512;
    options.max_prefill_tokens = 2048;
    options.memory_bytes = 256 << 20;
    if (tweak) tweak(options);
    auto model = model::load_model(kDir, {}, stream);
    vocab = model->config().vocab;
    plan = plan_memory(kDir, model->config(), options, stream.info());
    engine = std::make_unique<Engine>(std::move(model), options, plan, std::move(stream));
  }
  RequestId submit(const RequestSpec& spec) {
    const auto result = engine->submit(spec);
    EXPECT_TRUE(result.ok()) << result.reason();
    return result.ok() ? result.value() : RequestId();
  }
  RequestOutput run(const RequestSpec& spec) {
    const RequestId id = submit(spec);
    engine->run_until_idle();
    return engine->take_output(id).value_or(RequestOutput{});
  }
  Ids tokens(uint64_t seed, int64_t n) const {
    base::Rng rng(seed);
    Ids ids(static_cast<size_t>(n));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
    return ids;
  }
  device::Stream stream;
  EngineOptions options;
  MemoryPlan plan;
  std::unique_ptr<Engine> engine;
  int32_t vocab = 0;
};

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RequestSpec ask(Ids ids, int64_t from, int32_t max_tokens) {
  RequestSpec spec;
  spec.ids = std::move(ids);
  spec.score_from = from;
  spec.max_tokens = max_tokens;
  spec.ignore_eos = spec.output_logprobs = true;
  return spec;
}

void expect_bits(const RequestOutput& got, const RequestOutput& want) {
  EXPECT_EQ(got.error, "");
  ASSERT_FALSE(want.logprobs.empty() && want.output_ids.empty());
  EXPECT_EQ(got.logprobs, want.logprobs);
  EXPECT_EQ(got.output_ids, want.output_ids);
  EXPECT_EQ(got.output_logprobs, want.output_logprobs);
}

TEST(EngineModel, ResumedAndWarmRunsHaveTheColdBits) {
  for (const int64_t chunk : {64, 512}) {
    for (const int64_t prefix : {64, 200, 513, 1500}) {
      SCOPED_TRACE(prefix);
      const auto chunked = [&](EngineOptions& o) { o.chunked_prefill_size = chunk; };
      Fixture cold_engine(chunked), engine(chunked);
      const Ids head = engine.tokens(1, prefix), tail = engine.tokens(2, 100);
      const RequestSpec spec = ask(head + tail, prefix, 20);
      const RequestOutput cold = cold_engine.run(spec);
      EXPECT_EQ(cold.cached_tokens, 0);
      engine.run(ask(head, -1, 0));
      const RequestOutput resumed = engine.run(spec), warm = engine.run(spec);
      EXPECT_EQ(resumed.cached_tokens, (prefix - 1) / 64 * 64);
      EXPECT_EQ(warm.cached_tokens, (prefix - 1) / 64 * 64);
      expect_bits(resumed, cold);
      expect_bits(warm, cold);
    }
  }
}

TEST(EngineModel, ABatchHasTheBitsOfEachAlone) {
  Fixture alone([](EngineOptions&o) { o.radix_cache = false; }), batch;
  std::vector<RequestSpec> specs;
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t n = i == 3 ? 1200 : 5 + 30 * i;
    specs.push_back(ask(batch.tokens(static_cast<uint64_t>(i), n), 1, 12));
  }
  std::vector<RequestId> ids;
  for (const RequestSpec& s : specs) ids.push_back(batch.submit(s));
  batch.engine->step();
  EXPECT_EQ(batch.engine->stats().last_step_extend_rows, 8);
  batch.engine->run_until_idle();
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(i);
    expect_bits(batch.engine->take_output(ids[i]).value(), alone.run(specs[i]));
  }
}

TEST(EngineModel, ResumedRowsOfABatchHaveTheColdBits) {
  for (const int64_t chunk : {64, 512}) {
    SCOPED_TRACE(chunk);
    const auto chunked = [&](EngineOptions& o) { o.chunked_prefill_size = chunk; };
    Fixture batch(chunked), cold([](EngineOptions&o) { o.radix_cache = false; });
    const Ids shared = batch.tokens(40, 700);
    batch.run(ask(shared, -1, 0));
    // Branches of one prefix beside prompts that nobody has cached; the branches resume, the others start cold.
    std::vector<RequestSpec> specs;
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 4; ++i) {
      specs.push_back(ask(shared + batch.tokens(41 + i, 30 + 50 * static_cast<int64_t>(i)), 700, 12));
      specs.push_back(ask(batch.tokens(50 + i, 20 + 90 * static_cast<int64_t>(i)), 1, 12));
    }
    for (const RequestSpec& s : specs) ids.push_back(batch.submit(s));
    batch.engine->step();
    EXPECT_EQ(batch.engine->stats().last_step_extend_rows, 8);
    batch.engine->run_until_idle();
    for (size_t i = 0; i < specs.size(); ++i) {
      SCOPED_TRACE(i);
      const RequestOutput got = batch.engine->take_output(ids[i]).value();
      EXPECT_EQ(got.cached_tokens, i % 2 == 0 ? 640 : 0);
      expect_bits(got, cold.run(specs[i]));
    }
  }
}

TEST(EngineModel, BranchesAndTurnsHaveTheColdBits) {
  Fixture engine;
  const auto cold = [](const RequestSpec& spec) { return Fixture().run(spec); };
  const Ids shared = engine.tokens(5, 700);
  const RequestSpec a = ask(shared + engine.tokens(6, 200), 700, 10), b = ask(shared + engine.tokens(7, 300), 700, 150);
  engine.run(ask(shared, -1, 0));
  const RequestOutput before = engine.run(a);
  const RequestOutput other = engine.run(b);
  const RequestOutput after = engine.run(a);
  EXPECT_EQ(after.cached_tokens, 640);
  expect_bits(before, cold(a));
  expect_bits(other, cold(b));
  expect_bits(after, before);
  // The next turn repeats prompt and answer; the answer's states come from the replay.
  const RequestSpec turn = ask(b.ids + other.output_ids + engine.tokens(8, 40), 1150, 10);
  const RequestOutput next = engine.run(turn);
  EXPECT_EQ(next.cached_tokens, 1150 / 64 * 64 - (1150 % 64 == 0 ? 64 : 0));
  expect_bits(next, cold(turn));
}

TEST(EngineModel, ARetractedRequestContinuesWithTheSameBits) {
  Fixture roomy, tight([](EngineOptions&o) {
    o.kv_tokens = 64 * 11;
    o.state_slots = 12;
    o.max_running_requests = 3;
  });
  std::vector<RequestSpec> specs;
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 3; ++i) specs.push_back(ask(tight.tokens(20 + i, 150), 100, 250));
  for (const RequestSpec& s : specs) ids.push_back(tight.submit(s));
  tight.engine->run_until_idle();
  EXPECT_GT(tight.engine->stats().retracted, 0);
  for (size_t i = 0; i < specs.size(); ++i) expect_bits(tight.engine->take_output(ids[i]).value(), roomy.run(specs[i]));
}

TEST(EngineModel, LowPrecisionStatesStayFiniteAndClose) {
  for (const base::DType dtype : {base::DType::kBF16, base::DType::kF16}) {
    Fixture exact, low([&](EngineOptions&o) { o.state_dtype = dtype; });
    const RequestSpec spec = ask(exact.tokens(3, 600), 500, 5);
    const RequestOutput want = exact.run(spec);
    low.run(spec);
    const RequestOutput got = low.run(spec);
    EXPECT_EQ(got.error, "");
    ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) EXPECT_NEAR(got.logprobs[i], want.logprobs[i], 0.5);
  }
}

TEST(EngineModel, B63_ThePlanIsWithinOnePercentOfWhatIsAllocated) {
  for (const int64_t mib : {64, 300}) {
    Fixture f([&](EngineOptions& o) { o.memory_bytes = mib << 20; });
    const EngineStats s = f.engine->stats();
    const model::CacheShape cache = model::cache_shape(f.engine->model().config());
    const state::StatePool states(state_shape(cache, f.options), s.slots.capacity, device::cpu_info(1));
    const state::KvPool pages(kv_shape(cache, f.options), s.pages.capacity, device::cpu_info(1));
    const double actual = static_cast<double>(f.engine->model().weight_bytes() + f.engine->model().workspace_bytes() +
                                              states.bytes() + pages.bytes());
    EXPECT_NEAR(static_cast<double>(f.plan.total_bytes), actual, 0.01 * actual);
    EXPECT_LE(f.plan.total_bytes, static_cast<size_t>(mib) << 20);
  }
}

}  // namespace
}  // namespace kadence::engine
