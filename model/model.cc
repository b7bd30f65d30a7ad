#include "model/model.h"

#include "base/error.h"
#include "base/log.h"
#include "model/kimi_linear.h"
#include "model/kimi_weights.h"
#include "model/safetensors.h"

namespace kadence::model {

CacheShape cache_shape(const ModelConfig& c) {
  CacheShape s;
  s.kda_layers = c.kda_layers();
  if (s.kda_layers > 0) {
    s.HV = c.kda.HV, s.V = c.kda.V, s.K = c.kda.K;
    s.conv_channels = 2 * c.kda.H * c.kda.K + c.kda.HV * c.kda.V;
  }
  s.attention_layers = c.attention_layers();
  if (s.attention_layers > 0) s.latent_width = c.mla.kv_lora_rank + c.mla.rope_dim;
  return s;
}

std::unique_ptr<Model> load_model(const std::filesystem::path& dir, const LoadOptions& options,
                                  device::Stream& stream) {
  if (options.activation_dtype != base::DType::kF32)
    base::throw_error(
        base::ErrorCode::kUnsupported,
        std::string("activations in ") + base::to_string(options.activation_dtype) + "; implemented: float32");
  if (stream.info().kind != device::DeviceKind::kCpu)
    base::throw_error(base::ErrorCode::kUnsupported,
                      "model kimi_linear on " + stream.info().name + "; implemented: cpu");
  ModelConfig config = load_config(dir);
  const Checkpoint checkpoint = Checkpoint::open(dir);
  if (!checkpoint.index_note().empty()) base::log(base::LogLevel::kWarning, checkpoint.index_note());
  WeightLoader loader(checkpoint, &stream, options.progress);
  KimiWeights weights = load_kimi_weights(config, loader);
  if (const std::vector<std::string> unread = loader.unread(); !unread.empty()) {
    base::log(base::LogLevel::kWarning,
              checkpoint.origin() + ": " + std::to_string(unread.size()) +
                  " tensors have no place in the model that the config describes, the first is " + unread.front());
  }
  return std::make_unique<KimiLinear>(std::move(config), std::move(weights), loader.bytes());
}

MemoryEstimate estimate_memory(const std::filesystem::path& dir, const ModelConfig& config,
                               const ForwardOptions& options, const device::DeviceInfo& device) {
  const Checkpoint checkpoint = Checkpoint::open(dir);
  WeightLoader loader(checkpoint, nullptr, {});
  const KimiWeights weights = load_kimi_weights(config, loader);
  return {loader.bytes(), plan_kimi(config, weights, options, device).bytes};
}

}  // namespace kadence::model
