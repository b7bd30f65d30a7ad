// A model that costs nothing and says what a script wants: for the server's tests and for the overhead of server and
// engine loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace kadence::server::testing {

// The next token after all tokens of a sequence so far.
using Script = std::function<int32_t(std::span<const int32_t> tokens)>;

class ScriptedModel final : public model::Model {
 public:
  // Without a script, letters in turn, and no history is kept.
  explicit ScriptedModel(Script script = {});

  const model::ModelConfig& config() const override { return config_; }
  void prepare(const model::ForwardOptions&, device::Stream&) override {}
  void forward(const model::ForwardBatch& batch, const model::CacheViews& caches, const model::LogitsSink& sink,
               device::Stream& stream) override;
  size_t weight_bytes() const override { return 0; }
  size_t workspace_bytes() const override { return 0; }
  std::string prefill_backend() const override { return "scripted"; }
  std::string decode_backend() const override { return "scripted"; }
  void set_hidden_observer(HiddenObserver) override {}

 private:
  const Script script_;
  model::ModelConfig config_;
  std::map<int32_t, std::vector<int32_t>> seen_;  // slot -> tokens
  std::vector<float> logits_;
};

std::unique_ptr<engine::Engine> scripted_engine(Script script, int32_t running, int64_t context = 65536);

// Answers like a model that calls tools: a user's message gets a call of the first declared function with the message
// as argument "text" (words before it unless the call is forced), or its own words back if no tool is declared; the
// result of a tool gets "It says: " and the result.
int32_t tool_caller(std::span<const int32_t> tokens);

}  // namespace kadence::server::testing
