// Options of the family that no shipped checkpoint has, against the oracle in double precision; and the loader.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "model/tests/harness.h"
#include "model/tests/naive_model.h"

namespace kadence::model {
namespace {

using base::ErrorCode;

struct Parts {
  Json config;
  TestTensors tensors;
};
Parts random_kimi() {
  return {parse_json(read_file(model_dir("random-kimi") / "config.json", 1 << 20), "config"),
          read_tensors(model_dir("random-kimi"))};
}
constexpr int64_t D = 64, kHeads = 4, kHeadDim = 16;
std::string layer(int l, const std::string& name) { return "model.layers." + std::to_string(l) + "." + name; }

// Prefill of 70 tokens and five steps against the oracle on the same files.
void expect_like_oracle(const Parts& p, const TestTensors& oracle_tensors, size_t pad = 0) {
  TempDir dir;
  write_model(dir, p.config, p.tensors, pad);
  const ModelConfig config = load_config(dir.path());
  base::Rng rng(11);
  std::vector<int32_t> ids;
  for (int i = 0; i < 75; ++i) ids.push_back(static_cast<int32_t>(rng.below(512)));
  const auto want = NaiveModel(config, oracle_tensors).forward(ids);
  Harness h(dir.path(), 2);
  Sequence s = h.open(128);
  std::vector<float> got = h.prefill(s, std::vector<int32_t>(ids.begin(), ids.begin() + 70));
  for (int i = 70; i < 75; ++i) {
    const std::vector<float> l = h.step(s, ids[static_cast<size_t>(i)]);
    got.insert(got.end(), l.begin(), l.end());
  }
  double worst = 0;
  for (size_t t = 0; t < ids.size(); ++t)
    for (size_t i = 0; i < 512; ++i) {
      const double g = got[t * 512 + i], w = want[t][i];
      ASSERT_TRUE(std::isfinite(g));
      worst = std::max(worst, std::abs(g - w) / (1 + std::abs(w)));
    }
  EXPECT_LE(worst, 1e-4);
  const MemoryEstimate e = estimate_memory(dir.path(), config, Harness::small_options(), h.stream().info());
  EXPECT_EQ(e.weights, h.model().weight_bytes());
  EXPECT_EQ(e.workspace, h.model().workspace_bytes());
}
void expect_like_oracle(const Parts& p) { expect_like_oracle(p, p.tensors); }

TEST(Variants, AsShipped) { expect_like_oracle(random_kimi()); }

// Fault B04 end to end: the bounded law is used when, and only when, the config asks for it.
TEST(Variants, B04BoundedGate) {
  Parts p = random_kimi();
  p.config["linear_attn_config"]["gate_lower_bound"] = -5.0;
  expect_like_oracle(p);
}

TEST(Variants, FullRankGateAndDecayAndDoubledBeta) {
  Parts p = random_kimi();
  p.config["linear_attn_config"]["use_full_rank_gate"] = true;
  p.config["linear_attn_config"]["use_full_rank_decay"] = true;
  p.config["linear_attn_config"]["allow_neg_eigval"] = true;
  for (int l = 0; l < 3; ++l) {
    for (const char* n : {"g_a_proj", "g_b_proj", "f_a_proj", "f_b_proj"})
      p.tensors.erase(layer(l, std::string("self_attn.") + n + ".weight"));
    p.tensors[layer(l, "self_attn.g_proj.weight")] =
        random_tensor({kHeads * kHeadDim, D}, 100 + static_cast<uint64_t>(l), 0.1);
    p.tensors[layer(l, "self_attn.f_proj.weight")] =
        random_tensor({kHeads * kHeadDim, D}, 200 + static_cast<uint64_t>(l), 0.1);
  }
  expect_like_oracle(p);
}

TEST(Variants, QueryLoraAndOutputGate) {
  Parts p = random_kimi();
  p.config["q_lora_rank"] = 24;
  p.config["mla_use_output_gate"] = true;
  p.tensors.erase(layer(3, "self_attn.q_proj.weight"));
  p.tensors[layer(3, "self_attn.q_a_proj.weight")] = random_tensor({24, D}, 1, 0.1);
  p.tensors[layer(3, "self_attn.q_a_layernorm.weight")] = random_tensor({24}, 2, 1);
  p.tensors[layer(3, "self_attn.q_b_proj.weight")] = random_tensor({4 * 24, 24}, 3, 0.3);
  p.tensors[layer(3, "self_attn.g_proj.weight")] = random_tensor({4 * 16, D}, 4, 0.2);
  expect_like_oracle(p);
}

TEST(Variants, RotaryInBothPairings) {
  for (const bool interleaved : {false, true}) {
    Parts p = random_kimi();
    p.config["mla_use_nope"] = false;
    p.config["rope_interleave"] = interleaved;
    expect_like_oracle(p);
  }
}

TEST(Variants, ActivationsSharedExpertsAndTiedEmbedding) {
  Parts p = random_kimi();
  p.config["hidden_act"] = "situ";
  p.config["num_shared_experts"] = 0;
  p.config["tie_word_embeddings"] = true;
  p.config["moe_renormalize"] = false;
  expect_like_oracle(p);
  p.config["hidden_act"] = "silu";
  p.config["swiglu_limit"] = 0.5;
  expect_like_oracle(p);
}

TEST(Variants, OnlyKdaOrOnlyAttention) {
  Parts p = random_kimi();
  p.config["num_hidden_layers"] = 3;
  p.config["linear_attn_config"]["full_attn_layers"] = Json::array();
  expect_like_oracle(p);
  Parts q = random_kimi();
  TestTensors only;
  for (auto& [name, t] : q.tensors) {
    if (name.starts_with("model.layers.3.")) only["model.layers.0." + name.substr(15)] = t;
    if (!name.starts_with("model.layers.")) only[name] = t;
  }
  q.tensors = only;
  q.config["num_hidden_layers"] = 1;
  q.config["first_k_dense_replace"] = 0;
  q.config["linear_attn_config"]["kda_layers"] = Json::array();
  q.config["linear_attn_config"]["full_attn_layers"] = {1};
  expect_like_oracle(q);
}

// A_log padded with zeros beyond H (one release stores [128] for 96 heads): the first H count.
TEST(Loader, ALogPaddedOrReshaped) {
  Parts p = random_kimi();
  const TestTensors plain = p.tensors;
  for (int l = 0; l < 3; ++l) {
    TestTensor& t = p.tensors[layer(l, "self_attn.A_log")];
    ASSERT_EQ(t.shape, (std::vector<int64_t>{1, 1, 4, 1}));
    if (l == 0) t.shape = {4, 1};
    if (l == 1) t.shape = {4};
    if (l == 2) t.shape = {7}, t.bytes += std::string(12, '\0');
    p.tensors[layer(l, "self_attn.dt_bias")].shape = {4, 16};
  }
  expect_like_oracle(p, plain);
  p.tensors[layer(1, "self_attn.A_log")] = f32_tensor({3}, {1, 2, 3});
  TempDir dir;
  write_model(dir, p.config, p.tensors);
  device::Stream stream = device::Stream::cpu(1);
  EXPECT_ERROR(load_model(dir.path(), {}, stream), ErrorCode::kIo, "model.safetensors", "layers.1.self_attn.A_log",
               "at least 4", "[3]");
}

// The module names of transformers instead of the published ones, experts stacked, and data at odd addresses.
TEST(Loader, OtherSpellingsAndUnalignedData) {
  Parts p = random_kimi();
  const TestTensors plain = p.tensors;
  const auto join = [&](const std::vector<std::string>& names, std::vector<int64_t> shape) {
    TestTensor t{p.tensors.at(names[0]).dtype, std::move(shape), ""};
    for (const std::string& n : names) {
      t.bytes += p.tensors.at(n).bytes;
      p.tensors.erase(n);
    }
    return t;
  };
  for (int l = 0; l < 4; ++l) {
    const auto rename = [&](const std::string& from, const std::string& to) {
      p.tensors[layer(l, to)] = p.tensors.at(layer(l, from));
      p.tensors.erase(layer(l, from));
    };
    if (l < 3) {
      rename("self_attn.f_a_proj.weight", "self_attn.forget_gate_down.weight"),
          rename("self_attn.f_b_proj.weight", "self_attn.forget_gate_up.weight");
      rename("self_attn.g_a_proj.weight", "self_attn.output_gate_down.weight"),
          rename("self_attn.g_b_proj.weight", "self_attn.output_gate_up.weight");
      rename("self_attn.b_proj.weight", "self_attn.beta_proj.weight");
      p.tensors[layer(l, "self_attn.conv1d.weight")] =
          join({layer(l, "self_attn.q_conv1d.weight"), layer(l, "self_attn.k_conv1d.weight"),
                layer(l, "self_attn.v_conv1d.weight")},
               {192, 1, 4});
    }
    if (l == 0) continue;
    for (const char* n : {"gate.weight", "gate.e_score_correction_bias", "shared_experts.gate_proj.weight",
                          "shared_experts.up_proj.weight", "shared_experts.down_proj.weight"})
      rename(std::string("block_sparse_moe.") + n, std::string("mlp.") + n);
    std::vector<std::string> gate_up, down;
    for (int e = 0; e < 8; ++e) {
      const std::string x = layer(l, "block_sparse_moe.experts." + std::to_string(e) + ".");
      gate_up.push_back(x + "w1.weight"), gate_up.push_back(x + "w3.weight"), down.push_back(x + "w2.weight");
    }
    p.tensors[layer(l, "mlp.experts.gate_up_proj")] = join(gate_up, {8, 64, 64});
    p.tensors[layer(l, "mlp.experts.down_proj")] = join(down, {8, 64, 32});
  }
  for (const size_t pad : {0u, 1u, 2u, 3u}) expect_like_oracle(p, plain, pad);
}

TEST(Loader, MissingAndMisshapenTensorsAreNamed) {
  device::Stream stream = device::Stream::cpu(1);
  const Parts good = random_kimi();
  const auto refuse = [&](const std::function<void(TestTensors&)>& change, ErrorCode code,
                          std::initializer_list<std::string> parts) {
    TestTensors t = good.tensors;
    change(t);
    TempDir dir;
    write_model(dir, good.config, t);
    for (const std::string& part : parts) {
      EXPECT_ERROR(load_model(dir.path(), {}, stream), code, part);
      EXPECT_ERROR(estimate_memory(dir.path(), load_config(dir.path()), {}, stream.info()), code, part);
    }
  };
  for (const auto& [name, tensor] : good.tensors)
    if (name.find(".experts.") == std::string::npos || name.find(".experts.7.") != std::string::npos)
      refuse([&](TestTensors& t) { t.erase(name); }, ErrorCode::kIo, {name + " is missing"});
  refuse(
      [](TestTensors& t) {
        t["lm_head.weight"].shape = {64, 512};
      },
      ErrorCode::kIo, {"lm_head.weight", "wanted shape [512, 64], got [64, 512]", "model.safetensors"});
  refuse(
      [](TestTensors& t) {
        t[layer(0, "self_attn.q_proj.weight")] = random_tensor({63, 64}, 1, 1);
      },
      ErrorCode::kIo, {"q_proj.weight", "[64, 64]", "[63, 64]"});
  refuse(
      [](TestTensors& t) {
        t[layer(0, "self_attn.k_conv1d.weight")] = random_tensor({64, 1, 3}, 1, 1);
      },
      ErrorCode::kIo, {"k_conv1d.weight", "256 elements", "[64, 1, 3]"});
  refuse(
      [](TestTensors& t) {
        t[layer(3, "self_attn.kv_b_proj.weight")] = random_tensor({128, 33}, 1, 1);
      },
      ErrorCode::kIo, {"kv_b_proj.weight", "[128, 33]"});
  refuse(
      [](TestTensors& t) {
        t["model.norm.weight"] = {"F8_E4M3", {64}, std::string(64, 'x')};
      },
      ErrorCode::kUnsupported, {"model.norm.weight", "F8_E4M3", "BF16"});
  refuse(
      [](TestTensors& t) {
        t["model.norm.weight"] = {"I32", {64}, std::string(256, 'x')};
      },
      ErrorCode::kUnsupported, {"model.norm.weight", "I32"});
}

TEST(Loader, EstimateIsWhatLoadingTakes) {
  for (const char* name : {"kadence-tiny", "random-kimi"}) {
    for (const int threads : {1, 2}) {
      device::Stream stream = device::Stream::cpu(threads);
      for (const int64_t tokens : {64, 8192}) {
        ForwardOptions o;
        o.limits.max_tokens = tokens;
        int64_t calls = 0, last = 0, total = 0;
        LoadOptions load;
        load.progress = [&](int64_t done, int64_t all) {
          EXPECT_GT(done, last);
          last = done, total = all, ++calls;
        };
        const auto model = load_model(model_dir(name), load, stream);
        model->prepare(o, stream);
        EXPECT_GT(calls, 10);
        EXPECT_EQ(last, total);
        const MemoryEstimate e = estimate_memory(model_dir(name), model->config(), o, stream.info());
        EXPECT_EQ(e.weights, model->weight_bytes());
        EXPECT_EQ(e.workspace, model->workspace_bytes());
        EXPECT_GT(e.weights, 4u * 300000u);
      }
    }
  }
}

TEST(Loader, OnlyFloat32Activations) {
  device::Stream stream = device::Stream::cpu(1);
  LoadOptions o;
  o.activation_dtype = base::DType::kBF16;
  EXPECT_ERROR(load_model(model_dir("random-kimi"), o, stream), ErrorCode::kUnsupported, "bfloat16", "float32");
}

}  // namespace
}  // namespace kadence::model
