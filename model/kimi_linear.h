// Private to model/: the Kimi-Linear forward pass on ops/.
#pragma once

#include <functional>
#include <string>

#include "device/device.h"
#include "model/kimi_weights.h"
#include "model/model.h"

namespace kadence::model {

// Plans and the layout of the one workspace, from sizes alone. Float buffers are [tokens or slab, pitch].
// Work that mixes tokens (convolution, recurrence, attention) runs over the whole batch; the rest runs in slabs of
// tokens.
struct KimiPlan {
  ops::KdaPlan extend, step;  // unset without KDA layers
  int64_t tokens = 0;         // rows of whole-batch buffers
  int64_t slab = 0;           // rows of slab buffers
  int64_t logit_rows = 0;     // rows of a slab of logits
  int64_t in_pitch = 0, mixed_pitch = 0, decay_pitch = 0, out_pitch = 0, gate_pitch = 0, ffn_pitch = 0, inner_pitch = 0;
  // Byte offsets.
  size_t hidden = 0;                          // [tokens, D] the residual stream
  size_t in = 0;                              // [tokens, in_pitch] first product of a layer
  size_t mixed = 0;                           // [tokens, mixed_pitch] convolved q|k|v, or absorbed queries
  size_t decay = 0;                           // [tokens, decay_pitch] low-rank decay
  size_t out = 0;                             // [tokens, out_pitch] of the recurrence or the attention
  size_t norm = 0, result = 0;                // [slab, D]
  size_t gate = 0;                            // [slab, gate_pitch] output gate, q of q_b, or attention values
  size_t ffn = 0, inner = 0;                  // [slab, ffn_pitch], [slab, inner_pitch]
  size_t expert_ids = 0, expert_weights = 0;  // [slab, top_k]
  size_t positions = 0;                       // [tokens] int64, rotary only
  size_t logits = 0;                          // [logit_rows, vocab]
  size_t metadata = 0;                        // of the extend plan
  size_t scratch = 0;                         // of one operator
  size_t bytes = 0;
};
KimiPlan plan_kimi(const ModelConfig& config, const KimiWeights& weights, const ForwardOptions& options,
                   const device::DeviceInfo& device);

class KimiLinear final : public Model {
 public:
  KimiLinear(ModelConfig config, KimiWeights weights, size_t weight_bytes)
      : config_(std::move(config)), weights_(std::move(weights)), weight_bytes_(weight_bytes) {}

  const ModelConfig& config() const override { return config_; }
  void prepare(const ForwardOptions& options, device::Stream& stream) override;
  void forward(const ForwardBatch& batch, const CacheViews& caches, const LogitsSink& sink,
               device::Stream& stream) override;
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t workspace_bytes() const override { return workspace_.size(); }
  std::string prefill_backend() const override { return plan_.extend.backend(); }
  std::string decode_backend() const override { return plan_.step.backend(); }
  void set_hidden_observer(HiddenObserver observer) override { observer_ = std::move(observer); }

 private:
  struct Call;
  void validate(const ForwardBatch& batch, const CacheViews& caches) const;
  void embed(const Call& c) const;
  void open_layer(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const;
  void mix_kda(const Call& c, const LayerWeights& w) const;
  void mix_attention(const Call& c, const LayerWeights& w) const;
  void close_kda(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const;
  void close_attention(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const;
  void feed_forward(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const;
  void emit_logits(const Call& c, const LogitsSink& sink) const;
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace_.data()) + offset);
  }

  ModelConfig config_;
  KimiWeights weights_;
  size_t weight_bytes_ = 0;
  ForwardOptions options_;
  KimiPlan plan_;
  device::Buffer workspace_;
  HiddenObserver observer_;
};

}  // namespace kadence::model
