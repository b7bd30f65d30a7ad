#include "model/chat.h"

#include <algorithm>
#include <array>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
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

// The template that a checkpoint carries: where, and its text. Several named ones count as one text.
struct OwnTemplate {
  std::string file, text;
};
OwnTemplate own_template(const std::filesystem::path& dir) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::error_code ec;
  const std::filesystem::path jinja = dir / "chat_template.jinja", config = dir / "tokenizer_config.json";
  if (std::filesystem::exists(jinja, ec)) return {jinja.string(), read_file(jinja, kMaxBytes)};
  if (!std::filesystem::exists(config, ec)) return {};
  const Json doc = read_json(config);
  const Json* t = JsonObject(&doc, config.string()).find({"chat_template"});
  if (!t) return {};
  OwnTemplate own{config.string() + ": chat_template", {}};
  if (t->is_string()) {
    own.text = t->get<std::string>();
  } else if (t->is_array()) {
    for (const Json& named : *t) own.text += JsonObject(&named, own.file).string_or({"template"}, "") + "\n";
  } else {
    JsonObject(&doc, config.string()).fail("chat_template", "a string or a list of named templates", brief(*t));
  }
  return own;
}

// FNV-1a of the text without white space and the dashes that only trim it, so that formatting does not count.
uint64_t fingerprint(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text)
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r' && c != '-') h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

// Templates whose rendering by transformers is recorded and compared with KimiChat's: kadence-tiny's.
constexpr std::array<uint64_t, 1> kKnownKimiTemplates = {0xaffd4ecfa3bb51f7};

void compare_with_kimi(const OwnTemplate& own) {
  const uint64_t print = fingerprint(own.text);
  if (std::find(kKnownKimiTemplates.begin(), kKnownKimiTemplates.end(), print) != kKnownKimiTemplates.end()) return;
  const std::set<std::string> known = {"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>",
                                       "<|im_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                                       // of pictures, which no message here has
                                       "<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"};
  const auto refuse = [&](const std::string& why) {
    base::throw_error(
        base::ErrorCode::kUnsupported,
        own.file + ": wanted the chat form of kimi_linear (the only one implemented), got a template " + why);
  };
  for (size_t at = 0; (at = own.text.find("<|", at)) != std::string::npos; ++at) {
    const size_t end = own.text.find("|>", at);
    if (end == std::string::npos) break;
    const std::string token = own.text.substr(at, end + 2 - at);
    if (token.find_first_of(" \n{}'\"") == std::string::npos && !known.count(token))
      refuse("with " + token.substr(0, 60));
  }
  for (const char* token : {"<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"})
    if (own.text.find(token) == std::string::npos) refuse(std::string("without ") + token);
  base::log(base::LogLevel::kWarning,
            own.file +
                ": this template is not known to render as the built-in chat form of kimi_linear, which is used "
                "instead of it: compare prompts (default system messages, tools) before relying on them");
}

}  // namespace

std::unique_ptr<ChatTemplate> make_chat_template(const ModelConfig& config, const std::filesystem::path& dir) {
  auto chat = make_chat_template(config);
  if (const OwnTemplate own = own_template(dir); !own.file.empty()) compare_with_kimi(own);
  return chat;
}

std::unique_ptr<ChatTemplate> make_chat_template(const ModelConfig& config) {
  if (config.architecture == "kimi_linear") return std::make_unique<KimiChat>();
  base::throw_error(base::ErrorCode::kUnsupported,
                    "chat template: architecture " + config.architecture + " has none; families that do: kimi_linear");
}

}  // namespace kadence::model
