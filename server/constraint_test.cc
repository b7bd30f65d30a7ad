// Constrained answers: the grammar against nlohmann's parser, masks against trying every token, and random models under
// them.
#include "server/constraint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "server/testing/byte_tokenizer.h"

namespace kadence::server {
namespace {

using testing::ByteTokenizer;

// Bytes, control tokens, and pieces that cut JSON where it hurts: across strings, escapes, characters and levels.
class PieceTokenizer final : public model::Tokenizer {
 public:
  PieceTokenizer() {
    for (const char* p : {"{\"",       "\":",        "\":\"",    "\", \"",   "\"}",      "\"}]}", "}}",      "]]",
                          "[{",        "[[",         "{}",       "[]",       ",\n  ",    "    ",  "\n\n",    "tr",
                          "rue",       "true,",      "fal",      "null]",    "-0",       "0.",    "1e",      "E+",
                          "12",        "345",        "\\",       "\\u",      "\\ud8",    "d83d",  "\\ude00", "\\n",
                          "\xc3\xa9",  "\xf0\x9f",   "\x98\x80", "\xe6\x97", "\xed\xa0", "a\"",   "abc",     "\"a",
                          "functions", "functions.", ".look",    "_up",      ":0",       ":",     "up:"})
      pieces_.emplace_back(p);
  }
  std::vector<int32_t> encode(std::string_view text, bool special) const override {
    return bytes_.encode(text, special);
  }
  std::string token_bytes(int32_t id, bool keep_special) const override {
    return id < ByteTokenizer::kVocab ? bytes_.token_bytes(id, keep_special)
                                      : pieces_[static_cast<size_t>(id - ByteTokenizer::kVocab)];
  }
  int32_t vocab_size() const override { return ByteTokenizer::kVocab + static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> special_id(std::string_view spelling) const override { return bytes_.special_id(spelling); }

 private:
  ByteTokenizer bytes_;
  std::vector<std::string> pieces_;
};

const PieceTokenizer kPieces;

std::shared_ptr<const TokenTexts> texts() {
  static const auto made = std::make_shared<const TokenTexts>(kPieces);
  return made;
}

bool takes(std::string_view text) {
  JsonGrammar g;
  return g.push(text) && g.complete();
}

TEST(JsonGrammar, TakesObjectsAndNothingElse) {
  for (const char* good :
       {"{}", " {\n}\t", R"({"a":1})", R"({"a":[1,-0.5e+10,2E-3,0,-0,true,false,null,"x",{},[]]})",
        R"({"é":"日本😀\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t"})", R"({"a":{"b":[[[{"c":{}}]]]},"d" : "" })"})
    EXPECT_TRUE(takes(good)) << good;
  for (const char* bad : {"",
                          "[]",
                          "1",
                          "\"a\"",
                          "{",
                          "}",
                          "{]",
                          "[}",
                          "{}{}",
                          "{}x",
                          "{,}",
                          R"({"a"})",
                          R"({"a":})",
                          R"({"a":1,})",
                          R"({"a":[1,]})",
                          R"({"a":[,1]})",
                          R"({a:1})",
                          R"({"a":01})",
                          R"({"a":1.})",
                          R"({"a":.5})",
                          R"({"a":+1})",
                          R"({"a":1e})",
                          R"({"a":1e5.0})",
                          R"({"a":-})",
                          R"({"a":tru})",
                          R"({"a":nulL})",
                          R"({"a":1 2})",
                          R"({"a":"\x"})",
                          R"({"a":"\u12g4"})",
                          R"({"a":"\ud800"})",
                          R"({"a":"\ud800\u0041"})",
                          R"({"a":"\udc00"})",
                          R"({"a":"\ud83dx"})",
                          "{\"a\":\"\n\"}",
                          "{\"a\":\"\x01\"}",
                          "{\"a\":\"\xff\"}",
                          "{\"a\":\"\xc3\"}",
                          "{\"a\":\"\xc0\xaf\"}",
                          "{\"a\":\"\xed\xa0\x80\"}",
                          "{\"a\":\"\xe0\x80\xaf\"}",
                          "{\"a\":\"\xf4\x90\x80\x80\"}",
                          "{\"a\":\"\xf0\x80\x80\x80\"}",
                          R"({"a":1e999})",
                          R"({"a":123456789012345678901234567890})",
                          R"({'a':1})",
                          R"({"a":1]})",
                          R"({"a":[1}])"})
    EXPECT_FALSE(takes(bad)) << bad;
  const auto spaced = [](size_t spaces) {
    std::string text(spaces + 2, ' ');
    text.front() = '{';
    text.back() = '}';
    return text;
  };
  EXPECT_TRUE(takes(spaced(JsonGrammar::kMaxSpaces)));
  EXPECT_FALSE(takes(spaced(JsonGrammar::kMaxSpaces + 1)));
  const auto nested = [](int lists) {
    return "{\"a\":" + std::string(static_cast<size_t>(lists), '[') + std::string(static_cast<size_t>(lists), ']') +
           "}";
  };
  EXPECT_TRUE(takes(nested(JsonGrammar::kMaxDepth - 1)));
  EXPECT_FALSE(takes(nested(JsonGrammar::kMaxDepth)));
}

// What the grammar takes, nlohmann's parser takes; what nlohmann's parser refuses, the grammar refuses.
TEST(JsonGrammar, AgreesWithAParserOnMutatedTexts) {
  base::Rng rng(3);
  const std::string seeds[] = {
      R"({"name":"Kädence","list":[1,2.5,-3e2,null,true],"inner":{"x":"\u00e9\ud83d\ude00","y":[]}})",
      R"({ "a" : [ { } , [ "日本" , "" ] ] , "b" : -0.25E+7 })"};
  const std::string pieces = "{}[]\",:\\ud8eE+-.0123456789 \n\xf0\x9f\xc3\xa9tfn";
  int taken = 0, refused = 0, parsed_but_refused = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string s = seeds[rng.below(2)];
    for (uint64_t n = rng.below(4); n > 0; --n) {
      const size_t at = rng.below(s.size());
      const uint64_t kind = rng.below(3);
      if (kind == 0) s[at] = pieces[rng.below(pieces.size())];
      if (kind == 1) s.erase(at, 1 + rng.below(3));
      if (kind == 2) s.insert(at, 1, pieces[rng.below(pieces.size())]);
      if (s.empty()) s.push_back('{');
    }
    const bool ours = takes(s);
    const auto theirs = nlohmann::json::parse(s, nullptr, false);
    const bool object = theirs.is_object();
    if (ours) {
      EXPECT_TRUE(object) << s;
    }
    taken += ours;
    refused += !object;
    parsed_but_refused += object && !ours;  // limits only: numbers
  }
  EXPECT_GT(taken, 20000);
  EXPECT_GT(refused, 20000);
  EXPECT_LT(parsed_but_refused, 200);
}

constexpr float kOut = -std::numeric_limits<float>::infinity();

TEST(Constraint, TheMaskIsWhatTryingEveryTokenGives) {
  const std::string text = R"({"a\u00e9": [1.5e+3, "日\ud83d\ude00", {"b": null}, -0], "c": true})";
  const auto vocab = static_cast<size_t>(kPieces.vocab_size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto c = json_constraint(texts());
    for (size_t i = 0; i < cut; ++i) {
      const bool over = c->advance(static_cast<unsigned char>(text[i]));
      EXPECT_EQ(over, i + 1 == text.size());
    }
    std::vector<float> logits(vocab + 3, 1.0f);  // a model's vocabulary is often padded
    EXPECT_TRUE(c->mask(logits));
    JsonGrammar g;
    ASSERT_TRUE(g.push(text.substr(0, cut)));
    for (size_t id = 0; id < logits.size(); ++id) {
      const std::string bytes = id < vocab ? kPieces.token_bytes(static_cast<int32_t>(id), false) : "";
      JsonGrammar tried = g;
      EXPECT_EQ(logits[id] != kOut, !bytes.empty() && tried.push(bytes)) << cut << " " << id << " " << bytes;
    }
  }
}

int32_t draw(const std::vector<float>& logits, base::Rng& rng) {
  std::vector<int32_t> open;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != kOut) open.push_back(static_cast<int32_t>(i));
  return open[rng.below(open.size())];
}

TEST(Constraint, WhatARandomModelSaysIsJson) {
  int ended = 0, deep = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    base::Rng rng(seed);
    const auto c = json_constraint(texts());
    std::string said;
    bool over = false;
    for (int i = 0; i < 400 && !over; ++i) {
      std::vector<float> logits(static_cast<size_t>(kPieces.vocab_size()), 0.0f);
      ASSERT_TRUE(c->mask(logits)) << said;
      const int32_t token = draw(logits, rng);
      said += kPieces.token_bytes(token, false);
      over = c->advance(token);
    }
    if (!over) continue;
    ++ended;
    const auto parsed = nlohmann::json::parse(said, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << said;
    deep += said.size() > 20;
  }
  EXPECT_GT(ended, 100);
  EXPECT_GT(deep, 50);
}

std::vector<ChoiceText::ToolDelta> calls_of(const std::vector<int32_t>& tokens, std::string* text) {
  ChoiceText::Options o;
  o.tools = find_tool_tokens(kPieces);
  ChoiceText parsed(&kPieces, o);
  for (const int32_t t : tokens) parsed.push(t, 0, {});
  parsed.finish();
  *text = parsed.take_text();
  std::vector<ChoiceText::ToolDelta> whole;
  for (const auto& d : parsed.take_tools()) {
    if (d.begins)
      whole.push_back(d);
    else
      whole.back().arguments += d.arguments;
  }
  return whole;
}

TEST(Constraint, WhatARandomModelSaysIsACall) {
  ToolConstraintOptions o;
  o.tokens = *find_tool_tokens(kPieces);
  o.names = {"look_up", "look", "a:1"};
  o.first_index = 9;
  int ended = 0, several = 0;
  std::set<std::string> called;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    o.single = seed % 4 == 0;
    base::Rng rng(seed + 1000);
    const auto c = tool_constraint(texts(), o);
    std::vector<int32_t> tokens;
    bool over = false;
    for (int i = 0; i < 600 && !over; ++i) {
      std::vector<float> logits(static_cast<size_t>(kPieces.vocab_size()), 0.0f);
      ASSERT_TRUE(c->mask(logits));
      tokens.push_back(draw(logits, rng));
      over = c->advance(tokens.back());
    }
    if (!over) continue;
    ++ended;
    std::string text;
    const auto calls = calls_of(tokens, &text);
    EXPECT_EQ(text, "");
    ASSERT_FALSE(calls.empty());
    if (o.single) {
      EXPECT_EQ(calls.size(), 1u);
    }
    several += calls.size() > 1;
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i].id, "functions." + calls[i].name + ":" + std::to_string(9 + i));
      EXPECT_NE(std::find(o.names.begin(), o.names.end(), calls[i].name), o.names.end()) << calls[i].name;
      EXPECT_TRUE(nlohmann::json::parse(calls[i].arguments, nullptr, false).is_object()) << calls[i].arguments;
      called.insert(calls[i].name);
    }
  }
  EXPECT_GT(ended, 50);
  EXPECT_GT(several, 5);
  EXPECT_EQ(called.size(), 3u);
}

