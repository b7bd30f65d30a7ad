// A short, deterministic run of the server's fuzz entry points. KADENCE_FUZZ_SECONDS makes it longer (600 for the long
// run).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string>

#include "base/rng.h"
#include "server_requests.h"

namespace kadence::fuzz {
namespace {

const std::string kCompletions[] = {
    R"({"model":"fuzz","prompt":"Hello","max_tokens":5,"temperature":0.5,"top_p":0.9,"n":2,"stream":true,"stream_options":{"include_usage":true},"stop":["a","b"],"seed":7})",
    R"({"prompt":[1,2,3],"echo":true,"logprobs":5,"max_tokens":0,"presence_penalty":-1,"frequency_penalty":1.5,"top_k":40,"min_p":0.1})",
    R"({"prompt":[[1,2],[3]],"cache_salt":"s","use_cache":false,"ignore_eos":true,"stop_token_ids":[5],"logit_bias":{},"best_of":1,"user":"u"})",
    R"({"prompt":["x","\u00e9\ud83d\ude00"],"stop":"\n","repetition_penalty":1.1,"unknown":{"a":[1,2,{"b":null}]}})"};
const std::string kChats[] = {
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":9,"logprobs":true,"top_logprobs":2})",
    R"({"messages":[{"role":"user","content":"w"},{"role":"assistant","content":null,"tool_calls":[{"id":"functions.f:0","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"functions.f:0","content":"r"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"tool_choice":"auto"})",
    R"({"messages":[{"role":"user","content":"j"}],"response_format":{"type":"json_object"},"n":2,"stream":true})",
    R"({"messages":[{"role":"user","content":"t"}],"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g h"}}],"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false})"};
const std::string kTokenize[] = {R"({"prompt":"text","add_special":false})",
                                 R"({"messages":[{"role":"user","content":"x"}],"predict_cached_tokens":true})"};
const std::string kDetokenize[] = {R"({"tokens":[1,2,265]})"};

std::string mutate(std::string s, base::Rng& rng) {
  static const std::string pieces[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       ",",
                                       ":",
                                       "-1",
                                       "1e999",
                                       "null",
                                       "\\ud800",
                                       "\xff",
                                       "0.5",
                                       "true",
                                       "[[[[[",
                                       "18446744073709551616",
                                       "-9223372036854775808",
                                       "\"\"",
                                       "{}",
                                       "[]",
                                       "1.0",
                                       "\\u0000"};
  for (uint64_t n = rng.below(5); n > 0 && !s.empty(); --n) {
    const size_t at = rng.below(s.size());
    switch (rng.below(7)) {
      case 0:
        s[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        s.erase(at, 1 + rng.below(20));
        break;
      case 2:
        s.insert(at, s.substr(at, 1 + rng.below(40)));
        break;
      case 3:
        s.insert(at, pieces[rng.below(std::size(pieces))]);
        break;
      case 4: {  // one value for another: from a colon or comma to the next
        const size_t from = s.find_first_of(":,[", at);
        if (from == std::string::npos) break;
        const size_t to = s.find_first_of(",]}", from + 1);
        s.replace(from + 1, to == std::string::npos ? to : to - from - 1, pieces[rng.below(std::size(pieces))]);
        break;
      }
      case 5:
        std::swap(s[at], s[rng.below(s.size())]);
        break;
      default:
        if (rng.below(4) == 0) s.resize(at);
    }
  }
  return s;
}

template <size_t N>
void run(bool (*target)(const uint8_t*, size_t), const std::string (&seeds)[N], uint64_t stream) {
  base::Rng rng(stream);
  const char* asked = std::getenv("KADENCE_FUZZ_SECONDS");
  const double seconds = asked != nullptr ? std::atof(asked) : 0;
  const auto begin = std::chrono::steady_clock::now();
  int taken = 0, refused = 0;
  const auto call = [&](const std::string& s) {
    (target(reinterpret_cast<const uint8_t*>(s.data()), s.size()) ? taken : refused)++;
  };
  for (const std::string& seed : seeds) call(seed);
  EXPECT_EQ(refused, 0) << "a seed is refused";
  do {
    for (int i = 0; i < 40000; ++i) call(mutate(seeds[rng.below(N)], rng));
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds);
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

TEST(ServerFuzz, Completions) { run(completion_body, kCompletions, 1); }
TEST(ServerFuzz, Chats) { run(chat_body, kChats, 2); }
TEST(ServerFuzz, Tokenize) { run(tokenize_body, kTokenize, 3); }
TEST(ServerFuzz, Detokenize) { run(detokenize_body, kDetokenize, 4); }

TEST(ServerFuzz, AnswerTokens) {
  base::Rng rng(5);
  int stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string tokens(rng.below(60), '\0');
    for (char& c : tokens) c = static_cast<char>(rng.below(3) ? 'a' + rng.below(3) : rng.below(256));
    stopped += answer_tokens(reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size());
  }
  EXPECT_GT(stopped, 100);
  EXPECT_LT(stopped, 19900);
}

}  // namespace
}  // namespace kadence::fuzz
