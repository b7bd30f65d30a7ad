#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Kimi-K3's state on one of eight ranks and as a whole: 69 KDA layers, 96 heads of 128 x 128.
ModelSizes k3(int32_t heads) {
  ModelSizes s;
  s.cache = {69, heads, 128, 128, 3 * heads * 128, 24, 576};
  s.max_context = 262144;
  s.weight_bytes = size_t{10} << 30;
  s.workspace_bytes = size_t{1} << 30;
  return s;
}
device::DeviceInfo machine(int64_t gib) {
  device::DeviceInfo d = device::cpu_info(1);
  d.total_memory = gib << 30;
  return d;
}
std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return e.what();
  }
  return {};
}
std::string notes(const MemoryPlan& p) {
  std::string all;
  for (const std::string& n : p.notes) all += n + "\n";
  return all;
}

TEST(MemoryPlan, B63_ASlotOfK3IsWhatTheContractSays) {
  // 96 heads * 128 * 128 * 4 bytes = 6 MiB a layer; windows of fp32 come on top.
  const MemoryPlan p = size_pools(k3(96), {.memory_bytes = int64_t{80} << 30}, machine(500));
  const size_t states = size_t{69} * 96 * 128 * 128 * 4, windows = size_t{69} * 3 * 3 * 96 * 128 * 4;
  EXPECT_EQ(states >> 20, 414u);
  EXPECT_NEAR(static_cast<double>(p.bytes_per_slot), static_cast<double>(states + windows),
              0.001 * static_cast<double>(states));
  EXPECT_EQ(p.total_bytes, p.weight_bytes + p.workspace_bytes + p.state_bytes + p.kv_bytes);
  EXPECT_LE(p.total_bytes, size_t{80} << 30);
  EXPECT_GT(p.total_bytes, size_t{70} << 30) << "memory that was given is used";
  EXPECT_EQ(p.kv_tokens % 64, 0);
}

TEST(MemoryPlan, B63_WhatIsPlannedIsWhatAnEngineAllocates) {
  for (const bool cache : {true, false}) {
    for (const base::DType dtype : {base::DType::kF32, base::DType::kBF16, base::DType::kF16}) {
      for (const int32_t page : {16, 64, 256}) {
        EngineOptions o;
        o.page_size = page, o.radix_cache = cache, o.state_dtype = dtype, o.context_length = 1000,
        o.max_running_requests = 5;
        o.memory_bytes = 8 << 20;
        auto model = std::make_unique<FakeModel>();
        const MemoryPlan p = size_pools({model::cache_shape(model->config()), 1000, 1000, 500}, o, machine(1));
        Engine engine(std::move(model), o, p, device::Stream::cpu(1));
        const EngineStats s = engine.stats();
        EXPECT_EQ(s.slots.capacity, p.state_slots);
        EXPECT_EQ(int64_t{s.pages.capacity} * page, p.kv_tokens);
        const state::StatePool states(state_shape({2, 1, 1, 8, 17, 1, 3}, o), p.state_slots, device::cpu_info(1));
        const state::KvPool pages(kv_shape({2, 1, 1, 8, 17, 1, 3}, o), s.pages.capacity, device::cpu_info(1));
        EXPECT_EQ(states.bytes() + pages.bytes(), p.state_bytes + p.kv_bytes);
      }
    }
  }
}

TEST(MemoryPlan, B62_TooManyRunningRequestsAreClampedWithTheNumber) {
  EngineOptions o;
  o.max_running_requests = 1024;
  o.max_prefill_tokens = 16384;
  o.memory_bytes = int64_t{500} << 30;
  const MemoryPlan p = size_pools(k3(96), o, machine(600));
  EXPECT_LT(p.effective_running_requests, 1024);
  EXPECT_GT(p.effective_running_requests, 500);
  EXPECT_EQ(p.effective_running_requests, p.state_slots - 3);
  EXPECT_THAT(notes(p), AllOf(HasSubstr("1024"), HasSubstr(std::to_string(p.effective_running_requests)),
                              HasSubstr("--state-slots 1027")));
  o.max_running_requests = 1;
  EXPECT_EQ(size_pools(k3(96), o, machine(600)).effective_running_requests, 1);
}

