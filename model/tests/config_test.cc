#include "model/config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/architectures.h"
#include "model/json.h"
#include "model/model.h"
#include "model/tests/temp_dir.h"

namespace kadence::model {
namespace {

using base::ErrorCode;

Json kimi() { return parse_json(read_file(model_dir("kadence-tiny") / "config.json", 1 << 20), "kadence-tiny"); }
ModelConfig parse(const Json& j) { return parse_config(j.dump(), "", "config.json"); }

TEST(Config, ReadsKadenceTiny) {
  const ModelConfig c = load_config(model_dir("kadence-tiny"));
  EXPECT_EQ(c.architecture, "kimi_linear");
  EXPECT_EQ(c.vocab, 4096);
  EXPECT_EQ(c.hidden, 256);
  EXPECT_EQ(c.layers, 8);
  EXPECT_EQ(c.dense_intermediate, 512);
  EXPECT_FLOAT_EQ(c.rms_eps, 1e-5f);
  EXPECT_FLOAT_EQ(c.latent_eps, 1e-6f);
  using enum LayerKind;
  EXPECT_EQ(c.layer_kinds, (std::vector{kKda, kKda, kKda, kFullAttention, kKda, kKda, kKda, kFullAttention}));
  EXPECT_EQ(c.kda.H, 2);
  EXPECT_EQ(c.kda.HV, 2);
  EXPECT_EQ(c.kda.K, 128);
  EXPECT_EQ(c.kda.gate, ops::KdaGate::kSoftplus);
  EXPECT_EQ(c.mla.heads, 4);
  EXPECT_EQ(c.mla.kv_lora_rank, 64);
  EXPECT_EQ(c.mla.nope_dim, 48);
  EXPECT_EQ(c.mla.rope_dim, 16);
  EXPECT_FALSE(c.mla.rotary);
  EXPECT_EQ(c.moe.router.experts, 8);
  EXPECT_FLOAT_EQ(c.moe.router.scale, 1.8f);
  EXPECT_FALSE(c.is_moe_layer(0));
  EXPECT_TRUE(c.is_moe_layer(1));
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{4089, 4095}));  // the second one only in generation_config.json
  EXPECT_EQ(c.bos_id, 4088);
  EXPECT_EQ(c.max_context, 32768);
  EXPECT_EQ(cache_shape(c).conv_channels, 768);
  EXPECT_EQ(cache_shape(c).latent_width, 80);
}

TEST(Config, GroupedRoutingOfRandomKimi) {
  const ModelConfig c = load_config(model_dir("random-kimi"));
  EXPECT_EQ(c.moe.router.groups, 2);
  EXPECT_EQ(c.moe.router.topk_groups, 1);
  EXPECT_EQ(c.kda_layers(), 3);
}

TEST(Config, TheSpellingsOfTransformersMeanTheSame) {
  Json j = kimi();
  const ModelConfig a = parse(j);
  const auto rename = [&](const char* from, const char* to) {
    j[to] = j[from];
    j.erase(from);
  };
  rename("num_experts", "num_local_experts");
  rename("num_experts_per_token", "num_experts_per_tok");
  rename("moe_renormalize", "norm_topk_prob");
  rename("num_expert_group", "n_group");
  rename("num_shared_experts", "n_shared_experts");
  rename("model_max_length", "max_position_embeddings");
  j.erase("linear_attn_config");
  j.erase("first_k_dense_replace");
  j["linear_num_heads"] = 2, j["linear_head_dim"] = 128, j["linear_conv_kernel_dim"] = 4;
  for (int l = 0; l < 8; ++l) {
    j["layer_types"].push_back(l % 4 == 3 ? "full_attention" : "linear_attention");
    j["mlp_layer_types"].push_back(l == 0 ? "dense" : "sparse");
  }
  for (const bool nested : {false, true}) {
    const ModelConfig b = nested ? parse(Json{{"model_type", "kimi_linear"}, {"text_config", j}}) : parse(j);
    EXPECT_EQ(b.layer_kinds, a.layer_kinds);
    EXPECT_EQ(b.kda.H, a.kda.H);
    EXPECT_EQ(b.kda.K, a.kda.K);
    EXPECT_EQ(b.moe.router.experts, a.moe.router.experts);
    EXPECT_EQ(b.moe.router.top_k, a.moe.router.top_k);
    EXPECT_EQ(b.moe.shared_experts, a.moe.shared_experts);
    EXPECT_EQ(b.moe.first_dense, a.moe.first_dense);
    EXPECT_EQ(b.max_context, a.max_context);
  }
}

// Fault B04: the gate's law is the config's, and both spellings of the bound mean the bounded law.
TEST(Config, B04GateLawComesFromTheConfig) {
  Json j = kimi();
  EXPECT_EQ(parse(j).kda.gate, ops::KdaGate::kSoftplus);
  for (const char* name : {"gate_lower_bound", "lower_bound"}) {
    Json b = j;
    b["linear_attn_config"][name] = -5.0;
    EXPECT_EQ(parse(b).kda.gate, ops::KdaGate::kBounded) << name;
    EXPECT_FLOAT_EQ(parse(b).kda.lower_bound, -5.0f);
    b["linear_attn_config"][name] = nullptr;
    EXPECT_EQ(parse(b).kda.gate, ops::KdaGate::kSoftplus);
    for (const Json& bad : {Json(0.0), Json(5), Json("x"), Json(-1e9)}) {
      b["linear_attn_config"][name] = bad;
      EXPECT_ERROR(parse(b), ErrorCode::kInvalidArgument, "gate_lower_bound");
    }
  }
}

