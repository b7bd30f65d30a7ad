#include "model/config.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "model/architectures.h"
#include "model/json.h"

namespace kadence::model {
namespace {

// Bounds that no real model reaches; a size beyond them is a broken file, and within them products fit in int64.
constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 18, kMaxLayers = 1024, kMaxHeads = 1024, kMaxHeadDim = 4096,
                  kMaxExperts = 1 << 14;

int32_t to_i32(int64_t v) { return static_cast<int32_t>(v); }

[[noreturn]] void throw_unsupported(const std::string& message) {
  base::throw_error(base::ErrorCode::kUnsupported, message);
}

void read_activation(const JsonObject& text, ModelConfig& c) {
  const std::string act = text.string_or({"hidden_act"}, "silu");
  if (act == "silu" || act == "swish") {
    c.activation.kind = ops::Activation::Kind::kSilu;
    if (const double limit = text.number_or({"swiglu_limit"}, 0, 1e6, 0); limit > 0) {
      c.activation.kind = ops::Activation::Kind::kClampedSilu;
      c.activation.limit = static_cast<float>(limit);
    }
  } else if (act == "situ") {
    c.activation.kind = ops::Activation::Kind::kSitu;
    c.activation.beta = static_cast<float>(text.number_or({"activation_situ_beta"}, 1e-6, 1e6, 4));
    c.activation.linear_beta = static_cast<float>(text.number_or({"activation_situ_linear_beta"}, 1e-6, 1e6, 25));
  } else {
    text.fail("hidden_act", "silu, swish or situ", act);
  }
}

// kda_layers and full_attn_layers of the family's own table, or the layer_types list that transformers writes.
void read_layer_kinds(const JsonObject& text, const JsonObject& linear, int base, ModelConfig& c) {
  const size_t L = static_cast<size_t>(c.layers);
  std::vector<LayerKind> from_types, from_lists;
  if (const Json* types = text.find({"layer_types"})) {
    if (!types->is_array() || types->size() != L)
      text.fail("layer_types", "a list of " + std::to_string(L) + " strings", brief(*types));
    for (const Json& t : *types) {
      const std::string s = t.is_string() ? t.get<std::string>() : "";
      if (s == "linear_attention" || s == "kda")
        from_types.push_back(LayerKind::kKda);
      else if (s == "full_attention" || s == "deepseek_sparse_attention")
        from_types.push_back(LayerKind::kFullAttention);
      else
        text.fail("layer_types", "linear_attention or full_attention", brief(t));
    }
  }
  if (linear.find({"kda_layers"}) || linear.find({"full_attn_layers"})) {
    std::vector<int> seen(L, 0);
    from_lists.assign(L, LayerKind::kKda);
    const auto take = [&](std::string_view field, LayerKind kind) {
      for (int64_t i : linear.integers({field}, base, base + static_cast<int64_t>(L) - 1, kMaxLayers)) {
        const size_t l = static_cast<size_t>(i - base);
        if (seen[l]++)
          linear.fail(field, "every layer once in kda_layers or full_attn_layers",
                      "layer " + std::to_string(i) + " twice");
        from_lists[l] = kind;
      }
    };
    take("kda_layers", LayerKind::kKda);
    take("full_attn_layers", LayerKind::kFullAttention);
    // One of the two lists alone is enough; two lists must cover everything.
    const bool both = linear.find({"kda_layers"}) && linear.find({"full_attn_layers"});
    const LayerKind rest = linear.find({"kda_layers"}) ? LayerKind::kFullAttention : LayerKind::kKda;
    for (size_t l = 0; l < L; ++l) {
      if (seen[l]) continue;
      if (both)
        linear.fail("kda_layers",
                    "every layer once in kda_layers or full_attn_layers (counted from " + std::to_string(base) + ")",
                    "no entry for layer " + std::to_string(l + static_cast<size_t>(base)));
      from_lists[l] = rest;
    }
  }
  if (from_types.empty() && from_lists.empty())
    linear.fail("kda_layers", "kda_layers and full_attn_layers, or layer_types", "nothing (the fields are missing)");
  if (!from_types.empty() && !from_lists.empty() && from_types != from_lists)
    text.fail("layer_types", "the same layers as kda_layers and full_attn_layers", "another assignment");
  c.layer_kinds = from_types.empty() ? from_lists : from_types;
}

void read_kda(const JsonObject& text, const JsonObject& linear, ModelConfig& c) {
  KdaConfig& k = c.kda;
  // Flat spellings are the ones that transformers writes; the table linear_attn_config is the published one.
  const auto size = [&](std::string_view nested, std::string_view flat, int64_t max) {
    return to_i32(linear.find({nested}) ? linear.integer({nested}, 1, max) : text.integer({flat, nested}, 1, max));
  };
  k.H = size("num_heads", "linear_num_heads", kMaxHeads);
  k.K = size("head_dim", "linear_head_dim", kMaxHeadDim);
  k.HV = to_i32(linear.integer_or({"num_v_heads"}, 1, kMaxHeads, k.H));
  k.V = to_i32(linear.integer_or({"head_v_dim"}, 1, kMaxHeadDim, k.K));
  if (k.HV % k.H != 0)
    linear.fail("num_v_heads", "a multiple of num_heads " + std::to_string(k.H), std::to_string(k.HV));
  k.conv_width = size("short_conv_kernel_size", "linear_conv_kernel_dim", 64);
  if (k.conv_width != 4)
    linear.fail("short_conv_kernel_size", "4 (the only width implemented)", std::to_string(k.conv_width));
  // Releases write gate_lower_bound, some readers look for lower_bound: both mean the bounded law; neither means
  // softplus.
  const JsonObject::Names bound = {"gate_lower_bound", "lower_bound"};
  const bool nested = linear.find(bound) != nullptr;
  const JsonObject& home = nested ? linear : text;
  const JsonObject::Names flat_bound = {"linear_gate_lower_bound", "gate_lower_bound", "kda_lower_bound"};
  if (nested || text.find(flat_bound)) {
    const double lb = nested ? home.number_or(bound, -1e6, 1e6, 0) : home.number_or(flat_bound, -1e6, 1e6, 0);
    if (!(lb < 0)) home.fail("gate_lower_bound", "a number below zero", std::to_string(lb));
    k.gate = ops::KdaGate::kBounded;
    k.lower_bound = static_cast<float>(lb);
  }
  k.full_rank_gate = linear.boolean_or({"use_full_rank_gate"}, false);
  k.full_rank_decay = linear.boolean_or({"use_full_rank_decay"}, text.boolean_or({"no_kda_lora"}, false));
  if (text.boolean_or({"no_kda_lora"}, false)) k.full_rank_gate = true;
  k.beta_doubled = linear.boolean_or({"allow_neg_eigval"}, text.boolean_or({"allow_neg_eigval"}, false));
}

void read_mla(const JsonObject& text, ModelConfig& c) {
  MlaConfig& m = c.mla;
  m.heads = to_i32(text.integer({"num_attention_heads"}, 1, kMaxHeads));
  const int64_t kv_heads = text.integer_or({"num_key_value_heads"}, 1, kMaxHeads, m.heads);
  if (kv_heads != m.heads)
    text.fail("num_key_value_heads", "num_attention_heads (" + std::to_string(m.heads) + ")", std::to_string(kv_heads));
  m.q_lora_rank = to_i32(text.integer_or({"q_lora_rank"}, 0, kMaxWidth, 0));
  m.kv_lora_rank = to_i32(text.integer({"kv_lora_rank"}, 1, kMaxHeadDim));
  m.nope_dim = to_i32(text.integer({"qk_nope_head_dim"}, 1, kMaxHeadDim));
  m.rope_dim = to_i32(text.integer({"qk_rope_head_dim"}, 0, kMaxHeadDim));
  m.v_dim = to_i32(text.integer({"v_head_dim"}, 1, kMaxHeadDim));
  m.rotary = !text.boolean_or({"mla_use_nope"}, true);
  m.rope_interleaved = text.boolean_or({"rope_interleave"}, false);
  m.rope_theta = text.number_or({"rope_theta"}, 1, 1e12, 10000);
  m.output_gate = text.boolean_or({"mla_use_output_gate"}, false);
  if (m.rotary && text.find({"rope_scaling"}))
    text.fail("rope_scaling", "null (scaled rotary embeddings are not implemented)",
              brief(*text.find({"rope_scaling"})));
  if (m.rotary && m.rope_dim % 2 != 0)
    text.fail("qk_rope_head_dim", "an even number with rotary embeddings", std::to_string(m.rope_dim));
}

void read_moe(const JsonObject& text, ModelConfig& c) {
  MoeConfig& m = c.moe;
  ops::RouterShape& r = m.router;
  r.experts = to_i32(text.integer_or({"num_experts", "num_local_experts", "n_routed_experts"}, 0, kMaxExperts, 0));
  if (r.experts == 0) return;
  r.top_k = to_i32(text.integer({"num_experts_per_token", "num_experts_per_tok"}, 1, r.experts));
  r.groups = to_i32(text.integer_or({"num_expert_group", "n_group"}, 1, r.experts, 1));
  r.topk_groups = to_i32(text.integer_or({"topk_group"}, 1, r.groups, 1));
  if (r.experts % r.groups != 0)
    text.fail("num_expert_group", "a divisor of num_experts " + std::to_string(r.experts), std::to_string(r.groups));
  if (r.top_k > r.experts / r.groups * r.topk_groups)
    text.fail("num_experts_per_token", "at most the experts of topk_group groups", std::to_string(r.top_k));
  if (r.groups > 1 && r.experts / r.groups < 2)
    text.fail("num_expert_group", "groups of two experts or more", std::to_string(r.groups));
  r.renormalize = text.boolean_or({"moe_renormalize", "norm_topk_prob"}, true);
  r.scale = static_cast<float>(text.number_or({"routed_scaling_factor"}, 1e-6, 1e6, 1));
  const std::string score = text.string_or({"moe_router_activation_func", "scoring_func"}, "sigmoid");
  if (score != "sigmoid") text.fail("moe_router_activation_func", "sigmoid", score);
  m.intermediate = to_i32(text.integer({"moe_intermediate_size"}, 1, kMaxWidth));
  m.shared_experts = to_i32(text.integer_or({"num_shared_experts", "n_shared_experts"}, 0, 64, 0));
  m.first_dense = to_i32(text.integer_or({"first_k_dense_replace"}, 0, c.layers, 0));
  m.layer_freq = to_i32(text.integer_or({"moe_layer_freq"}, 1, kMaxLayers, 1));
  if (const Json* types = text.find({"mlp_layer_types"})) {
    if (!types->is_array() || types->size() != static_cast<size_t>(c.layers))
      text.fail("mlp_layer_types", "a list of " + std::to_string(c.layers) + " strings", brief(*types));
    int32_t dense = 0;
    while (dense < c.layers && (*types)[static_cast<size_t>(dense)] == "dense") ++dense;
    for (int32_t l = dense; l < c.layers; ++l)
      if ((*types)[static_cast<size_t>(l)] != "sparse")
        text.fail("mlp_layer_types", "dense layers first, then only sparse", brief((*types)[static_cast<size_t>(l)]));
    m.first_dense = dense;
    m.layer_freq = 1;
  }
}

void read_special_ids(const JsonObject& from, ModelConfig& c) {
  const int64_t last = c.vocab - 1;
  if (const Json* e = from.find({"eos_token_id"})) {
    const auto add = [&](int64_t id) {
      if (std::find(c.eos_ids.begin(), c.eos_ids.end(), to_i32(id)) == c.eos_ids.end()) c.eos_ids.push_back(to_i32(id));
    };
    if (e->is_array())
      for (int64_t id : from.integers({"eos_token_id"}, 0, last, 1024)) add(id);
    else
      add(from.integer({"eos_token_id"}, 0, last));
  }
  if (!c.bos_id && from.find({"bos_token_id"})) c.bos_id = to_i32(from.integer({"bos_token_id"}, 0, last));
  if (!c.pad_id && from.find({"pad_token_id"})) c.pad_id = to_i32(from.integer({"pad_token_id"}, 0, last));
}

const ArchitectureInfo& resolve_architecture(const JsonObject& top, const JsonObject& text) {
  std::vector<std::string> classes;
  if (const Json* a = top.find({"architectures"}); a && a->is_array())
    for (const Json& e : *a)
      if (e.is_string()) classes.push_back(e.get<std::string>());
  const std::string type = top.string_or({"model_type"}, "");
  const bool k3 = text.find({"attn_res_block_size"}) || text.find({"routed_expert_hidden_size"});
  const bool bailing = text.find({"kda_lower_bound"}) || text.find({"no_kda_lora"}) || text.find({"kda_safe_gate"});
  const ArchitectureInfo* a = match_architecture(type, classes, k3, bailing);
  if (!a) {
    std::string known;
    for (const ArchitectureInfo& row : architectures()) known += (known.empty() ? "" : ", ") + std::string(row.name);
    throw_unsupported(top.origin() + ": model_type \"" + type + "\" is not a known architecture; known: " + known +
                      "; implemented: " + implemented_architectures());
  }
  if (!a->implemented)
    throw_unsupported(top.origin() + ": architecture " + std::string(a->name) + " (" + std::string(a->summary) +
                      ") is known but not implemented yet; implemented: " + implemented_architectures());
  return *a;
}

}  // namespace

int32_t ModelConfig::kda_layers() const {
  return to_i32(std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::kKda));
}
int32_t ModelConfig::attention_layers() const {
  return to_i32(static_cast<int64_t>(layer_kinds.size())) - kda_layers();
}
bool ModelConfig::is_moe_layer(int32_t layer) const {
  return moe.router.experts > 0 && layer >= moe.first_dense && layer % moe.layer_freq == 0;
}

