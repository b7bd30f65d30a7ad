// Chat transcripts to prompts, one renderer a family (no Jinja): a checkpoint's own template is compared, never run.
#pragma once

#include <filesystem>
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
// The same for the checkpoint in `dir`, whose own template (chat_template.jinja, else chat_template of
// tokenizer_config.json) must be that renderer's: one that uses other control tokens is refused with
// Error{kUnsupported} naming the file, one that is merely not known to render the same is named in a logged warning.
// Error{kIo} if it cannot be read.
std::unique_ptr<ChatTemplate> make_chat_template(const ModelConfig& config, const std::filesystem::path& dir);

}  // namespace kadence::model
