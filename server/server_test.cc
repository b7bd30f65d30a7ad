// The parts without sockets: text of a choice, parsing, formatting. Expected values are written out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "server/choice_text.h"
#include "server/metrics.h"
#include "server/openai_format.h"
#include "server/openai_parse.h"
#include "server/testing/byte_tokenizer.h"

namespace kadence::server {
namespace {

using testing::ByteTokenizer;
using OrderedJson = nlohmann::ordered_json;

const ByteTokenizer kTokenizer;

ApiContext context() {
  static const auto chat = testing::kimi_chat();
  ApiContext c;
  c.tokenizer = &kTokenizer;
  c.chat = chat.get();
  c.model_name = std::string("m");
  c.vocab = kTokenizer.vocab_size();
  c.context_length = 1000;
  c.longest_token = 28;
  return c;
}

int32_t control(const char* spelling) { return *kTokenizer.special_id(spelling); }

TEST(StopScanner, HoldsBackExactlyWhatMayBecomeAStopString) {
  StopScanner s({"END", "NDX"});
  EXPECT_EQ(s.push("abcE"), "abc");
  EXPECT_EQ(s.push("N"), "");
  EXPECT_EQ(s.push("x"), "ENx");
  EXPECT_EQ(s.push("EN"), "");
  EXPECT_EQ(s.push("DX tail"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.push("more"), "");
  EXPECT_EQ(s.finish(), "");
  StopScanner open({"END", "", "aab"});
  EXPECT_EQ(open.push("theEN"), "the");
  EXPECT_EQ(open.push("xaa"), "ENx");
  EXPECT_EQ(open.push("a"), "a");  // "aa" may still grow into a stop string
  EXPECT_EQ(open.finish(), "aa");
  EXPECT_FALSE(open.stopped());
  EXPECT_EQ(StopScanner({}).push("all of it"), "all of it");
  EXPECT_EQ(StopScanner({"world", "lo"}).push("hello world"), "hel");
}

TEST(ChoiceText, CharactersComeWhole) {
  ChoiceText text(&kTokenizer, {});
  std::string shown;
  int pieces = 0;
  for (const char c : std::string("a\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80")) {
    text.push(static_cast<unsigned char>(c), 0, {});
    const std::string piece = text.take_text();
    pieces += !piece.empty();
    shown += piece;
  }
  EXPECT_EQ(shown, "aé日😀");
  EXPECT_EQ(pieces, 4);
  text.push(0xf0, 0, {});  // a character that never ends
  text.finish();
  EXPECT_EQ(text.take_text(), "\xef\xbf\xbd");
}

TEST(ChoiceText, EntriesFollowTheVisibleText) {
  ChoiceText::Options o;
  o.stop = {"xyz"};
  o.keep_entries = true;
  o.first_offset = 10;
  ChoiceText text(&kTokenizer, o);
  for (const char c : std::string("aéxy")) text.push(static_cast<unsigned char>(c), -1, {});
  auto entries = text.take_entries();
  ASSERT_EQ(entries.size(), 3u);  // a and both bytes of é; x and y wait with their text
  EXPECT_EQ(entries[0].offset, 10);
  EXPECT_EQ(entries[1].offset, 11);
  EXPECT_EQ(entries[2].offset, 11);
  text.push('z', -1, {});
  text.push('w', -1, {});
  text.finish();
  EXPECT_EQ(text.take_text(), "aé");
  EXPECT_TRUE(text.take_entries().empty());
  EXPECT_EQ(text.tokens(), 6);  // what came after the stop string does not count
}

TEST(ChoiceText, ToolCallsInTheKimiForm) {
  ChoiceText::Options o;
  o.tools = find_tool_tokens(kTokenizer);
  ASSERT_TRUE(o.tools);
  ChoiceText text(&kTokenizer, o);
  const auto say = [&](const std::string& s) {
    for (const int32_t t : kTokenizer.encode(s, true)) text.push(t, 0, {});
  };
  say("Wait. <|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>{\"é\":1}"
      "<|tool_call_end|><|tool_call_begin|> functions.a:b:17 <|tool_call_argument_begin|><|tool_call_end|>"
      "<|tool_calls_section_end|>done");
  text.finish();
  EXPECT_EQ(text.take_text(), "Wait. done");
  EXPECT_TRUE(text.called());
  std::string arguments[2];
  std::vector<std::string> ids, names;
  for (const auto& d : text.take_tools()) {
    ASSERT_LT(d.index, 2);
    if (d.begins) {
      ids.push_back(d.id);
      names.push_back(d.name);
    }
    arguments[d.index] += d.arguments;
  }
  EXPECT_EQ(ids, (std::vector<std::string>{"functions.look_up:0", "functions.a:b:17"}));
  EXPECT_EQ(names, (std::vector<std::string>{"look_up", "a:b"}));
  EXPECT_EQ(arguments[0], "{\"é\":1}");
  EXPECT_EQ(arguments[1], "");
}

TEST(Parse, RefusesTheKnownAndToleratesTheUnknown) {
  const auto fails = [&](const std::string& body, const std::string& param) {
    const auto r = parse_completion(body, context());
    ASSERT_TRUE(std::holds_alternative<ApiError>(r)) << body;
    EXPECT_EQ(std::get<ApiError>(r).param, param) << body << std::get<ApiError>(r).message;
  };
  fails(R"({"prompt":"x","best_of":2})", "best_of");
  fails(R"({"prompt":"x","logit_bias":{"1":2}})", "logit_bias");
  fails(R"({"prompt":"x","suffix":"s"})", "suffix");
  fails(R"({"prompt":"x","max_tokens":"5"})", "max_tokens");
  fails(R"({"prompt":[1,266]})", "prompt");
  fails(R"({})", "prompt");
  const auto r = parse_completion(
      R"({"prompt":[[1,2],[3]],"n":2,"seed":-1,"best_of":null,"suffix":"","wholly_unknown":1,"echo":true,"logprobs":0})",
      context());
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(r)) << std::get<ApiError>(r).message;
  const auto& q = std::get<ApiRequest>(r);
  EXPECT_EQ(q.choices(), 4);
  EXPECT_EQ(q.spec(3).ids, std::vector<int32_t>{3});
  EXPECT_EQ(q.spec(0).sampling.seed, ~uint64_t{0});
  EXPECT_NE(q.spec(1).sampling.seed, q.spec(0).sampling.seed);
  EXPECT_EQ(q.spec(2).sampling.seed, q.spec(0).sampling.seed);
  EXPECT_EQ(q.spec(0).score_from, 1);
  EXPECT_EQ(q.max_tokens, 16);
}

TEST(Parse, LongTextsAreRefusedUnread) {
  const auto r = parse_completion("{\"prompt\":\"" + std::string(200000, 'a') + "\"}", context());
  ASSERT_TRUE(std::holds_alternative<ApiError>(r));
  EXPECT_EQ(std::get<ApiError>(r).code, "context_length_exceeded");
}

// The tree of a body looks through an object's keys for each new one: a million of them would take hours.
TEST(Parse, ObjectsWithManyMembersAreRefusedUnread) {
  const auto status = [](size_t members, size_t objects) {
    std::string object = "{";
    for (size_t i = 0; i < members; ++i) object += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
    object += "}";
    std::string list;
    for (size_t i = 0; i < objects; ++i) list += (i ? "," : "") + object;
    const auto r = parse_completion("{\"prompt\":\"x\",\"unknown\":[" + list + "]}", context());
    const ApiError* error = std::get_if<ApiError>(&r);
    return error == nullptr ? 200 : error->status;
  };
  EXPECT_EQ(status(1024, 1), 200);
  EXPECT_EQ(status(1025, 1), 413);
  EXPECT_EQ(status(1000, 100), 200);
  EXPECT_EQ(status(1000, 501), 413);
}

TEST(Parse, ForcedCallsGoOnCounting) {
  const auto r = parse_chat(
      R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{"id":"functions.f:0","type":"function",
      "function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"functions.f:0","content":"r"}],
      "tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],
      "tool_choice":{"type":"function","function":{"name":"g"}}})",
      [] {
        ApiContext c = context();
        c.texts = std::make_shared<TokenTexts>(kTokenizer);
        return c;
      }());
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(r)) << std::get<ApiError>(r).message;
  const auto& q = std::get<ApiRequest>(r);
  ASSERT_TRUE(q.tool_constraint);
  EXPECT_EQ(q.tool_constraint->names, std::vector<std::string>{"g"});
  EXPECT_EQ(q.tool_constraint->first_index, 1);
  EXPECT_TRUE(q.tool_constraint->at_once && q.tool_constraint->single);
  EXPECT_NE(q.spec(0).constraint, q.spec(0).constraint) << "one for each choice";
}

