#include "server/openai_parse.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "server/parse_detail.h"

namespace kadence::server {
namespace detail {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 4'000'000;                        // of one body: bounds the memory of its tree
constexpr size_t kMaxMembers = 1024, kMaxAllMembers = 500'000;  // of an object, of all objects
constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024;
constexpr size_t kMaxSalt = 256;

std::string brief(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = dump(value);
  constexpr size_t kShown = 40;
  if (text.size() > kShown) {
    size_t cut = kShown;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
    text = text.substr(0, cut) + "..";
  }
  return text;
}
// Bounds nesting and size before a tree is built; members of an object, too, because the tree, which keeps the order of
// keys, looks through those it has for each new one.
void check_shape(std::string_view text) {
  int depth = 0;
  size_t values = 0, members = 0, own[kMaxDepth + 1] = {};  // own: members of the object at that depth
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) refuse("the JSON is nested deeper than " + std::to_string(kMaxDepth) + " levels");
      own[depth] = 0;
      ++values;
    } else if (c == ']' || c == '}') {
      depth = std::max(depth - 1, 0);
    } else if (c == ',') {
      ++values;
    } else if (c == ':') {
      ++members;
      if (++own[depth] > kMaxMembers)
        refuse("the JSON has an object of more than " + std::to_string(kMaxMembers) + " members", {}, {}, 413);
    }
  }
  if (members > kMaxAllMembers)
    refuse("the JSON's objects have more than " + std::to_string(kMaxAllMembers) + " members", {}, {}, 413);
  if (values > kMaxValues) refuse("the JSON has more than " + std::to_string(kMaxValues) + " values", {}, {}, 413);
}

int32_t token_id(const Json& value, const std::string& field, const ApiContext& context) {
  const std::string wanted = "a token id from 0 to " + std::to_string(context.vocab - 1);
  if (!value.is_number_integer()) wrong(field, wanted, value);
  if (value.is_number_unsigned() ? value.get<uint64_t>() >= static_cast<uint64_t>(context.vocab)
                                 : value.get<int64_t>() < 0 || value.get<int64_t>() >= context.vocab)
    wrong(field, wanted, value);
  return value.get<int32_t>();
}
}  // namespace

[[noreturn]] void refuse(std::string message, std::string param, std::string code, int status) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  e.param = std::move(param);
  e.code = std::move(code);
  throw e;
}
[[noreturn]] void wrong(const std::string& field, const std::string& wanted, const Json& got) {
  refuse(field + ": wanted " + wanted + ", got " + brief(got), field, "invalid_value");
}
Json parse_object(std::string_view body) {
  check_shape(body);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::exception& e) {
    refuse(std::string("the body is not valid JSON: ") + e.what(), {}, "invalid_json");
  }
  if (!json.is_object()) refuse("the body must be a JSON object, got " + brief(json), {}, "invalid_json");
  return json;
}
std::vector<int32_t> token_ids(const Json& list, const std::string& field, const ApiContext& context) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& v : list) ids.push_back(token_id(v, field, context));
  return ids;
}

const model::Tokenizer& need_tokenizer(const ApiContext& context, const std::string& field) {
  if (context.tokenizer == nullptr) refuse(field + ": the model has no tokenizer: give token ids", field);
  return *context.tokenizer;
}

