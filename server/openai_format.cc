#include "server/openai_format.h"

#include <map>

#include "server/json.h"

namespace kadence::server {
namespace {

bool valid_utf8(const std::string& s) {
  for (size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    const size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (n == 0 || i + n > s.size()) return false;
    for (size_t k = 1; k < n; ++k)
      if ((static_cast<unsigned char>(s[i + k]) & 0xc0) != 0x80) return false;
    if (n >= 3) {
      const auto d = static_cast<unsigned char>(s[i + 1]);
      if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d >= 0xa0) || (c == 0xf0 && d < 0x90) || (c == 0xf4 && d >= 0x90))
        return false;
    }
    i += n;
  }
  return true;
}

std::string bytes_of(int32_t token, const ApiContext& context) {
  if (context.tokenizer == nullptr || token < 0 || token >= context.tokenizer->vocab_size()) return {};
  return context.tokenizer->token_bytes(token, true);
}

// A token's spelling that two tokens never share: its text, bytes:\x.. for a part of a character, token_id:N where
// there is neither.
std::string spelling(int32_t token, const ApiContext& context) {
  const std::string bytes = bytes_of(token, context);
  if (bytes.empty()) return "token_id:" + std::to_string(token);
  if (valid_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    out += hex;
  }
  return out;
}

Json completion_logprobs(const std::vector<ChoiceAnswer::Scored>& scored, int32_t top_count,
                         const ApiContext& context) {
  Json tokens = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
  for (const auto& [e, has] : scored) {
    const std::string name = spelling(e.token, context);
    tokens.push_back(name);
    offsets.push_back(e.offset);
    if (!has) {
      values.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    values.push_back(shortest(e.logprob));
    if (top_count == 0) continue;
    Json best = Json::object();
    const auto add = [&](int32_t token, float logprob) {
      std::string key = spelling(token, context);
      if (best.contains(key)) key = "token_id:" + std::to_string(token);
      best[key] = shortest(logprob);
    };
    bool there = false;
    for (const auto& [token, logprob] : e.top) {
      add(token, logprob);
      there |= token == e.token;
    }
    if (!there) add(e.token, e.logprob);
    top.push_back(std::move(best));
  }
  Json out = Json::object();
  out["tokens"] = std::move(tokens);
  out["token_logprobs"] = std::move(values);
  out["top_logprobs"] = top_count > 0 ? std::move(top) : Json();
  out["text_offset"] = std::move(offsets);
  return out;
}

Json chat_token(int32_t token, float logprob, const ApiContext& context) {
  Json out = Json::object();
  out["token"] = spelling(token, context);
  out["logprob"] = shortest(logprob);
  Json bytes = Json::array();
  for (const char c : bytes_of(token, context)) bytes.push_back(static_cast<unsigned char>(c));
  out["bytes"] = std::move(bytes);
  return out;
}

Json chat_logprobs(const std::vector<ChoiceAnswer::Scored>& scored, const ApiContext& context) {
  Json content = Json::array();
  for (const auto& [e, has] : scored) {
    Json one = chat_token(e.token, e.logprob, context);
    one["top_logprobs"] = Json::array();
    for (const auto& [token, logprob] : e.top) one["top_logprobs"].push_back(chat_token(token, logprob, context));
    content.push_back(std::move(one));
  }
  return Json{{"content", std::move(content)}, {"refusal", nullptr}};
}

Json usage_json(const Usage& u) {
  Json out = Json::object();
  out["prompt_tokens"] = u.prompt;
  out["completion_tokens"] = u.completion;
  out["total_tokens"] = u.prompt + u.completion;
  out["prompt_tokens_details"] = Json{{"cached_tokens", u.cached}};
  return out;
}

Json tool_json(const ChoiceText::ToolDelta& d, bool streamed) {
  Json function = Json::object();
  if (d.begins) function["name"] = d.name;
  function["arguments"] = d.arguments;
  Json out = Json::object();
  if (streamed) out["index"] = d.index;
  if (d.begins) {
    out["id"] = d.id;
    out["type"] = "function";
  }
  out["function"] = std::move(function);
  return out;
}

// A JSON string of valid UTF-8.
void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          char hex[8];
          std::snprintf(hex, sizeof hex, "\\u%04x", c);
          out += hex;
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

}  // namespace

