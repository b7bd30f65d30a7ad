#include "server/openai_parse.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>

#include "base/error.h"
#include "server/json.h"

namespace kadence::server {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 4'000'000;  // of one body: bounds the memory of its tree
constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024;
constexpr size_t kMaxSalt = 256;
constexpr int32_t kMaxTopLogprobs = 20;

[[noreturn]] void refuse(std::string message, std::string param = {}, std::string code = {}, int status = 400) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  e.param = std::move(param);
  e.code = std::move(code);
  throw e;
}

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

[[noreturn]] void wrong(const std::string& field, const std::string& wanted, const Json& got) {
  refuse(field + ": wanted " + wanted + ", got " + brief(got), field, "invalid_value");
}

// Bounds nesting and size before a tree is built.
void check_shape(std::string_view text) {
  int depth = 0;
  size_t values = 0;
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
      ++values;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
  }
  if (values > kMaxValues) refuse("the JSON has more than " + std::to_string(kMaxValues) + " values", {}, {}, 413);
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

// Typed reading of one object's fields; null counts as absent.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  const Json* get(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::string path(const char* name) const { return prefix_ + name; }

  int64_t integer(const char* name, int64_t otherwise, int64_t min, int64_t max) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    const std::string wanted = "an integer from " + std::to_string(min) + " to " + std::to_string(max);
    if (!v->is_number_integer()) wrong(path(name), wanted, *v);
    if (v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      wrong(path(name), wanted, *v);
    const auto i = v->get<int64_t>();
    if (i < min || i > max) wrong(path(name), wanted, *v);
    return i;
  }
  float number(const char* name, float otherwise, double min, double max, const char* wanted) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    if (!v->is_number()) wrong(path(name), wanted, *v);
    const auto d = v->get<double>();
    if (!(d >= min && d <= max)) wrong(path(name), wanted, *v);
    return static_cast<float>(d);
  }
  bool boolean(const char* name, bool otherwise) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    if (!v->is_boolean()) wrong(path(name), "true or false", *v);
    return v->get<bool>();
  }
  std::optional<std::string> text(const char* name) const {
    const Json* v = get(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_string()) wrong(path(name), "a string", *v);
    return v->get<std::string>();
  }
  const Json* list(const char* name) const {
    const Json* v = get(name);
    if (v != nullptr && !v->is_array()) wrong(path(name), "a list", *v);
    return v;
  }
  const Json* object(const char* name) const {
    const Json* v = get(name);
    if (v != nullptr && !v->is_object()) wrong(path(name), "an object", *v);
    return v;
  }

  // Known fields that are not served: absent, null and their neutral value pass.
  void unserved(const char* name, const Json& neutral = nullptr) const {
    const Json* v = get(name);
    if (v == nullptr || (!neutral.is_null() && *v == neutral)) return;
    refuse(path(name) + " is not supported by this server", path(name), "unsupported_parameter");
  }

 private:
  const Json& object_;
  std::string prefix_;
};

int32_t token_id(const Json& value, const std::string& field, const ApiContext& context) {
  const std::string wanted = "a token id from 0 to " + std::to_string(context.vocab - 1);
  if (!value.is_number_integer()) wrong(field, wanted, value);
  if (value.is_number_unsigned() ? value.get<uint64_t>() >= static_cast<uint64_t>(context.vocab)
                                 : value.get<int64_t>() < 0 || value.get<int64_t>() >= context.vocab)
    wrong(field, wanted, value);
  return value.get<int32_t>();
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

std::vector<int32_t> encode(std::string_view text, bool special, const std::string& field, const ApiContext& context) {
  const model::Tokenizer& tokenizer = need_tokenizer(context, field);
  if (context.longest_token > 0 &&
      text.size() / context.longest_token > static_cast<size_t>(context.context_length))  // no need to read it
    refuse_long(field, "more than " + std::to_string(text.size() / context.longest_token), context);
  return tokenizer.encode(text, special);
}

void check_length(const std::vector<int32_t>& ids, int32_t max_tokens, const std::string& field,
                  const ApiContext& context) {
  if (ids.empty()) refuse(field + " is empty: at least one token is needed", field, "invalid_value");
  const auto n = static_cast<int64_t>(ids.size());
  if (n + (max_tokens > 0 ? 1 : 0) > context.context_length)
    refuse_long(field, std::to_string(n) + (max_tokens > 0 ? " and needs one more to generate" : ""), context);
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

// What completions and chats share.
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

std::string text_content(const Json& content, const std::string& field) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) wrong(field, "a string or a list of text parts", content);
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object()) wrong(field, "a list of parts, each an object with a type", part);
    const Fields p(part, field + ".");
    const std::string type = p.text("type").value_or("");
    if (type != "text")
      refuse(field + ": parts of type '" + type.substr(0, 40) + "' are not supported, only text", field,
             "unsupported_parameter");
    const auto piece = p.text("text");
    if (!piece) refuse(field + ": a text part has no text", field, "invalid_value");
    text += *piece;
  }
  return text;
}