TEST(MemoryPlan, B61_ReservationIsWhatAStepUses) {
  EngineOptions o;
  o.max_running_requests = 8;
  o.state_slots = 40;
  o.kv_tokens = 100000;
  const MemoryPlan p = size_pools(k3(12), o, machine(600));
  EXPECT_EQ(p.effective_running_requests, 8);
  EXPECT_EQ(p.slots_per_request, 4);
  o.radix_cache = false;
  EXPECT_EQ(size_pools(k3(12), o, machine(600)).slots_per_request, 1);
  o.state_slots = 8;
  EXPECT_EQ(size_pools(k3(12), o, machine(600)).effective_running_requests, 8) << "without a cache no slot is spare";
}

TEST(MemoryPlan, MoreMemoryNeverMeansLess) {
  MemoryPlan before;
  for (int64_t gib = 13; gib < 200; gib += 3) {
    EngineOptions o;
    o.memory_bytes = gib << 30;
    const MemoryPlan p = size_pools(k3(96), o, machine(600));
    EXPECT_LE(p.total_bytes, static_cast<size_t>(o.memory_bytes));
    EXPECT_GE(p.state_slots, before.state_slots);
    EXPECT_GE(p.kv_tokens + 64 * 100000, before.kv_tokens);
    EXPECT_GE(p.effective_running_requests, before.effective_running_requests);
    before = p;
  }
}

TEST(MemoryPlan, RefusesContradictionsWithTheFlagAndTheNumber) {
  const auto plan = [](const EngineOptions& o) { return message([&] { size_pools(k3(12), o, machine(600)); }); };
  EXPECT_THAT(plan({.chunked_prefill_size = 32}),
              AllOf(HasSubstr("--chunked-prefill-size"), HasSubstr("64"), HasSubstr("32")));
  EXPECT_THAT(plan({.max_prefill_tokens = 100, .page_size = 256}),
              AllOf(HasSubstr("--max-prefill-tokens"), HasSubstr("256"), HasSubstr("100")));
  EXPECT_THAT(plan({.max_running_requests = 0}), HasSubstr("--max-running-requests"));
  EXPECT_THAT(plan({.page_size = 0}), HasSubstr("--page-size"));
  EXPECT_THAT(plan({.track_interval = 0}), HasSubstr("--mamba-track-interval"));
  EXPECT_THAT(plan({.state_slots = -1}), HasSubstr("--state-slots"));
  EXPECT_THAT(plan({.kv_tokens = 63}), AllOf(HasSubstr("--kv-tokens"), HasSubstr("64"), HasSubstr("63")));
  EXPECT_THAT(plan({.state_dtype = base::DType::kI32}), HasSubstr("--mamba-ssm-dtype"));
  EXPECT_THAT(plan({.max_running_requests = 65537}), AllOf(HasSubstr("--max-running-requests"), HasSubstr("65536")));
  EXPECT_THAT(plan({.state_slots = 4000, .memory_bytes = int64_t{12} << 30}),
              AllOf(HasSubstr("room for a page"), HasSubstr("4000"), HasSubstr("12288 MiB")));
  EXPECT_THAT(plan({.kv_tokens = 1 << 24, .memory_bytes = int64_t{12} << 30}), HasSubstr("room for a state slot"));
  EXPECT_THAT(plan({.memory_bytes = int64_t{5} << 30}),
              AllOf(HasSubstr("--memory"), HasSubstr("weights 10240 MiB"), HasSubstr("5120 MiB")));
  EXPECT_THAT(plan({.state_slots = 4000, .kv_tokens = 64, .memory_bytes = int64_t{12} << 30}),
              AllOf(HasSubstr("--state-slots 4000"), HasSubstr("12288 MiB")));
  const std::string small =
      message([&] { size_pools(k3(12), {}, machine(8)); });  // no --memory: the device's own share
  EXPECT_THAT(small, AllOf(HasSubstr("weights 10240 MiB"), HasSubstr("got 4096 MiB, what is taken")));
}

TEST(MemoryPlan, NotesWhatUsersMustKnow) {
  EngineOptions o;
  o.context_length = 300000;
  o.kv_tokens = 1000;
  o.state_slots = 1;
  o.state_dtype = base::DType::kBF16;
  const MemoryPlan p = size_pools(k3(12), o, machine(600));
  EXPECT_THAT(notes(p), AllOf(HasSubstr("300000"), HasSubstr("262144"), HasSubstr("rounded down to 960"),
                              HasSubstr("bfloat16"), HasSubstr("nothing can be cached")));
  EXPECT_EQ(p.shortest_hit, 65);
  EXPECT_EQ(p.grids.track, 256);
}

}  // namespace
}  // namespace kadence::engine::testing
