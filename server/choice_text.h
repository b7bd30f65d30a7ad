// The tokens of one choice as what a client may see: whole characters, text up to a stop string, calls of tools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"

namespace kadence::server {

// Holds back what may be the beginning of a stop string.
class StopScanner {
 public:
  // Empty strings stop nothing.
  explicit StopScanner(std::vector<std::string> stops) : stops_(std::move(stops)) { std::erase(stops_, std::string()); }
  // Text that may be shown now; never the stop string itself nor anything after it. The earliest match counts.
  std::string push(std::string_view piece);
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Ids of the control tokens that frame tool calls in the Kimi form; none if the tokenizer lacks one of them.
struct ToolTokens {
  int32_t section_begin, section_end, call_begin, argument_begin, call_end;
};
std::optional<ToolTokens> find_tool_tokens(const model::Tokenizer& tokenizer);
// "functions.get_weather:0" -> "get_weather".
std::string tool_name(std::string_view call_id);

class ChoiceText {
 public:
  struct Options {
    std::vector<std::string> stop;
    std::optional<ToolTokens> tools;  // set: calls are parsed
    bool keep_entries = false;        // for log-probs
    int64_t first_offset = 0;         // characters before the first token (echo)
  };
  struct ToolDelta {
    int32_t index = 0;
    bool begins = false;   // id and name are set
    std::string id, name;  // of a call that begins
    std::string arguments;
  };
  // A token with its log-probs and the character of the text at which it begins.
  struct Entry {
    int32_t token = -1;
    float logprob = 0;
    engine::TopLogProbs top;
    int64_t offset = 0;
  };

  // `tokenizer` may be null: then there is no text. It outlives this.
  ChoiceText(const model::Tokenizer* tokenizer, Options options);
  // After a stop string nothing is taken any more.
  void push(int32_t token, float logprob, engine::TopLogProbs top);
  void finish();
  bool stopped() const { return stops_.stopped(); }
  bool called() const { return calls_ > 0; }
  int64_t tokens() const { return tokens_; }

  // What became visible since the last call.
  std::string take_text() { return std::exchange(text_, {}); }
  std::vector<ToolDelta> take_tools() { return std::exchange(tools_, {}); }
  // Entries of tokens whose text is visible; after finish() those that remain.
  std::vector<Entry> take_entries();

 private:
  enum class State { kText, kSection, kId, kArguments };
  void show(std::string text);
  bool control(int32_t token);

  const model::Tokenizer* tokenizer_;
  Options options_;
  std::optional<model::StreamDecoder> decoder_, inner_;
  StopScanner stops_;
  State state_ = State::kText;
  std::string text_, call_id_;
  std::vector<ToolDelta> tools_;
  std::vector<Entry> entries_;
  int32_t calls_ = 0;
  int64_t tokens_ = 0, decoded_ = 0, visible_ = 0;  // characters decoded (held ones too), shown
  bool finished_ = false;
};

// Code points of UTF-8 text.
int64_t characters(std::string_view text);

}  // namespace kadence::server
