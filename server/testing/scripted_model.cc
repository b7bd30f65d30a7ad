#include "server/testing/scripted_model.h"

#include <algorithm>
#include <string>

#include "engine/memory_plan.h"
#include "server/testing/byte_tokenizer.h"

namespace kadence::server::testing {

ScriptedModel::ScriptedModel(Script script) : script_(std::move(script)), logits_(ByteTokenizer::kVocab) {
  config_.architecture = "kimi_linear";
  config_.vocab = ByteTokenizer::kVocab;
  config_.layers = 1;
  config_.max_context = 1 << 20;
  config_.kda.H = config_.kda.HV = config_.kda.K = config_.kda.V = 1;
  config_.layer_kinds = {model::LayerKind::kKda};
}

void ScriptedModel::forward(const model::ForwardBatch& b, const model::CacheViews&, const model::LogitsSink& sink,
                            device::Stream&) {
  std::vector<int32_t> next(b.tokens.size());
  for (int32_t i = 0; i < b.rows(); ++i) {
    const auto row = static_cast<size_t>(i);
    const auto begin = static_cast<size_t>(b.seq_begin[row]), end = static_cast<size_t>(b.seq_begin[row + 1]);
    if (!script_) {
      for (size_t t = begin; t < end; ++t) next[t] = 'a' + (b.tokens[t] + 1) % 26;
      continue;
    }
    std::vector<int32_t> tokens = b.state_in[row] >= 0 ? seen_[b.state_in[row]] : std::vector<int32_t>();
    size_t c = static_cast<size_t>(b.ckpt_begin.empty() ? 0 : b.ckpt_begin[row]);
    const size_t c_end = static_cast<size_t>(b.ckpt_begin.empty() ? 0 : b.ckpt_begin[row + 1]);
    for (size_t t = begin; t < end; ++t) {
      tokens.push_back(b.tokens[t]);
      while (c < c_end && static_cast<size_t>(b.ckpt_depth[c]) == t + 1 - begin) seen_[b.ckpt_slot[c++]] = tokens;
    }
    if (end > begin) next[end - 1] = script_(tokens);
    if (b.state_out[row] >= 0) seen_[b.state_out[row]] = std::move(tokens);
  }
  for (size_t w = 0; w < b.logit_tokens.size(); ++w) {
    const int32_t token = next[static_cast<size_t>(b.logit_tokens[w])];
    logits_[static_cast<size_t>(token)] = 20;
    sink(static_cast<int64_t>(w), 1, logits_.data());
    logits_[static_cast<size_t>(token)] = 0;
  }
}

std::unique_ptr<engine::Engine> scripted_engine(Script script, int32_t running, int64_t context) {
  auto model = std::make_unique<ScriptedModel>(std::move(script));
  engine::EngineOptions options;
  options.max_running_requests = running;
  options.state_slots = running * 8;
  options.kv_tokens = context * 4;
  options.context_length = context;
  const engine::MemoryPlan plan = engine::size_pools(
      {model::cache_shape(model->config()), model->config().max_context, 0, 0}, options, device::cpu_info(1));
  return std::make_unique<engine::Engine>(std::move(model), options, plan, device::Stream::cpu(1));
}

int32_t tool_caller(std::span<const int32_t> tokens) {
  static const ByteTokenizer tokenizer;
  static const int32_t end = *tokenizer.special_id("<|im_end|>");
  const std::string text = [&] {
    std::string all;
    for (const int32_t t : tokens) all += tokenizer.token_bytes(t, true);
    return all;
  }();
  const auto between = [](const std::string& s, size_t from, const std::string& a, const std::string& b) {
    const size_t begin = s.find(a, from);
    if (begin == std::string::npos) return std::string();
    const size_t stop = s.find(b, begin + a.size());
    return s.substr(begin + a.size(), stop == std::string::npos ? stop : stop - begin - a.size());
  };
  const std::string turn = "<|im_assistant|>assistant<|im_middle|>";
  const size_t at = text.rfind(turn);
  if (at == std::string::npos) return end;
  const std::string prompt = text.substr(0, at);
  const size_t user = prompt.rfind("<|im_user|>"), tool = prompt.rfind("<|im_system|>tool<|im_middle|>");
  std::string reply;
  if (tool != std::string::npos && (user == std::string::npos || tool > user)) {
    reply = "It says: " + between(prompt, prompt.find('\n', tool), "\n", "<|im_end|>");
  } else {
    const std::string said = between(prompt, user == std::string::npos ? 0 : user, "<|im_middle|>", "<|im_end|>");
    const std::string name =
        between(between(prompt, 0, "tool_declare<|im_middle|>", "<|im_end|>"), 0, "\"name\":\"", "\"");
    reply = name.empty() ? said
                         : "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions." + name +
                               ":0<|tool_call_argument_begin|>{\"text\":\"" + said +
                               "\"}<|tool_call_end|><|tool_calls_section_end|>";
  }
  const std::string section = "<|tool_calls_section_begin|>";
  if (text.compare(at + turn.size(), section.size(), section) == 0 && reply.find(section) != std::string::npos)
    reply = reply.substr(reply.find(section));  // a call was asked for: no words before it
  const std::vector<int32_t> ids = tokenizer.encode(reply, true);
  const size_t done = tokenizer.encode(text.substr(at + turn.size()), true).size();
  return done < ids.size() ? ids[done] : end;
}

}  // namespace kadence::server::testing