TEST(Parse, ChatsBecomeTheTemplatesTokens) {
  const auto r = parse_chat(R"({"messages":[{"role":"user","content":"hi<|im_end|>"}],"max_tokens":3})", context());
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(r));
  const auto& q = std::get<ApiRequest>(r);
  EXPECT_EQ(kTokenizer.decode(q.prompts[0], true),
            "<|im_user|>user<|im_middle|>hi<|im_end|><|im_end|><|im_assistant|>assistant<|im_middle|>");
  EXPECT_EQ(std::count(q.prompts[0].begin(), q.prompts[0].end(), control("<|im_end|>")), 1);
  EXPECT_EQ(q.stop_ids, std::vector<int32_t>{control("<|im_end|>")});
}

TEST(Format, TopLogprobsHaveDistinctKeys) {
  ApiRequest r;
  r.logprobs = true;
  r.top_logprobs = 3;
  const ApiContext c = context();
  const Formatter format(r, c, "id", 1);
  ChoiceAnswer a;
  a.text = "x";
  ChoiceAnswer::Scored first, second;
  first.has_logprob = false;
  first.entry = {'x', 0, {}, 0};
  // Two halves of characters and the token itself outside the best.
  second.entry = {'q', -3.5f, {{0xf0, -0.1f}, {0xf1, -0.2f}, {'y', -0.3f}}, 1};
  a.scored = {first, second};
  a.finish_reason = "length";
  const auto json = OrderedJson::parse(format.answer({a}, {2, 1, 0}));
  const auto& l = json["choices"][0]["logprobs"];
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
  EXPECT_TRUE(l["top_logprobs"][0].is_null());
  EXPECT_EQ(l["top_logprobs"][1].dump(), R"({"bytes:\\xf0":-0.1,"bytes:\\xf1":-0.2,"y":-0.3,"q":-3.5})");
  EXPECT_EQ(json["usage"]["total_tokens"], 3);
}

