// Lines of `kadence score`: one JSON object each, checked field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/table.h"
#include "base/result.h"
#include "engine/engine.h"
#include "model/tokenizer.h"

namespace kadence::apps {

struct ScoreLimits {
  int32_t vocab = 0;
  const model::Tokenizer* tokenizer = nullptr;  // null: {"text": ..} is refused
};

// A request from one line of input, or what is wrong with it, in words:
//   {"ids": [..]} or {"text": ".."}, optional "from" (1..n; n = nothing scored, the default), "cache" (default true),
//   "max_tokens" (default 0), "ignore_eos" (default true). Other fields are refused, and one given twice.
base::Result<engine::RequestSpec> parse_score_line(std::string_view line, const ScoreLimits& limits);

// {"logprobs", "cached_tokens", "prefill_ms", "output_ids", "output_logprobs"}, or {"error"}. With `generated` (the
// line asked for tokens) also "finish_reason": "stop", or "length" at max_tokens and where the context or the pools
// end.
Json score_answer(const engine::RequestOutput& output, bool generated);
Json score_error(const std::string& reason);
// One line of JSON without its newline; bytes that are no UTF-8 become U+FFFD.
std::string one_line(const Json& json);

}  // namespace kadence::apps