std::string error_json(const ApiError& e) {
  Json error = Json::object();
  error["message"] = e.message;
  error["type"] = e.type;
  error["param"] = e.param.empty() ? Json() : Json(e.param);
  error["code"] = e.code.empty() ? Json() : Json(e.code);
  return dump(Json{{"error", std::move(error)}});
}

HttpResponse format_error(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error);
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError server_error(int status, std::string message, std::string code) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  e.type = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
  e.code = std::move(code);
  return e;
}

std::string sse_event(std::string_view json) {
  std::string out = "data: ";
  out += json;
  out += "\n\n";
  return out;
}

Formatter::Formatter(const ApiRequest& r, const ApiContext& context, std::string id, int64_t created)
    : chat_(r.kind == ApiKind::kChat),
      logprobs_(r.logprobs),
      usage_(r.include_usage),
      top_logprobs_(r.top_logprobs),
      context_(context) {
  const auto head = [&](const char* object) {
    std::string out = "{\"id\":\"" + std::string(chat_ ? "chatcmpl-" : "cmpl-") + id + "\",\"object\":\"" + object +
                      "\",\"created\":" + std::to_string(created) + ",\"model\":";
    append_quoted(out, context.model_name);
    return out;
  };
  head_ = head(chat_ ? "chat.completion" : "text_completion");
  chunk_head_ = "data: " + head(chat_ ? "chat.completion.chunk" : "text_completion") + ",\"choices\":[";
}

std::string Formatter::answer(const std::vector<ChoiceAnswer>& answers, const Usage& usage) const {
  Json choices = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const ChoiceAnswer& a = answers[i];
    Json choice = Json::object();
    choice["index"] = i;
    if (chat_) {
      Json message = Json::object();
      message["role"] = "assistant";
      message["content"] = a.text.empty() && !a.tools.empty() ? Json() : Json(a.text);
      message["refusal"] = nullptr;
      if (!a.tools.empty()) {
        Json calls = Json::array();
        std::vector<ChoiceText::ToolDelta> whole;
        for (const auto& d : a.tools) {
          if (d.begins)
            whole.push_back(d);
          else
            whole.back().arguments += d.arguments;
        }
        for (const auto& d : whole) calls.push_back(tool_json(d, false));
        message["tool_calls"] = std::move(calls);
      }
      choice["message"] = std::move(message);
      choice["logprobs"] = logprobs_ ? chat_logprobs(a.scored, context_) : Json();
    } else {
      choice["text"] = a.text;
      choice["logprobs"] = logprobs_ ? completion_logprobs(a.scored, top_logprobs_, context_) : Json();
    }
    choice["finish_reason"] = a.finish_reason;
    choices.push_back(std::move(choice));
  }
  return head_ + ",\"choices\":" + dump(choices) + ",\"usage\":" + dump(usage_json(usage)) + "}";
}

std::string Formatter::role_chunk(int32_t choice) const {
  return chunk_head_ + "{\"index\":" + std::to_string(choice) +
         ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]" +
         (usage_ ? ",\"usage\":null}\n\n" : "}\n\n");
}

std::string Formatter::chunk(int32_t choice, std::string_view text, const std::vector<ChoiceText::ToolDelta>& tools,
                             const std::vector<ChoiceAnswer::Scored>& scored, std::string_view finish_reason) const {
  std::string out = chunk_head_;
  out += "{\"index\":";
  out += std::to_string(choice);
  if (chat_) {
    out += ",\"delta\":{";
    if (!text.empty()) {
      out += "\"content\":";
      append_quoted(out, text);
    }
    if (!tools.empty()) {
      Json calls = Json::array();
      for (const auto& d : tools) calls.push_back(tool_json(d, true));
      out += text.empty() ? "" : ",";
      out += "\"tool_calls\":" + dump(calls);
    }
    out += '}';
  } else {
    out += ",\"text\":";
    append_quoted(out, text);
  }
  out += ",\"logprobs\":";
  if (!logprobs_ || scored.empty())
    out += "null";
  else
    out += dump(chat_ ? chat_logprobs(scored, context_) : completion_logprobs(scored, top_logprobs_, context_));
  out += ",\"finish_reason\":";
  if (finish_reason.empty())
    out += "null";
  else
    append_quoted(out, finish_reason);
  out += usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
  return out;
}

std::string Formatter::usage_chunk(const Usage& usage) const {
  return chunk_head_ + "],\"usage\":" + dump(usage_json(usage)) + "}\n\n";
}

}  // namespace kadence::server