TEST(Constraint, ASingleCallLeavesTextAlone) {
  ToolConstraintOptions o;
  o.tokens = *find_tool_tokens(kPieces);
  o.names = {"f"};
  o.at_once = false;
  o.single = true;
  const auto c = tool_constraint(texts(), o);
  std::vector<float> logits(static_cast<size_t>(kPieces.vocab_size()), 0.5f);
  EXPECT_TRUE(c->mask(logits));
  EXPECT_EQ(std::count(logits.begin(), logits.end(), 0.5f), kPieces.vocab_size());
  EXPECT_FALSE(c->advance('x'));
  for (const int32_t t : kPieces.encode("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                                        "<|tool_call_argument_begin|>{}<|tool_call_end|>",
                                        true)) {
    logits.assign(logits.size(), 0.0f);
    EXPECT_TRUE(c->mask(logits));
    EXPECT_EQ(logits[static_cast<size_t>(t)], 0.0f) << t;
    EXPECT_FALSE(c->advance(t));
  }
  logits.assign(logits.size(), 0.0f);
  EXPECT_TRUE(c->mask(logits));
  EXPECT_EQ(std::count(logits.begin(), logits.end(), 0.0f), 1) << "the section must end";
  EXPECT_EQ(logits[static_cast<size_t>(o.tokens.section_end)], 0.0f);
  EXPECT_TRUE(c->advance(o.tokens.section_end));
}

TEST(Constraint, AVocabularyThatCannotSpellItSaysSo) {
  class Letters final : public model::Tokenizer {
   public:
    std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
    std::string token_bytes(int32_t id, bool) const override { return std::string(1, static_cast<char>('a' + id)); }
    int32_t vocab_size() const override { return 26; }
    std::optional<int32_t> special_id(std::string_view) const override { return std::nullopt; }
  } letters;
  const auto c = json_constraint(std::make_shared<const TokenTexts>(letters));
  std::vector<float> logits(26, 0.0f);
  EXPECT_FALSE(c->mask(logits));
}

}  // namespace
}  // namespace kadence::server
