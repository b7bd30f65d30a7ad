// What the API's requests mean once they are parsed, and its errors. No JSON here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "server/constraint.h"

namespace kadence::server {

// An error in OpenAI's form: {"error": {message, type, param, code}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param, code;  // empty = null
};

// What parsing needs to know of the model. Everything here outlives the requests and is read by several threads.
struct ApiContext {
  const model::Tokenizer* tokenizer = nullptr;  // null: ids only
  const model::ChatTemplate* chat = nullptr;    // null: no chat
  std::shared_ptr<const TokenTexts> texts;      // of the tokenizer; null: no constrained answers
  std::string model_name;
  int32_t vocab = 0;
  int64_t context_length = 0;
  size_t longest_token = 0;   // bytes; 0 = unknown. A text of more than context_length times this is refused unread
  int32_t max_choices = 128;  // prompts times n of one request
};

enum class ApiKind : uint8_t { kCompletion, kChat };

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::vector<std::vector<int32_t>> prompts;  // one for a chat
  int32_t n = 1;
  int32_t max_tokens = 16;
  ops::SamplingParams sampling;  // seed of choice 0; see spec()
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false, use_cache = true;
  bool stream = false, include_usage = false, echo = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool tools = false;  // calls are looked for in what the model says
  bool json = false;   // the answer must be a JSON object
  std::optional<ToolConstraintOptions> tool_constraint;
  std::shared_ptr<const TokenTexts> texts;
  std::string cache_salt;

  int32_t choices() const { return static_cast<int32_t>(prompts.size()) * n; }
  // Choice c belongs to prompt c / n. Choices of one prompt differ in their seed only, the first has the request's.
  engine::RequestSpec spec(int32_t choice) const;
};

}  // namespace kadence::server
