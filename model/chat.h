// Chat transcripts to prompts, one renderer a family (no Jinja).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tokenizer.h"

namespace kadence::model {

struct ToolCall {
  std::string id, name, arguments;  // arguments: JSON text
};
struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  // The prompt text, control tokens spelled out. `tools`: JSON array text or empty. Throws Error{kInvalidArgument} on
  // an unknown role.
  virtual std::string render(const std::vector<ChatMessage>& messages, const std::string& tools_json,
                             bool add_generation_prompt) const = 0;
  // The same as ids, segment by segment: a control token spelled inside a message's content stays text (no prompt
  // injection).
  virtual std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                                      const std::string& tools_json, bool add_generation_prompt) const = 0;
  virtual std::vector<std::string> stop_tokens() const = 0;
};

// The renderer of a family; Error{kUnsupported} names the families that have one.
std::unique_ptr<ChatTemplate> make_chat_template(const ModelConfig& config);

}  // namespace kadence::model
