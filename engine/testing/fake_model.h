// A model whose every number tells where it came from. Its state is a running hash of the tokens it has seen, kept in
// the slot's own memory in all layers; its pages hold each token, its position and who computed it (extend or step);
// its window holds the last three tokens. Every call checks that what it reads is exactly what tokens [0, start) left
// behind, so a wrong slot, page, label, lock or order is an error by value. Logits come from the hash alone, and extend
// and step hash differently: what is published from decoding cannot pass for a cold run's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"

namespace kadence::engine::testing {

inline constexpr int32_t kVocab = 61;
inline constexpr int32_t kEos = 60;

// The naive model: no slot, no page.
struct Hash {
  uint64_t value = 0x1234567;
  void extend(int32_t token);
  void step(int32_t token);
};
std::vector<float> fake_logits(const Hash& hash);

struct FakeOptions {
  int32_t kda_layers = 2, attention_layers = 1;
};

class FakeModel final : public model::Model {
 public:
  explicit FakeModel(const FakeOptions& options = {});

  const model::ModelConfig& config() const override { return config_; }
  void prepare(const model::ForwardOptions& options, device::Stream& stream) override;
  void forward(const model::ForwardBatch& batch, const model::CacheViews& caches, const model::LogitsSink& sink,
               device::Stream& stream) override;
  size_t weight_bytes() const override { return 1000; }
  size_t workspace_bytes() const override { return 500; }
  std::string prefill_backend() const override { return "fake"; }
  std::string decode_backend() const override { return "fake"; }
  void set_hidden_observer(HiddenObserver) override {}

  // Knobs and records for tests.
  int fail_in = -1;                                             // the forward call that throws: 0 = the next one
  std::function<bool(int64_t position, int32_t token)> nan_at;  // rows whose logits become NaN after this token
  std::function<void(const model::ForwardBatch&)> on_forward;
  struct Call {
    ops::GemmPhase phase;
    int32_t rows;
    int64_t tokens;
  };
  std::vector<Call> calls;

 private:
  void check_aliasing(const model::ForwardBatch& batch) const;
  void run_row(const model::ForwardBatch& batch, int32_t i, const model::CacheViews& caches,
               std::vector<std::vector<float>>& logits);

  model::ModelConfig config_;
  model::ForwardOptions options_;
};

// Sizes of pools for the fake model: `slots`, `pages` of options.page_size.
MemoryPlan fake_plan(const FakeModel& model, EngineOptions& options, int32_t slots, int64_t pages,
                     int64_t context = 100000);

// What a request must answer, from the naive model alone: cold, by itself, no cache.
RequestOutput naive_run(const RequestSpec& spec, int64_t max_new = -1);

}  // namespace kadence::engine::testing
