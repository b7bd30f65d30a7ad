// Answers in OpenAI's form. Everything returns finished text: one line of JSON, or server-sent events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api.h"
#include "server/choice_text.h"
#include "server/http.h"

namespace kadence::server {

HttpResponse format_error(const ApiError& error);
// The error object alone, as a streamed event's data.
std::string error_json(const ApiError& error);
ApiError server_error(int status, std::string message, std::string code = {});

// "data: <json>\n\n"
std::string sse_event(std::string_view json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

struct Usage {
  int64_t prompt = 0, completion = 0, cached = 0;
};

// One choice, complete.
struct ChoiceAnswer {
  std::string text;  // echo included
  std::vector<ChoiceText::ToolDelta> tools;
  // Of prompt (echo) and generated tokens. The first prompt token has no log-prob: `has_logprob` false.
  struct Scored {
    ChoiceText::Entry entry;
    bool has_logprob = true;
  };
  std::vector<Scored> scored;
  std::string finish_reason;
};

// What all answers and chunks of one request begin with.
class Formatter {
 public:
  Formatter(const ApiRequest& request, const ApiContext& context, std::string id, int64_t created);

  std::string answer(const std::vector<ChoiceAnswer>& choices, const Usage& usage) const;
  // Events. `finish_reason` empty = null.
  std::string role_chunk(int32_t choice) const;
  std::string chunk(int32_t choice, std::string_view text, const std::vector<ChoiceText::ToolDelta>& tools,
                    const std::vector<ChoiceAnswer::Scored>& scored, std::string_view finish_reason) const;
  std::string usage_chunk(const Usage& usage) const;

 private:
  bool chat_, logprobs_, usage_;
  int32_t top_logprobs_;
  const ApiContext& context_;
  std::string head_, chunk_head_;
};

}  // namespace kadence::server