void refuse_long(const std::string& field, const std::string& what, const ApiContext& context) {
  refuse("This model's maximum context length is " + std::to_string(context.context_length) + " tokens; " + field +
             " has " + what,
         field, "context_length_exceeded");
}
void check_length(const std::vector<int32_t>& ids, int32_t max_tokens, const std::string& field,
                  const ApiContext& context) {
  if (ids.empty()) refuse(field + " is empty: at least one token is needed", field, "invalid_value");
  const auto n = static_cast<int64_t>(ids.size());
  if (n + (max_tokens > 0 ? 1 : 0) > context.context_length)
    refuse_long(field, std::to_string(n) + (max_tokens > 0 ? " and needs one more to generate" : ""), context);
}
void parse_common(const Fields& f, const ApiContext& context, ApiRequest& r) {
  const std::optional<std::string> model = f.text("model");
  if (model && *model != context.model_name)
    refuse("The model '" + model->substr(0, 200) + "' does not exist; this server has '" + context.model_name + "'",
           "model", "model_not_found", 404);
  r.n = static_cast<int32_t>(f.integer("n", 1, 1, context.max_choices));
  auto& s = r.sampling;
  s.temperature = f.number("temperature", 1, 0, 100, "a number from 0 to 100");
  s.top_p = f.number("top_p", 1, std::numeric_limits<float>::min(), 1, "a number above 0, at most 1");
  s.top_k = static_cast<int32_t>(f.integer("top_k", 0, -1, 1 << 30));
  if (s.top_k < 0) s.top_k = 0;
  s.min_p = f.number("min_p", 0, 0, 1, "a number from 0 to 1");
  s.repetition_penalty = f.number("repetition_penalty", 1, 1e-3, 1e3, "a number from 0.001 to 1000");
  s.presence_penalty = f.number("presence_penalty", 0, -2, 2, "a number from -2 to 2");
  s.frequency_penalty = f.number("frequency_penalty", 0, -2, 2, "a number from -2 to 2");
  if (f.get("seed") != nullptr) {
    s.seed = static_cast<uint64_t>(
        f.integer("seed", 0, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  } else if (s.temperature > 0) {
    thread_local std::mt19937_64 draw{std::random_device{}()};
    s.seed = draw();
  }
  if (const Json* stop = f.get("stop")) {
    const auto add = [&](const Json& v) {
      if (!v.is_string()) wrong("stop", "a string or a list of strings", v);
      const auto& text = v.get_ref<const std::string&>();
      if (text.empty() || text.size() > kMaxStopBytes)
        refuse("stop: wanted strings of 1 to " + std::to_string(kMaxStopBytes) + " bytes", "stop", "invalid_value");
      r.stop.push_back(text);
    };
    if (stop->is_array()) {
      if (stop->size() > kMaxStops)
        refuse("stop: wanted at most " + std::to_string(kMaxStops) + " strings, got " + std::to_string(stop->size()),
               "stop", "invalid_value");
      for (const Json& v : *stop) add(v);
    } else {
      add(*stop);
    }
    if (!r.stop.empty()) need_tokenizer(context, "stop");
  }
  if (const Json* ids = f.list("stop_token_ids")) r.stop_ids = token_ids(*ids, "stop_token_ids", context);
  r.ignore_eos = f.boolean("ignore_eos", false);
  r.use_cache = f.boolean("use_cache", true);
  r.cache_salt = f.text("cache_salt").value_or("");
  if (r.cache_salt.size() > kMaxSalt)
    refuse("cache_salt: wanted at most " + std::to_string(kMaxSalt) + " bytes", "cache_salt", "invalid_value");
  r.stream = f.boolean("stream", false);
  if (const Json* options = f.object("stream_options")) {
    if (!r.stream) refuse("stream_options is for stream: true only", "stream_options", "invalid_value");
    const Fields o(*options, "stream_options.");
    r.include_usage = o.boolean("include_usage", false);
    o.unserved("continuous_usage_stats", false);
  }
  f.text("user");
  f.unserved("logit_bias", Json::object());
  f.unserved("use_beam_search", false);
  f.unserved("length_penalty", 1);
  f.unserved("prompt_logprobs");
  f.unserved("priority", 0);
  f.unserved("min_tokens", 0);
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "logits_processors",
        "kv_transfer_params", "prompt_embeds", "chat_template", "chat_template_kwargs", "documents", "grammar",
        "json_schema", "bad_words", "truncate_prompt_tokens", "allowed_token_ids"})
    f.unserved(name);
}
}  // namespace detail

namespace {

using namespace detail;

std::vector<int32_t> encode(std::string_view text, bool special, const std::string& field, const ApiContext& context) {
  const model::Tokenizer& tokenizer = need_tokenizer(context, field);
  if (context.longest_token > 0 &&
      text.size() / context.longest_token > static_cast<size_t>(context.context_length))  // no need to read it
    refuse_long(field, "more than " + std::to_string(text.size() / context.longest_token), context);
  return tokenizer.encode(text, special);
}
std::vector<std::vector<int32_t>> parse_prompts(const Fields& f, const ApiContext& context) {
  const Json* prompt = f.get("prompt");
  if (prompt == nullptr) refuse("prompt is missing", "prompt", "missing_required_parameter");
  const std::string wanted = "a string, a list of strings, a list of token ids or a list of lists of token ids";
  std::vector<std::vector<int32_t>> prompts;
  if (prompt->is_string()) {
    prompts.push_back(encode(prompt->get_ref<const std::string&>(), true, "prompt", context));
    return prompts;
  }
  if (!prompt->is_array()) wrong("prompt", wanted, *prompt);
  if (prompt->empty()) refuse("prompt is an empty list", "prompt", "invalid_value");
  if (prompt->front().is_number()) {
    prompts.push_back(token_ids(*prompt, "prompt", context));
    return prompts;
  }
  if (prompt->size() > static_cast<size_t>(context.max_choices))
    refuse("prompt: wanted at most " + std::to_string(context.max_choices) + " prompts, got " +
               std::to_string(prompt->size()),
           "prompt", "invalid_value");
  const bool texts = prompt->front().is_string();
  for (const Json& one : *prompt) {
    if (texts ? !one.is_string() : !one.is_array()) wrong("prompt", wanted + ", not mixed", one);
    prompts.push_back(texts ? encode(one.get_ref<const std::string&>(), true, "prompt", context)
                            : token_ids(one, "prompt", context));
  }
  return prompts;
}
}  // namespace

