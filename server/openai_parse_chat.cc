// Chats: messages and tools to tokens, and what the answer must look like.
#include <algorithm>

#include "server/openai_parse.h"
#include "server/parse_detail.h"

namespace kadence::server {
using namespace detail;
namespace {

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

// What "tools" and "tool_choice" mean for the answer.
struct ToolWish {
  bool offered = false;  // the model is told of the tools
  std::optional<ToolConstraintOptions> constraint;
};

ToolWish parse_tool_choice(const Fields& f, const ApiContext& context,
                           const std::vector<model::ChatMessage>& messages) {
  const std::string wanted = R"(auto, none, required or {"type": "function", "function": {"name": ..}})";
  std::vector<std::string> names;
  if (const Json* tools = f.list("tools"))
    for (const Json& tool : *tools) names.push_back(tool["function"]["name"].get<std::string>());
  ToolWish wish;
  wish.offered = !names.empty();
  ToolConstraintOptions o;
  o.single = !f.boolean("parallel_tool_calls", true);
  o.at_once = false;
  if (o.single && names.empty()) refuse("parallel_tool_calls is for requests with tools", "parallel_tool_calls");
  const Json* choice = f.get("tool_choice");
  if (choice != nullptr && choice->is_object()) {
    const Fields c(*choice, "tool_choice.");
    const Json* function = c.object("function");
    if (c.text("type").value_or("") != "function" || function == nullptr) wrong("tool_choice", wanted, *choice);
    const std::string name = Fields(*function, "tool_choice.function.").text("name").value_or("");
    if (std::find(names.begin(), names.end(), name) == names.end())
      refuse("tool_choice: no tool is called '" + name.substr(0, 64) + "'", "tool_choice", "invalid_value");
    names = {name};
    o.at_once = o.single = true;
  } else if (choice != nullptr) {
    const std::string text = choice->is_string() ? choice->get<std::string>() : std::string();
    if (text == "none") return {};
    if (text != "auto" && text != "required") wrong("tool_choice", wanted, *choice);
    o.at_once = text == "required";
    if (o.at_once && names.empty()) refuse("tool_choice 'required' needs tools", "tool_choice", "invalid_value");
  }
  if (!o.at_once && !o.single) return wish;
  const std::string field = o.at_once ? "tool_choice" : "parallel_tool_calls";
  const auto tokens = context.tokenizer != nullptr ? find_tool_tokens(*context.tokenizer) : std::nullopt;
  if (!tokens || !context.texts)
    refuse(field + " is not supported: the tokenizer has no control tokens for calls of tools", field,
           "unsupported_parameter");
  if (f.get("stop_token_ids") != nullptr)
    refuse("stop_token_ids could cut what " + field + " asks for", "stop_token_ids", "invalid_value");
  o.tokens = *tokens;
  o.names = std::move(names);
  for (const auto& m : messages) o.first_index += static_cast<int32_t>(m.tool_calls.size());
  wish.constraint = std::move(o);
  return wish;
}

bool parse_json_mode(const Fields& f, const ApiContext& context, bool tools) {
  const Json* format = f.object("response_format");
  if (format == nullptr) return false;
  const std::string type = Fields(*format, "response_format.").text("type").value_or("");
  if (type == "text") return false;
  if (type != "json_object")
    refuse("response_format of type '" + type.substr(0, 40) + "' is not supported, only text and json_object",
           "response_format", "unsupported_parameter");
  if (!context.texts) refuse("response_format: the model has no tokenizer", "response_format", "unsupported_parameter");
  if (tools) refuse("response_format json_object leaves no room for tools", "response_format", "invalid_value");
  for (const char* name : {"stop", "stop_token_ids"})
    if (f.get(name) != nullptr)
      refuse(std::string(name) + " could cut the JSON that was asked for", name, "invalid_value");
  return true;
}

}  // namespace

std::vector<int32_t> detail::parse_transcript(const Fields& f, bool generation, const ApiContext& context) {
  std::vector<int32_t> ids;
  encode_chat(parse_messages(f), parse_tools(f), generation, context, ids);
  return ids;
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
    f.unserved("modalities", Json::array({"text"}));
    f.unserved("store", false);
    f.unserved("add_generation_prompt", true);
    f.unserved("continue_final_message", false);
    f.unserved("echo", false);
    for (const char* name :
         {"functions", "function_call", "audio", "prediction", "web_search_options", "reasoning_effort", "verbosity"})
      f.unserved(name);
    std::string tools = parse_tools(f);
    const std::vector<model::ChatMessage> messages = parse_messages(f);
    ToolWish wish = parse_tool_choice(f, context, messages);
    if (!wish.offered) tools.clear();
    r.tools = wish.offered;
    r.tool_constraint = std::move(wish.constraint);
    r.json = parse_json_mode(f, context, r.tools);
    r.texts = context.texts;
    r.prompts.emplace_back();
    encode_chat(messages, tools, true, context, r.prompts[0]);
    check_length(r.prompts[0], r.max_tokens, "messages", context);
    for (const std::string& spelling : context.chat->stop_tokens()) {
      if (const auto id = context.tokenizer->special_id(spelling); id && !r.ignore_eos) r.stop_ids.push_back(*id);
    }
    return r;
  });
}
}  // namespace kadence::server
