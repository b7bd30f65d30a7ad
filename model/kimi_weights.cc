#include "model/kimi_weights.h"

#include "base/math.h"
#include "model/architectures.h"
#include "ops/kda_layout.h"

namespace kadence::model {
namespace {

using Names = WeightLoader::Names;
using Rows = WeightLoader::Rows;

// Spellings of a layer's tensors: the published one first, then the module names of transformers.
class LayerNames {
 public:
  LayerNames(const std::string& prefix, int32_t layer)
      : prefix_(prefix + "model.layers." + std::to_string(layer) + ".") {}
  Names operator()(const std::string& a, const std::string& b = {}) const {
    Names n{prefix_ + a};
    if (!b.empty()) n.push_back(prefix_ + b);
    return n;
  }
  // A router or expert tensor, whose module is block_sparse_moe in checkpoints and mlp elsewhere.
  Names moe(const std::string& a, const std::string& b = {}) const {
    Names n = (*this)("block_sparse_moe." + a, "mlp." + a);
    if (!b.empty()) n.push_back(prefix_ + "block_sparse_moe." + b), n.push_back(prefix_ + "mlp." + b);
    return n;
  }

 private:
  std::string prefix_;
};

KdaWeights load_kda(const ModelConfig& c, const LayerNames& name, WeightLoader& loader) {
  const KdaConfig& k = c.kda;
  const int64_t qk = int64_t{k.H} * k.K, decay = int64_t{k.HV} * k.K, value = int64_t{k.HV} * k.V, D = c.hidden;
  const KdaColumns columns(k);
  KdaWeights w;
  std::vector<Rows> in{{name("self_attn.q_proj.weight"), qk, {}, 0},
                       {name("self_attn.k_proj.weight"), qk, {}, 0},
                       {name("self_attn.v_proj.weight"), value, {}, 0}};
  if (k.full_rank_decay)
    in.push_back({name("self_attn.f_proj.weight"), decay, {}, 0});
  else
    in.push_back({name("self_attn.f_a_proj.weight", "self_attn.forget_gate_down.weight"), columns.decay_width, {}, 0});
  if (k.full_rank_gate)
    in.push_back({name("self_attn.g_proj.weight"), value, {}, 0});
  else
    in.push_back({name("self_attn.g_a_proj.weight", "self_attn.output_gate_down.weight"), columns.gate_width, {}, 0});
  in.push_back({name("self_attn.b_proj.weight", "self_attn.beta_proj.weight"), k.HV, {}, 0});
  w.in = loader.linear(in, D);
  if (!k.full_rank_decay)
    w.decay =
        loader.linear(name("self_attn.f_b_proj.weight", "self_attn.forget_gate_up.weight"), decay, columns.decay_width);
  if (!k.full_rank_gate)
    w.gate =
        loader.linear(name("self_attn.g_b_proj.weight", "self_attn.output_gate_up.weight"), value, columns.gate_width);

  if (const Names fused = name("self_attn.conv1d.weight"); loader.has(fused)) {
    w.conv = loader.vector(fused, columns.channels * ops::kConvWidth);
  } else {
    for (const auto& [part, channels] : {std::pair{"q", qk}, std::pair{"k", qk}, std::pair{"v", value}}) {
      const std::vector<float> v =
          loader.vector(name(std::string("self_attn.") + part + "_conv1d.weight"), channels * ops::kConvWidth);
      w.conv.insert(w.conv.end(), v.begin(), v.end());
    }
  }
  // Stored as [H], [1,1,H,1] or [H,1]; one family pads it with zeros beyond H.
  w.A_log = loader.vector(name("self_attn.A_log"), k.HV, /*at_least=*/true);
  w.dt_bias = loader.vector(name("self_attn.dt_bias"), decay);
  w.norm = loader.vector(name("self_attn.o_norm.weight"), k.V);
  w.out = loader.linear(name("self_attn.o_proj.weight"), D, value);
  return w;
}

MlaWeights load_mla(const ModelConfig& c, const LayerNames& name, WeightLoader& loader) {
  const MlaConfig& m = c.mla;
  const int64_t R = m.kv_lora_rank, P = m.rope_dim, D = c.hidden, q = int64_t{m.heads} * (m.nope_dim + P),
                value = int64_t{m.heads} * m.v_dim;
  MlaWeights w;
  std::vector<Rows> in;
  if (m.q_lora_rank > 0)
    in.push_back({name("self_attn.q_a_proj.weight"), m.q_lora_rank, {}, 0});
  else
    in.push_back({name("self_attn.q_proj.weight"), q, {}, 0});
  in.push_back({name("self_attn.kv_a_proj_with_mqa.weight"), R + P, {}, 0});
  if (m.output_gate) in.push_back({name("self_attn.g_proj.weight"), value, {}, 0});
  w.in = loader.linear(in, D);
  if (m.q_lora_rank > 0) {
    w.q_norm = loader.vector(name("self_attn.q_a_layernorm.weight"), m.q_lora_rank);
    w.q_b = loader.linear(name("self_attn.q_b_proj.weight"), q, m.q_lora_rank);
  }
  w.latent_norm = loader.vector(name("self_attn.kv_a_layernorm.weight"), R);
  // kv_b holds per head [nope | v] rows of width R. Keys are absorbed into the queries, so theirs are needed
  // transposed.
  const int64_t head_rows = int64_t{m.nope_dim} + m.v_dim;
  const std::vector<float> kv_b =
      loader.vector(name("self_attn.kv_b_proj.weight"), m.heads * head_rows * R, false, /*counted=*/false);
  std::vector<float> transposed(loader.planning() ? 0 : static_cast<size_t>(R * m.nope_dim));
  for (int32_t h = 0; h < m.heads; ++h) {
    const float* rows = loader.planning() ? nullptr : kv_b.data() + h * head_rows * R;
    if (rows)
      for (int64_t n = 0; n < m.nope_dim; ++n)
        for (int64_t r = 0; r < R; ++r) transposed[static_cast<size_t>(r * m.nope_dim + n)] = rows[n * R + r];
    w.key_up.push_back(loader.linear_from(transposed.data(), R, m.nope_dim));
    w.value_up.push_back(loader.linear_from(rows ? rows + m.nope_dim * R : nullptr, m.v_dim, R));
  }
  w.out = loader.linear(name("self_attn.o_proj.weight"), D, value);
  return w;
}

FfnWeights load_ffn(const ModelConfig& c, int32_t layer, const LayerNames& name, WeightLoader& loader) {
  const int64_t D = c.hidden;
  FfnWeights w;
  if (!c.is_moe_layer(layer)) {
    w.inner = c.dense_intermediate;
    w.in = loader.linear({{name("mlp.gate_proj.weight"), w.inner, {}, 0}, {name("mlp.up_proj.weight"), w.inner, {}, 0}},
                         D);
    w.down = loader.linear(name("mlp.down_proj.weight"), D, w.inner);
    return w;
  }
  const MoeConfig& m = c.moe;
  const int64_t E = m.router.experts, I = m.intermediate;
  w.inner = I * m.shared_experts;
  std::vector<Rows> in;
  if (w.inner > 0) {
    in.push_back({name.moe("shared_experts.gate_proj.weight"), w.inner, {}, 0});
    in.push_back({name.moe("shared_experts.up_proj.weight"), w.inner, {}, 0});
    w.down = loader.linear(name.moe("shared_experts.down_proj.weight"), D, w.inner);
  }
  in.push_back({name.moe("gate.weight"), E, {}, 0});
  w.in = loader.linear(in, D);
  w.router_bias = loader.vector(name.moe("gate.e_score_correction_bias"), E);
  w.experts.activation = c.activation;
  const Names fused = name.moe("experts.gate_up_proj"), fused_down = name.moe("experts.down_proj");
  const bool stacked = loader.has(fused);
  for (int64_t e = 0; e < E; ++e) {
    const std::string x = "experts." + std::to_string(e) + ".";
    if (stacked) {
      w.experts.gate_up.push_back(loader.linear({{fused, 2 * I, {E, 2 * I, D}, e * 2 * I}}, D));
      w.experts.down.push_back(loader.linear({{fused_down, D, {E, D, I}, e * D}}, I));
    } else {
      w.experts.gate_up.push_back(loader.linear({{name.moe(x + "w1.weight", x + "gate_proj.weight"), I, {}, 0},
                                                 {name.moe(x + "w3.weight", x + "up_proj.weight"), I, {}, 0}},
                                                D));
      w.experts.down.push_back(loader.linear(name.moe(x + "w2.weight", x + "down_proj.weight"), D, I));
    }
  }
  return w;
}

}  // namespace

int64_t pitch_of(int64_t columns) { return base::round_up<int64_t>(columns, 16); }

KdaColumns::KdaColumns(const KdaConfig& k) {
  channels = 2 * int64_t{k.H} * k.K + int64_t{k.HV} * k.V;
  // Ranks are the head sizes in every family.
  decay = channels, decay_width = k.full_rank_decay ? int64_t{k.HV} * k.K : k.V;
  gate = decay + decay_width, gate_width = k.full_rank_gate ? int64_t{k.HV} * k.V : k.V;
  beta = gate + gate_width;
  width = beta + k.HV;
}

MlaColumns::MlaColumns(const MlaConfig& m) {
  q_width = m.q_lora_rank > 0 ? m.q_lora_rank : int64_t{m.heads} * (m.nope_dim + m.rope_dim);
  latent = q_width;
  gate = latent + m.kv_lora_rank + m.rope_dim;
  width = gate + (m.output_gate ? int64_t{m.heads} * m.v_dim : 0);
}

KimiWeights load_kimi_weights(const ModelConfig& c, WeightLoader& loader) {
  const ArchitectureInfo* arch = find_architecture(c.architecture);
  std::string prefix = arch ? std::string(arch->weight_prefix) : std::string();
  KimiWeights w;
  w.embedding = loader.table({prefix + "model.embed_tokens.weight"}, c.vocab, c.hidden);
  int32_t kda = 0, attention = 0;
  for (int32_t l = 0; l < c.layers; ++l) {
    const LayerNames name(prefix, l);
    LayerWeights layer;
    layer.kind = c.layer_kinds[static_cast<size_t>(l)];
    layer.attention_norm = loader.vector(name("input_layernorm.weight"), c.hidden);
    layer.ffn_norm = loader.vector(name("post_attention_layernorm.weight"), c.hidden);
    if (layer.kind == LayerKind::kKda) {
      layer.cache_layer = kda++;
      layer.kda = load_kda(c, name, loader);
    } else {
      layer.cache_layer = attention++;
      layer.mla = load_mla(c, name, loader);
    }
    layer.ffn = load_ffn(c, l, name, loader);
    w.layers.push_back(std::move(layer));
  }
  w.norm = loader.vector({prefix + "model.norm.weight"}, c.hidden);
  w.head = loader.linear({c.tie_embeddings ? prefix + "model.embed_tokens.weight" : prefix + "lm_head.weight"}, c.vocab,
                         c.hidden);
  return w;
}

}  // namespace kadence::model
