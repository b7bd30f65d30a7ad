#include "apps/score_line.h"

#include <fmt/core.h>

#include <limits>
#include <set>
#include <stdexcept>

#include "apps/numbers.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

constexpr int kMaxDepth = 8;

struct BadLine : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string brief(std::string text) {
  constexpr size_t kShown = 40;
  if (text.size() > kShown) {
    size_t cut = kShown;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
    text = text.substr(0, cut) + "..";
  }
  return text;
}
std::string brief(const Json& value) { return brief(one_line(value)); }

// An integer in [min, max]; 3.0 and "3" are none.
int64_t integer(const Json& value, const std::string& field, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() &&
                      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max)
    throw BadLine(fmt::format("\"{}\": wanted an integer from {} to {}, got {}", field, min, max, brief(value)));
  return value.get<int64_t>();
}

bool boolean(const Json& value, const std::string& field) {
  if (!value.is_boolean()) throw BadLine(fmt::format("\"{}\": wanted true or false, got {}", field, brief(value)));
  return value.get<bool>();
}

std::vector<int32_t> prompt_of(const Json& line, const ScoreLimits& limits) {
  const bool has_ids = line.contains("ids"), has_text = line.contains("text");
  if (has_ids == has_text)
    throw BadLine(has_ids ? "both \"ids\" and \"text\" given: wanted one of them"
                          : "neither \"ids\" nor \"text\" given");
  std::vector<int32_t> ids;
  if (has_ids) {
    const Json& list = line["ids"];
    if (!list.is_array()) throw BadLine(fmt::format("\"ids\": wanted a list of integers, got {}", brief(list)));
    ids.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i)
      ids.push_back(static_cast<int32_t>(integer(list[i], fmt::format("ids[{}]", i), 0, limits.vocab - 1)));
  } else {
    const Json& text = line["text"];
    if (!text.is_string()) throw BadLine(fmt::format("\"text\": wanted a string, got {}", brief(text)));
    if (limits.tokenizer == nullptr) throw BadLine("\"text\": the model has no tokenizer, give \"ids\"");
    ids = limits.tokenizer->encode(text.get<std::string>(), true);
  }
  if (ids.empty()) throw BadLine("the prompt is empty: at least one token is needed");
  return ids;
}

}  // namespace

std::string one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

base::Result<engine::RequestSpec> parse_score_line(std::string_view text, const ScoreLimits& limits) {
  using Answer = base::Result<engine::RequestSpec>;
  if (text.find_first_not_of(" \t\r") == std::string_view::npos)
    return Answer::failure("empty line: wanted a JSON object");
  try {
    std::set<std::string> fields;
    const Json line = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& key) {
      if (depth > kMaxDepth) throw BadLine(fmt::format("nested deeper than {} levels", kMaxDepth));
      if (event == Json::parse_event_t::key && depth == 1 && !fields.insert(key.get<std::string>()).second)
        throw BadLine(fmt::format("field {} is given twice", brief(key)));
      return true;
    });
    if (!line.is_object()) throw BadLine(fmt::format("wanted a JSON object, got {}", brief(line)));
    for (const auto& [key, value] : line.items()) {
      if (key != "ids" && key != "text" && key != "from" && key != "cache" && key != "max_tokens" &&
          key != "ignore_eos")
        throw BadLine(
            fmt::format("unknown field \"{}\": known are ids, text, from, cache, max_tokens, ignore_eos", brief(key)));
    }
    engine::RequestSpec spec;
    spec.ids = prompt_of(line, limits);
    const auto n = static_cast<int64_t>(spec.ids.size());
    if (line.contains("from")) {
      const int64_t from = integer(line["from"], "from", 1, n);
      if (from < n) spec.score_from = from;
    }
    if (line.contains("cache")) spec.use_cache = boolean(line["cache"], "cache");
    if (line.contains("max_tokens"))
      spec.max_tokens =
          static_cast<int32_t>(integer(line["max_tokens"], "max_tokens", 0, std::numeric_limits<int32_t>::max()));
    spec.ignore_eos = !line.contains("ignore_eos") || boolean(line["ignore_eos"], "ignore_eos");
    spec.output_logprobs = true;
    return spec;
  } catch (const BadLine& e) {
    return Answer::failure(e.what());
  } catch (const Json::exception& e) {
    return Answer::failure(std::string("not valid JSON: ") + e.what());
  } catch (const base::Error& e) {
    return Answer::failure(e.what());
  }
}

Json score_answer(const engine::RequestOutput& out, bool generated) {
  if (out.reason == engine::FinishReason::kError || out.reason == engine::FinishReason::kCancelled)
    return score_error(out.error.empty() ? "the request was cancelled" : out.error);
  Json answer = Json::object();
  answer["logprobs"] = shortest(out.logprobs);
  answer["cached_tokens"] = out.cached_tokens;
  answer["prefill_ms"] = shortest(static_cast<float>(out.prefill_seconds * 1e3));
  answer["output_ids"] = out.output_ids;
  answer["output_logprobs"] = shortest(out.output_logprobs);
  if (generated) answer["finish_reason"] = engine::to_string(out.reason);
  return answer;
}

Json score_error(const std::string& reason) {
  Json answer = Json::object();
  answer["error"] = reason;
  return answer;
}

}  // namespace kadence::apps
