// What a model may say when a client asked for JSON or for a call of a tool: masks over the vocabulary, made by walking
// the bytes of its tokens, so that it does not matter where tokens are cut.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"
#include "server/choice_text.h"
#include "server/json_grammar.h"

namespace kadence::server {

// The texts of a vocabulary in order, each with what it shares with the one before. Control tokens have none.
class TokenTexts {
 public:
  explicit TokenTexts(const model::Tokenizer& tokenizer);

  // allowed[id] = 1 for every token whose bytes `state` takes, one by one; other entries are left alone.
  // State: copyable, push(unsigned char) -> bool, and after a false nothing else is asked of it.
  template <class State>
  void walk(const State& state, std::vector<uint8_t>& allowed) const {
    std::vector<State> at{state};  // at[n]: after n bytes of the current text
    size_t dead = SIZE_MAX;        // the first this many bytes of the text before were refused
    for (const Text& t : texts_) {
      if (t.shared >= dead) continue;
      dead = SIZE_MAX;
      at.resize(t.shared + 1, state);
      for (size_t i = t.shared; i < t.bytes.size(); ++i) {
        at.push_back(at.back());
        if (at.back().push(static_cast<unsigned char>(t.bytes[i]))) continue;
        at.pop_back();
        dead = i + 1;
        break;
      }
      if (dead == SIZE_MAX && static_cast<size_t>(t.id) < allowed.size()) allowed[static_cast<size_t>(t.id)] = 1;
    }
  }
  // Bytes of one token; empty for control tokens and ids without a text.
  std::string_view bytes(int32_t id) const;

 private:
  struct Text {
    std::string bytes;
    int32_t id = 0;
    size_t shared = 0;
  };
  std::vector<Text> texts_;        // by bytes, then id
  std::vector<int32_t> position_;  // id -> index of texts_, -1 = none
};

// One JSON object and then the end.
std::unique_ptr<engine::TokenConstraint> json_constraint(std::shared_ptr<const TokenTexts> texts);

struct ToolConstraintOptions {
  ToolTokens tokens{};
  std::vector<std::string> names;  // of functions that may be called
  int32_t first_index = 0;         // of the first call: "functions.NAME:INDEX"
  bool at_once = true;             // false: text first, and no call at all, are allowed
  bool single = false;             // one call
};
// Calls in the Kimi form, of known functions, with a JSON object as arguments, and then the end.
std::unique_ptr<engine::TokenConstraint> tool_constraint(std::shared_ptr<const TokenTexts> texts,
                                                         ToolConstraintOptions options);

}  // namespace kadence::server