engine::RequestSpec ApiRequest::spec(int32_t choice) const {
  engine::RequestSpec s;
  s.ids = prompts[static_cast<size_t>(choice / n)];
  if (echo && logprobs) s.score_from = 1;
  s.max_tokens = max_tokens;
  s.sampling = sampling;
  s.sampling.seed += static_cast<uint64_t>(choice % n) * 0x9e3779b97f4a7c15u;
  s.stop_ids = stop_ids;
  s.ignore_eos = ignore_eos;
  if (echo && logprobs && max_tokens == 1) {
    // Scoring: clients drop the last of n + 1 log-probs, so it must be there even when the model would end.
    s.ignore_eos = true;
    s.stop_ids.clear();
  }
  s.use_cache = use_cache;
  s.cache_salt = cache_salt;
  s.output_logprobs = logprobs;
  s.top_logprobs = top_logprobs;
  s.early_scores = stream && echo && logprobs;
  if (json) s.constraint = json_constraint(texts);
  if (tool_constraint) s.constraint = server::tool_constraint(texts, *tool_constraint);
  return s;
}

std::variant<ApiRequest, ApiError> parse_completion(std::string_view body, const ApiContext& context) {
  return guarded<ApiRequest>([&]() -> ApiRequest {
    const Json json = parse_object(body);
    const Fields f(json);
    ApiRequest r;
    r.kind = ApiKind::kCompletion;
    parse_common(f, context, r);
    r.max_tokens = static_cast<int32_t>(f.integer("max_tokens", 16, 0, std::numeric_limits<int32_t>::max()));
    f.unserved("best_of", 1);
    f.unserved("suffix", "");
    f.unserved("response_format", Json{{"type", "text"}});
    r.echo = f.boolean("echo", false);
    if (f.get("logprobs") != nullptr) {
      r.logprobs = true;
      r.top_logprobs = static_cast<int32_t>(f.integer("logprobs", 0, 0, std::min(kMaxTopLogprobs, context.vocab)));
    }
    r.prompts = parse_prompts(f, context);
    for (const auto& ids : r.prompts) check_length(ids, r.max_tokens, "prompt", context);
    if (r.choices() > context.max_choices)
      refuse("prompts times n: wanted at most " + std::to_string(context.max_choices) + ", got " +
                 std::to_string(r.choices()),
             "n", "invalid_value");
    return r;
  });
}
std::variant<TokenizeRequest, ApiError> parse_tokenize(std::string_view body, const ApiContext& context) {
  return guarded<TokenizeRequest>([&]() -> TokenizeRequest {
    const Json json = parse_object(body);
    const Fields f(json);
    f.text("model");
    TokenizeRequest r;
    r.predict = f.boolean("predict_cached_tokens", false);
    r.cache_salt = f.text("cache_salt").value_or("");
    if ((f.get("prompt") != nullptr) == (f.get("messages") != nullptr))
      refuse("wanted one of prompt and messages", "prompt", "missing_required_parameter");
    if (f.get("messages") != nullptr) {
      r.ids = parse_transcript(f, f.boolean("add_generation_prompt", true), context);
    } else {
      r.ids = need_tokenizer(context, "prompt").encode(*f.text("prompt"), f.boolean("add_special", true));
    }
    return r;
  });
}

std::variant<std::vector<int32_t>, ApiError> parse_detokenize(std::string_view body, const ApiContext& context) {
  return guarded<std::vector<int32_t>>([&]() -> std::vector<int32_t> {
    const Json json = parse_object(body);
    const Fields f(json);
    f.text("model");
    need_tokenizer(context, "tokens");
    const Json* tokens = f.list("tokens");
    if (tokens == nullptr) refuse("tokens is missing", "tokens", "missing_required_parameter");
    return token_ids(*tokens, "tokens", context);
  });
}

}  // namespace kadence::server
