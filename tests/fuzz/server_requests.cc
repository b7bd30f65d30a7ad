#include "server_requests.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "model/utf8.h"
#include "server/choice_text.h"
#include "server/openai_parse.h"
#include "server/testing/byte_tokenizer.h"

namespace kadence::fuzz {
namespace {

using server::testing::ByteTokenizer;

const ByteTokenizer& tokenizer() {
  static const ByteTokenizer t;
  return t;
}

const server::ApiContext& context() {
  static const auto chat = server::testing::kimi_chat();
  static const server::ApiContext c = [] {
    server::ApiContext made;
    made.tokenizer = &tokenizer();
    made.chat = chat.get();
    made.texts = std::make_shared<server::TokenTexts>(tokenizer());
    made.model_name = "fuzz";
    made.vocab = tokenizer().vocab_size();
    made.context_length = 4096;
    made.longest_token = 28;
    return made;
  }();
  return c;
}

std::string_view text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

void require(bool holds) {
  if (!holds) std::abort();
}

template <class T>
bool checked(const std::variant<T, server::ApiError>& parsed) {
  const auto* error = std::get_if<server::ApiError>(&parsed);
  if (error == nullptr) return true;
  require(error->status == 400 || error->status == 404 || error->status == 413);
  require(!error->message.empty());
  return false;
}

// What the engine may rely on.
bool checked_request(const std::variant<server::ApiRequest, server::ApiError>& parsed) {
  if (!checked(parsed)) return false;
  const auto& r = std::get<server::ApiRequest>(parsed);
  require(r.n >= 1 && r.choices() >= 1 && r.choices() <= context().max_choices);
  require(r.max_tokens >= 0 && r.top_logprobs >= 0 && r.top_logprobs <= 20);
  for (int32_t c = 0; c < r.choices(); c += r.n) {
    const engine::RequestSpec spec = r.spec(c);
    ops::validate(spec.sampling);
    if (spec.constraint) {  // something may always come first
      std::vector<float> logits(static_cast<size_t>(context().vocab), 0.0f);
      require(spec.constraint->mask(logits));
    }
    require(!spec.ids.empty() && static_cast<int64_t>(spec.ids.size()) <= context().context_length);
    for (const int32_t id : spec.ids) require(id >= 0 && id < context().vocab);
  }
  for (const auto& s : r.stop) require(!s.empty() && model::utf8_valid(s));
  return true;
}

}  // namespace

bool completion_body(const uint8_t* data, size_t size) {
  return checked_request(server::parse_completion(text(data, size), context()));
}
bool chat_body(const uint8_t* data, size_t size) {
  return checked_request(server::parse_chat(text(data, size), context()));
}
bool tokenize_body(const uint8_t* data, size_t size) {
  return checked(server::parse_tokenize(text(data, size), context()));
}
bool detokenize_body(const uint8_t* data, size_t size) {
  return checked(server::parse_detokenize(text(data, size), context()));
}

bool answer_tokens(const uint8_t* data, size_t size) {
  server::ChoiceText::Options o;
  o.stop = {"ab", "abc", "\xf0\x9f\x98\x80", "aab"};
  o.tools = server::find_tool_tokens(tokenizer());
  o.keep_entries = true;
  server::ChoiceText choice(&tokenizer(), o);
  std::string shown;
  size_t entries = 0, calls = 0;
  const auto take = [&] {
    const std::string piece = choice.take_text();
    require(model::utf8_valid(piece));
    shown += piece;
    for (const auto& d : choice.take_tools()) {
      calls += d.begins;
      require(calls > 0 && static_cast<size_t>(d.index) == calls - 1);
      require(model::utf8_valid(d.arguments) && model::utf8_valid(d.id));
    }
    for (const auto& e : choice.take_entries()) {
      ++entries;
      require(e.offset >= 0);
    }
  };
  for (size_t i = 0; i < size; ++i) {
    const int32_t token = data[i] >= 246 ? data[i] + 10 : data[i];
    choice.push(token, -1, {});
    if (i % 3 == 0) take();
  }
  choice.finish();
  take();
  for (const auto& s : o.stop) require(shown.find(s) == std::string::npos);
  require(entries <= size);
  return choice.stopped();
}

}  // namespace kadence::fuzz