ModelConfig parse_config(std::string_view config, std::string_view generation, const std::string& origin) {
  const Json doc = parse_json(config, origin, {size_t{16} << 20, 16});
  if (!doc.is_object()) base::throw_error(base::ErrorCode::kIo, origin + ": wanted a JSON object, got " + brief(doc));
  const JsonObject top(&doc, origin);
  const Json* inner = top.find({"text_config"});
  if (inner && !inner->is_object()) top.fail("text_config", "an object", brief(*inner));
  const JsonObject text(inner ? inner : &doc, inner ? origin + ": text_config" : origin);
  const ArchitectureInfo& arch = resolve_architecture(top, text);
  const Json* table = text.find({"linear_attn_config"});
  if (table && !table->is_object()) text.fail("linear_attn_config", "an object", brief(*table));
  const JsonObject linear(table, text.origin() + ": linear_attn_config");

  ModelConfig c;
  c.architecture = arch.name;
  c.vocab = to_i32(text.integer({"vocab_size"}, 1, kMaxVocab));
  c.hidden = to_i32(text.integer({"hidden_size"}, 1, kMaxWidth));
  c.layers = to_i32(text.integer({"num_hidden_layers"}, 1, kMaxLayers));
  c.rms_eps = static_cast<float>(text.number_or({"rms_norm_eps", "norm_eps"}, 1e-12, 1, 1e-5));
  c.latent_eps =
      1e-6f;  // the published modelling code builds the latent norms with the class default, not rms_norm_eps
  c.tie_embeddings = text.boolean_or({"tie_word_embeddings"}, top.boolean_or({"tie_word_embeddings"}, false));
  c.max_context = text.integer_or({"model_max_length", "max_position_embeddings"}, 1, int64_t{1} << 31, 1 << 20);
  read_activation(text, c);
  read_layer_kinds(text, linear, arch.layer_base, c);
  if (c.kda_layers() > 0) read_kda(text, linear, c);
  if (c.attention_layers() > 0) read_mla(text, c);
  read_moe(text, c);
  bool dense = false;
  for (int32_t l = 0; l < c.layers; ++l) dense = dense || !c.is_moe_layer(l);
  c.dense_intermediate = to_i32(dense ? text.integer({"intermediate_size"}, 1, kMaxWidth)
                                      : text.integer_or({"intermediate_size"}, 0, kMaxWidth, 0));
  read_special_ids(text, c);
  if (inner) read_special_ids(top, c);
  if (!generation.empty()) {
    const std::string name = (std::filesystem::path(origin).parent_path() / "generation_config.json").string();
    const Json g = parse_json(generation, name, {size_t{16} << 20, 16});
    if (!g.is_object()) base::throw_error(base::ErrorCode::kIo, name + ": wanted a JSON object, got " + brief(g));
    read_special_ids(JsonObject(&g, name), c);
  }
  return c;
}

ModelConfig load_config(const std::filesystem::path& dir) {
  std::error_code ec;
  if (!std::filesystem::is_directory(dir, ec))
    base::throw_error(
        base::ErrorCode::kIo,
        dir.string() + (std::filesystem::exists(dir, ec) ? ": wanted a folder, got a file" : ": no such folder"));
  const std::filesystem::path file = dir / "config.json", generation = dir / "generation_config.json";
  constexpr size_t kMaxBytes = size_t{16} << 20;
  const bool has_generation = std::filesystem::exists(generation, ec);
  const std::string config_text = read_file(file, kMaxBytes),
                    generation_text = has_generation ? read_file(generation, kMaxBytes) : std::string();
  if (has_generation && generation_text.empty())
    base::throw_error(base::ErrorCode::kIo, generation.string() + ": wanted a JSON object, got an empty file");
  return parse_config(config_text, generation_text, file.string());
}

}  // namespace kadence::model
