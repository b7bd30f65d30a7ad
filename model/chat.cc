#include "model/chat.h"

#include "base/error.h"
#include "model/json.h"

namespace kadence::model {
namespace {

// A prompt as pieces that are either control tokens or text. Rendering joins them; encoding never parses text.
struct Segment {
  std::string text;
  bool control = false;
};

// JSON text without the white space between its tokens; keys keep their order, numbers their spelling.
std::string compact_json(const std::string& text) {
  try {
    if (!parse_json(text, "tools", {size_t{16} << 20, 64}).is_array())
      base::throw_invalid("tools", "a JSON array", text.substr(0, 60));
  } catch (const base::Error& e) {
    base::throw_error(base::ErrorCode::kInvalidArgument, e.what());
  }
  std::string out;
  bool in_string = false, escaped = false;
  for (const char c : text) {
    if (in_string) {
      out += c;
      if (escaped)
        escaped = false;
      else if (c == '\\')
        escaped = true;
      else if (c == '"')
        in_string = false;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      out += c;
      in_string = c == '"';
    }
  }
  return out;
}

// The template of Kimi K2 and Kimi-Linear; kadence-tiny's is its part without tools. No default system prompt, no bos.
class KimiChat final : public ChatTemplate {
 public:
  std::string render(const std::vector<ChatMessage>& messages, const std::string& tools_json,
                     bool add_generation_prompt) const override {
    std::string out;
    for (const Segment& s : segments(messages, tools_json, add_generation_prompt)) out += s.text;
    return out;
  }

  std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                              const std::string& tools_json, bool add_generation_prompt) const override {
    std::vector<int32_t> ids;
    std::string text;  // neighbouring texts are one text to the tokenizer, as they are in the rendered prompt
    const auto flush = [&] {
      const std::vector<int32_t> part = tokenizer.encode(text, false);
      ids.insert(ids.end(), part.begin(), part.end());
      text.clear();
    };
    for (const Segment& s : segments(messages, tools_json, add_generation_prompt)) {
      if (!s.control) {
        text += s.text;
        continue;
      }
      flush();
      const std::optional<int32_t> id = tokenizer.special_id(s.text);
      if (!id)
        base::throw_error(base::ErrorCode::kUnsupported, "chat template: the tokenizer has no control token " + s.text);
      ids.push_back(*id);
    }
    flush();
    return ids;
  }

  std::vector<std::string> stop_tokens() const override { return {"<|im_end|>"}; }

 private:
  static std::vector<Segment> segments(const std::vector<ChatMessage>& messages, const std::string& tools_json,
                                       bool add_generation_prompt) {
    std::vector<Segment> out;
    const auto control = [&](const char* token) { out.push_back({token, true}); };
    const auto plain = [&](std::string text) {
      if (!text.empty()) out.push_back({std::move(text), false});
    };
    const auto open = [&](const char* token, const char* name) {
      control(token), plain(name), control("<|im_middle|>");
    };
    if (!tools_json.empty()) {
      const std::string tools = compact_json(tools_json);
      if (tools != "[]") open("<|im_system|>", "tool_declare"), plain(tools), control("<|im_end|>");
    }
    for (const ChatMessage& m : messages) {
      if (m.role == "system") {
        open("<|im_system|>", "system");
      } else if (m.role == "user") {
        open("<|im_user|>", "user");
      } else if (m.role == "assistant") {
        open("<|im_assistant|>", "assistant");
      } else if (m.role == "tool") {
        open("<|im_system|>", "tool");
        plain("## Return of " + m.tool_call_id + "\n");
      } else {
        base::throw_invalid("role of a message", "system, user, assistant or tool", m.role);
      }
      plain(m.content);
      if (m.role == "assistant" && !m.tool_calls.empty()) {
        control("<|tool_calls_section_begin|>");
        for (const ToolCall& call : m.tool_calls) {
          control("<|tool_call_begin|>"), plain(call.id);
          control("<|tool_call_argument_begin|>"), plain(call.arguments);
          control("<|tool_call_end|>");
        }
        control("<|tool_calls_section_end|>");
      }
      control("<|im_end|>");
    }
    if (add_generation_prompt) open("<|im_assistant|>", "assistant");
    return out;
  }
};

}  // namespace

std::unique_ptr<ChatTemplate> make_chat_template(const ModelConfig& config) {
  if (config.architecture == "kimi_linear") return std::make_unique<KimiChat>();
  base::throw_error(base::ErrorCode::kUnsupported,
                    "chat template: architecture " + config.architecture + " has none; families that do: kimi_linear");
}

}  // namespace kadence::model
