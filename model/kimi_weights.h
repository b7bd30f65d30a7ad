// Private to model/: weights of the Kimi-Linear family, stacked so that one product serves several projections.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weights.h"
#include "ops/gemm.h"
#include "ops/moe.h"

namespace kadence::model {

// Columns of the product that opens a KDA layer: q | k | v | decay | output gate | beta. decay and gate are inputs of
// the second half (low rank) or the thing itself (full rank).
struct KdaColumns {
  int64_t channels = 0;  // q | k | v, what the convolution sees
  int64_t decay = 0, decay_width = 0, gate = 0, gate_width = 0, beta = 0, width = 0;
  explicit KdaColumns(const KdaConfig& k);
};
// Columns of the product that opens an MLA layer: q (or q_a) | latent | shared key | output gate.
struct MlaColumns {
  int64_t q = 0, q_width = 0, latent = 0, gate = 0, width = 0;
  explicit MlaColumns(const MlaConfig& m);
};
// Row pitch of a tensor of that many columns: whole vectors.
int64_t pitch_of(int64_t columns);

struct KdaWeights {
  ops::Linear in;           // [KdaColumns::width, D]
  ops::Linear decay, gate;  // second halves, empty with full rank
  std::vector<float> conv;  // [channels, 4]
  std::vector<float> A_log, dt_bias, norm;
  ops::Linear out;
};

struct MlaWeights {
  ops::Linear in;   // [MlaColumns::width, D]
  ops::Linear q_b;  // with q_lora_rank only
  std::vector<float> q_norm, latent_norm;
  std::vector<ops::Linear> key_up, value_up;  // a head each: [R, nope] (transposed kv_b rows) and [v, R]
  ops::Linear out;
};

// Dense: `in` = gate | up. Sparse: `in` = shared gate | shared up | router.
struct FfnWeights {
  int64_t inner = 0;  // width of the dense or shared part, 0 = no shared experts
  ops::Linear in, down;
  ops::Experts experts;  // empty when dense
  std::vector<float> router_bias;
};

struct LayerWeights {
  LayerKind kind = LayerKind::kKda;
  int32_t cache_layer = 0;  // among the layers of its kind
  std::vector<float> attention_norm, ffn_norm;
  KdaWeights kda;
  MlaWeights mla;
  FfnWeights ffn;
};

struct KimiWeights {
  WeightLoader::Table embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> norm;
  ops::Linear head;
};

// Throws base::Error with the file, the tensor, wanted and got.
KimiWeights load_kimi_weights(const ModelConfig& config, WeightLoader& loader);

}  // namespace kadence::model
