// Request bodies to requests. Every field is typed; what OpenAI or others know but we do not serve is refused by its
// name; unknown fields are tolerated.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api.h"

namespace kadence::server {

// None of these throws, whatever the bytes.
std::variant<ApiRequest, ApiError> parse_completion(std::string_view body, const ApiContext& context);
std::variant<ApiRequest, ApiError> parse_chat(std::string_view body, const ApiContext& context);

struct TokenizeRequest {
  std::vector<int32_t> ids;
  bool predict = false;  // say what the cache would give
  std::string cache_salt;
};
// {"prompt": text} or {"messages": [..], "tools": [..], "add_generation_prompt": true}, optional "add_special": control
// tokens spelled out in the prompt become their ids (default true), "predict_cached_tokens", "cache_salt".
std::variant<TokenizeRequest, ApiError> parse_tokenize(std::string_view body, const ApiContext& context);
// {"tokens": [..]} -> ids, all of the vocabulary.
std::variant<std::vector<int32_t>, ApiError> parse_detokenize(std::string_view body, const ApiContext& context);

}  // namespace kadence::server