TEST(Format, ChunksAreValidJson) {
  ApiRequest r;
  r.kind = ApiKind::kChat;
  const ApiContext c = context();
  const Formatter format(r, c, "id", 1);
  const std::string odd = "quote \" back \\ line\n tab\t bell\x07 del\x7f é";
  const std::string chunk = format.chunk(0, odd, {{0, true, "functions.f:0", "f", ""}}, {}, "stop");
  ASSERT_EQ(chunk.substr(0, 6), "data: ");
  ASSERT_EQ(chunk.substr(chunk.size() - 2), "\n\n");
  EXPECT_EQ(chunk.find('\n'), chunk.size() - 2);
  const auto json = OrderedJson::parse(chunk.substr(6));
  EXPECT_EQ(json["choices"][0]["delta"]["content"], odd);
  EXPECT_EQ(json["choices"][0]["delta"]["tool_calls"][0]["function"]["name"], "f");
}

// Too short to hit is not the same as broken: every counter under its own name and reason, slot kinds that add up.
TEST(Metrics, B67_ReasonsAndKindsAreTheirOwn) {
  Metrics::Snapshot s;
  engine::EngineStats& e = s.engine;
  e.lookups = 101, e.hits = 11, e.misses_too_short = 12, e.misses_no_match = 13, e.misses_no_state = 14;
  e.misses_disabled = 15;
  e.checkpoints_written = 21, e.checkpoints_skipped = 22, e.checkpoints_duplicate = 23;
  e.prefill_tokens = 31, e.decode_tokens = 32, e.replayed_tokens = 33, e.restored_tokens = 34;
  e.cancelled = 41, e.nan_alarms = 42, e.retracted = 43;
  e.slots.capacity = 20, e.slots.free = 5, e.slots.working = 4, e.slots.reserved = 1, e.slots.cached = 10;
  e.tree.locked_states = 3;
  const std::string text = Metrics().text(s);
  for (const char* line : {"kadence_cache_lookups_total 101",
                           "kadence_cache_hits_total 11",
                           "kadence_cache_misses_total{reason=\"too_short\"} 12",
                           "kadence_cache_misses_total{reason=\"no_match\"} 13",
                           "kadence_cache_misses_total{reason=\"no_state\"} 14",
                           "kadence_cache_misses_total{reason=\"disabled\"} 15",
                           "kadence_checkpoints_total{result=\"written\"} 21",
                           "kadence_checkpoints_total{result=\"skipped\"} 22",
                           "kadence_checkpoints_total{result=\"refused\"} 23",
                           "kadence_tokens_total{kind=\"prefill\"} 31",
                           "kadence_tokens_total{kind=\"decode\"} 32",
                           "kadence_tokens_total{kind=\"replayed\"} 33",
                           "kadence_tokens_total{kind=\"restored\"} 34",
                           "kadence_aborts_total 41",
                           "kadence_nan_alarms_total 42",
                           "kadence_retractions_total 43",
                           "kadence_state_slots{kind=\"free\"} 5",
                           "kadence_state_slots{kind=\"working\"} 4",
                           "kadence_state_slots{kind=\"reserved\"} 1",
                           "kadence_state_slots{kind=\"cached\"} 7",
                           "kadence_state_slots{kind=\"pinned\"} 3"}) {
    EXPECT_NE(text.find(std::string("\n") + line + "\n"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace kadence::server
