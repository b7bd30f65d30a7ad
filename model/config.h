// What a checkpoint's config.json says, with the spellings of the families folded into one (docs in model/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kda.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace kadence::model {

enum class LayerKind : uint8_t { kKda, kFullAttention };

struct KdaConfig {
  int32_t H = 0, HV = 0, K = 0, V = 0;
  int32_t conv_width = 4;
  ops::KdaGate gate = ops::KdaGate::kSoftplus;
  float lower_bound = 0;         // kBounded only
  bool full_rank_gate = false;   // output gate: g_proj instead of g_a, g_b
  bool full_rank_decay = false;  // decay: f_proj instead of f_a, f_b
  bool beta_doubled = false;
};

struct MlaConfig {
  int32_t heads = 0;
  int32_t q_lora_rank = 0;   // 0 = none
  int32_t kv_lora_rank = 0;  // R
  int32_t nope_dim = 0;      // per head
  int32_t rope_dim = 0;      // P, shared slice
  int32_t v_dim = 0;
  bool rotary = false;  // false = NoPE: the shared slice is never rotated
  bool rope_interleaved = false;
  double rope_theta = 10000;
  bool output_gate = false;  // elementwise sigmoid(g_proj x) before o_proj
};

struct MoeConfig {
  ops::RouterShape router;   // experts = 0: dense model
  int32_t intermediate = 0;  // per expert
  int32_t shared_experts = 0;
  int32_t first_dense = 0;  // layers before this one are dense
  int32_t layer_freq = 1;
};

struct ModelConfig {
  std::string architecture;  // as in the table of architectures.h, e.g. "kimi_linear"
  int32_t vocab = 0, hidden = 0, layers = 0, dense_intermediate = 0;
  float rms_eps = 1e-5f, latent_eps = 1e-6f;
  ops::Activation activation;
  bool tie_embeddings = false;
  int64_t max_context = 0;  // model_max_length / max_position_embeddings
  std::vector<LayerKind> layer_kinds;
  KdaConfig kda;
  MlaConfig mla;
  MoeConfig moe;
  std::vector<int32_t> eos_ids;  // config.json and generation_config.json
  std::optional<int32_t> bos_id, pad_id;

  int32_t kda_layers() const;
  int32_t attention_layers() const;
  bool is_moe_layer(int32_t layer) const;
};

// Reads and validates DIR/config.json (and generation_config.json if there). Throws Error{kIo} or
// Error{kInvalidArgument} naming the field, what was wanted and what was got; Error{kUnsupported} for an architecture
// outside the table, listing the table.
ModelConfig load_config(const std::filesystem::path& dir);
// The same from texts; `generation` may be empty. `origin` names config.json in errors.
ModelConfig parse_config(std::string_view config, std::string_view generation, const std::string& origin);

}  // namespace kadence::model