model::ToolCall parse_tool_call(const Json& call, const std::string& field) {
  if (!call.is_object()) wrong(field, "an object", call);
  const Fields c(call, field + ".");
  if (c.text("type").value_or("function") != "function")
    refuse(field + ": only calls of type function are supported", field, "unsupported_parameter");
  const Json* function = c.object("function");
  if (function == nullptr) refuse(field + ".function is missing", field, "missing_required_parameter");
  const Fields fn(*function, field + ".function.");
  model::ToolCall out;
  out.id = c.text("id").value_or("");
  out.name = fn.text("name").value_or("");
  out.arguments = fn.text("arguments").value_or("");
  if (out.id.empty()) refuse(field + ".id is missing", field, "missing_required_parameter");
  return out;
}

std::vector<model::ChatMessage> parse_messages(const Fields& f) {
  const Json* list = f.list("messages");
  if (list == nullptr || list->empty())
    refuse("messages: wanted a list of at least one message", "messages", "missing_required_parameter");
  std::vector<model::ChatMessage> messages;
  messages.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string field = "messages[" + std::to_string(i) + "]";
    const Json& one = (*list)[i];
    if (!one.is_object()) wrong(field, "an object with role and content", one);
    const Fields m(one, field + ".");
    model::ChatMessage message;
    message.role = m.text("role").value_or("");
    if (message.role == "developer") message.role = "system";
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool")
      refuse(
          field + ".role: wanted system, developer, user, assistant or tool, got '" + message.role.substr(0, 40) + "'",
          field + ".role", "invalid_value");
    if (message.role != "tool") m.unserved("name");
    m.unserved("function_call");
    m.unserved("audio");
    m.unserved("prefix", false);
    if (const Json* calls = m.list("tool_calls"); calls != nullptr && !calls->empty()) {
      if (message.role != "assistant")
        refuse(field + ".tool_calls: only assistants call tools", field, "invalid_value");
      for (size_t c = 0; c < calls->size(); ++c)
        message.tool_calls.push_back(parse_tool_call((*calls)[c], field + ".tool_calls[" + std::to_string(c) + "]"));
    }
    const Json* content = m.get("content");
    if (content != nullptr)
      message.content = text_content(*content, field + ".content");
    else if (message.role != "assistant")
      refuse(field + ".content is missing", field + ".content", "missing_required_parameter");
    message.tool_call_id = m.text("tool_call_id").value_or("");
    if (message.role == "tool" && message.tool_call_id.empty())
      refuse(field + ".tool_call_id is missing", field + ".tool_call_id", "missing_required_parameter");
    messages.push_back(std::move(message));
  }
  return messages;
}

// The tools as compact JSON; empty = none.
std::string parse_tools(const Fields& f) {
  const Json* tools = f.list("tools");
  if (tools == nullptr || tools->empty()) return {};
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string field = "tools[" + std::to_string(i) + "]";
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) wrong(field, "an object", tool);
    const Fields t(tool, field + ".");
    if (t.text("type").value_or("") != "function")
      refuse(field + ".type: only function is supported", field + ".type", "unsupported_parameter");
    const Json* function = t.object("function");
    if (function == nullptr) refuse(field + ".function is missing", field, "missing_required_parameter");
    const Fields fn(*function, field + ".function.");
    if (fn.text("name").value_or("").empty())
      refuse(field + ".function.name is missing", field + ".function.name", "missing_required_parameter");
    fn.text("description");
    fn.object("parameters");
    fn.unserved("strict", false);
  }
  return dump(*tools);
}

void encode_chat(const std::vector<model::ChatMessage>& messages, const std::string& tools, bool generation,
                 const ApiContext& context, std::vector<int32_t>& ids) {
  const model::Tokenizer& tokenizer = need_tokenizer(context, "messages");
  if (context.chat == nullptr) refuse("messages: this model has no chat form", "messages", "unsupported_parameter");
  size_t bytes = tools.size();
  for (const auto& m : messages) bytes += m.content.size();
  if (context.longest_token > 0 && bytes / context.longest_token > static_cast<size_t>(context.context_length))
    refuse_long("messages", "more than " + std::to_string(bytes / context.longest_token), context);
  try {
    ids = context.chat->encode(tokenizer, messages, tools, generation);
  } catch (const base::Error& e) {
    refuse(e.what(), "messages", e.code() == base::ErrorCode::kUnsupported ? "unsupported_parameter" : "invalid_value");
  }
}