TEST(Config, LayerListsCountFromOneAndMustCoverEverything) {
  Json j = kimi();
  Json& lists = j["linear_attn_config"];
  lists["kda_layers"] = {1, 2, 3, 5, 6, 7};
  lists["full_attn_layers"] = {4, 9};
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "full_attn_layers", "9");
  lists["full_attn_layers"] = {0, 4};
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "full_attn_layers", "0");
  lists["full_attn_layers"] = {4};
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "kda_layers", "no entry for layer 8");
  lists["full_attn_layers"] = {4, 7, 8};
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "layer 7 twice");
  lists["full_attn_layers"] = {4, 8};
  for (int l = 0; l < 8; ++l) j["layer_types"].push_back("linear_attention");
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "layer_types");
}

TEST(Config, MissingFieldsAreNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size", "num_experts_per_token"}) {
    Json j = kimi();
    j.erase(field);
    EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, field, "missing");
  }
  Json j = kimi();
  j["linear_attn_config"].erase("num_heads");
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "num_heads", "missing");
  j.erase("linear_attn_config");
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "kda_layers");
}

TEST(Config, AbsurdValuesAreRefused) {
  const std::vector<std::pair<const char*, std::vector<Json>>> cases = {
      {"vocab_size", {0, -1, 1'000'000'000, 1e3, "many", Json::array({1})}},
      {"hidden_size", {0, int64_t{1} << 40, 1.5}},
      {"num_hidden_layers", {0, 100000}},
      {"num_attention_heads", {0, 100000}},
      {"num_key_value_heads", {2}},
      {"rms_norm_eps", {-1.0, 5.0, "x"}},
      {"num_experts_per_token", {9, 0}},
      {"num_expert_group", {3}},
      {"topk_group", {2}},
      {"hidden_act", {"gelu", 3}},
      {"moe_router_activation_func", {"softmax"}},
      {"moe_renormalize", {1}},
      {"routed_scaling_factor", {0.0, -2.0}},
      {"eos_token_id", {4096, -1, "x", Json::array({4096})}},
      {"model_max_length", {0}},
      {"layer_types", {Json::array({"linear_attention"}), "x"}},
      {"linear_attn_config", {3}},
      {"kv_lora_rank", {0, -3}},
  };
  for (const auto& [field, values] : cases) {
    for (const Json& v : values) {
      Json j = kimi();
      j[field] = v;
      EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, field);
    }
  }
  Json j = kimi();
  j["linear_attn_config"]["short_conv_kernel_size"] = 3;
  EXPECT_ERROR(parse(j), ErrorCode::kInvalidArgument, "short_conv_kernel_size", "4", "3");
}

TEST(Config, OtherArchitecturesAreKnownButNotImplemented) {
  const auto refused = [](const Json& j, const char* name) {
    EXPECT_ERROR(parse(j), ErrorCode::kUnsupported, name, "known but not implemented yet", "kimi_linear");
  };
  refused({{"model_type", "glm5_next"}, {"text_config", {{"model_type", "glm5_next_text"}}}}, "glm5_next");
  refused({{"model_type", "kimi_k3"}}, "kimi_k3");
  refused({{"model_type", "kimi_linear"}, {"attn_res_block_size", 12}}, "kimi_k3");
  refused({{"model_type", "bailing_hybrid"}, {"kda_lower_bound", -5}}, "bailing");
  refused({{"model_type", "bailing_hybrid"}, {"architectures", {"BailingMoeV3ForCausalLM"}}}, "bailing");
  refused({{"model_type", "kda"}}, "kda");
  refused({{"architectures", {"KDAForCausalLM"}}}, "kda");
  EXPECT_ERROR(parse({{"model_type", "bailing_hybrid"}}), ErrorCode::kUnsupported, "known: kimi_linear, glm5_next");
  EXPECT_ERROR(parse({{"model_type", "llama"}}), ErrorCode::kUnsupported, "llama", "glm5_next",
               "implemented: kimi_linear");
  EXPECT_ERROR(parse(Json::object()), ErrorCode::kUnsupported, "implemented: kimi_linear");
}

TEST(Config, BrokenFiles) {
  TempDir dir;
  EXPECT_ERROR(load_config(dir.path()), ErrorCode::kIo, "config.json", "no such file");
  EXPECT_ERROR(load_config(dir.path() / "none"), ErrorCode::kIo, "no such folder");
  EXPECT_ERROR(parse_config("", "", "f"), ErrorCode::kIo, "f");
  EXPECT_ERROR(parse_config("[1]", "", "f"), ErrorCode::kIo, "object");
  EXPECT_ERROR(parse_config("{\"a\": 1, \"a\": 2}", "", "f"), ErrorCode::kIo, "twice");
  EXPECT_ERROR(parse_config(std::string(100000, '['), "", "f"), ErrorCode::kIo, "nested");
  EXPECT_ERROR(parse_config(kimi().dump(), "{\"eos_token_id\": 5000}", "f"), ErrorCode::kInvalidArgument,
               "generation_config.json", "eos_token_id");
}

}  // namespace
}  // namespace kadence::model