bool parse_tool_choice(const Fields& f) {
  const Json* choice = f.get("tool_choice");
  if (choice == nullptr) return true;
  if (choice->is_string()) {
    const auto& text = choice->get_ref<const std::string&>();
    if (text == "auto") return true;
    if (text == "none") return false;
    if (text == "required")
      refuse("tool_choice 'required' is not supported, only auto and none", "tool_choice", "unsupported_parameter");
  } else if (choice->is_object()) {
    refuse("tool_choice of a named function is not supported, only auto and none", "tool_choice",
           "unsupported_parameter");
  }
  wrong("tool_choice", "auto or none", *choice);
}

template <class T, class F>
std::variant<T, ApiError> guarded(F work) {
  try {
    return work();
  } catch (const ApiError& e) {
    return e;
  } catch (const base::Error& e) {
    ApiError error;
    error.message = e.what();
    return error;
  } catch (const std::bad_alloc&) {
    ApiError error;
    error.status = 503;
    error.type = "server_error";
    error.message = "out of memory";
    return error;
  } catch (const std::exception&) {
    ApiError error;
    error.status = 500;
    error.type = "server_error";
    error.message = "internal error";
    return error;
  }
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
    if (r.stream && r.echo && r.logprobs)
      refuse("echo with logprobs cannot be streamed: the prompt's log-probs come with the end", "stream",
             "unsupported_parameter");
    r.prompts = parse_prompts(f, context);
    for (const auto& ids : r.prompts) check_length(ids, r.max_tokens, "prompt", context);
    if (r.choices() > context.max_choices)
      refuse("prompts times n: wanted at most " + std::to_string(context.max_choices) + ", got " +
                 std::to_string(r.choices()),
             "n", "invalid_value");
    return r;
  });
}

std::variant<ApiRequest, ApiError> parse_chat(std::string_view body, const ApiContext& context) {
  return guarded<ApiRequest>([&]() -> ApiRequest {
    const Json json = parse_object(body);
    const Fields f(json);
    ApiRequest r;
    r.kind = ApiKind::kChat;
    parse_common(f, context, r);
    const int64_t most = std::numeric_limits<int32_t>::max();
    const int64_t max_tokens = f.integer("max_tokens", most, 0, most);
    r.max_tokens = static_cast<int32_t>(f.integer("max_completion_tokens", max_tokens, 0, most));
    r.logprobs = f.boolean("logprobs", false);
    r.top_logprobs = static_cast<int32_t>(f.integer("top_logprobs", 0, 0, std::min(kMaxTopLogprobs, context.vocab)));
    if (r.top_logprobs > 0 && !r.logprobs) refuse("top_logprobs needs logprobs: true", "top_logprobs", "invalid_value");
    if (const Json* format = f.object("response_format")) {
      const std::string type = Fields(*format, "response_format.").text("type").value_or("");
      if (type != "text")
        refuse("response_format of type '" + type.substr(0, 40) + "' is not supported, only text", "response_format",
               "unsupported_parameter");
    }
    f.unserved("parallel_tool_calls", true);
    f.unserved("modalities", Json::array({"text"}));
    f.unserved("store", false);
    f.unserved("add_generation_prompt", true);
    f.unserved("continue_final_message", false);
    f.unserved("echo", false);
    for (const char* name :
         {"functions", "function_call", "audio", "prediction", "web_search_options", "reasoning_effort", "verbosity"})
      f.unserved(name);
    std::string tools = parse_tools(f);
    const bool allowed = parse_tool_choice(f);
    if (!allowed) tools.clear();
    r.tools = !tools.empty();
    r.prompts.emplace_back();
    encode_chat(parse_messages(f), tools, true, context, r.prompts[0]);
    check_length(r.prompts[0], r.max_tokens, "messages", context);
    for (const std::string& spelling : context.chat->stop_tokens()) {
      if (const auto id = context.tokenizer->special_id(spelling); id && !r.ignore_eos) r.stop_ids.push_back(*id);
    }
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
      encode_chat(parse_messages(f), parse_tools(f), f.boolean("add_generation_prompt", true), context, r.ids);
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
