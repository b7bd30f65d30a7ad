// A short, deterministic run of the fuzz entry points for every build: mutations of real files, blind and JSON-aware.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/rng.h"
#include "model_files.h"

namespace kadence::fuzz {
namespace {

using Json = nlohmann::json;
using Target = bool (*)(const uint8_t*, size_t);

std::string read(const std::string& name) {
  std::ifstream in(std::string(KADENCE_SOURCE_DIR) + "/models/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
bool run(Target target, const std::string& bytes) {
  return target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string with_length(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + data;
}

// Blind: bytes changed, removed, doubled, cut off; pieces that parsers stumble over.
std::string mutate_bytes(std::string s, base::Rng& rng) {
  static const std::string pieces[] = {
      "{",    "}",       "[",       "]",    "\"",  ",",   ":", "-1", "1e999", "18446744073709551616",
      "null", "\\u0000", "\\ud800", "\xff", "0.5", "true"};
  for (uint64_t n = 1 + rng.below(4); n > 0 && !s.empty(); --n) {
    const size_t at = rng.below(s.size());
    switch (rng.below(6)) {
      case 0:
        s[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        s[at] = static_cast<char>(s[at] ^ (1 << rng.below(8)));
        break;
      case 2:
        s.erase(at, 1 + rng.below(20));
        break;
      case 3:
        s.insert(at, s.substr(at, 1 + rng.below(40)));
        break;
      case 4:
        s.insert(at, pieces[rng.below(std::size(pieces))]);
        break;
      default:
        s.resize(at);
    }
  }
  return s;
}

Json strange_value(base::Rng& rng) {
  static const Json values[] = {nullptr,
                                true,
                                0,
                                -1,
                                1,
                                2,
                                3,
                                7,
                                64,
                                4096,
                                1000000007,
                                INT64_MAX,
                                INT64_MIN,
                                UINT64_MAX,
                                0.5,
                                -1e300,
                                "",
                                "x",
                                "F32",
                                "linear_attention",
                                "(a+)+$",
                                "\\p{L}+",
                                Json::array(),
                                Json::object(),
                                Json::array({0, 1}),
                                Json::array({1, 2, 3, 4})};
  return values[rng.below(std::size(values))];
}
// JSON-aware: one value somewhere replaced, removed or repeated.
void mutate_json(Json& j, base::Rng& rng, int depth = 0) {
  if ((j.is_object() || j.is_array()) && !j.empty() && (depth == 0 || rng.below(4) != 0)) {
    auto it = j.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng.below(j.size())));
    if (rng.below(8) == 0) {
      j.erase(it);
    } else {
      mutate_json(*it, rng, depth + 1);
      if (rng.below(8) == 0 && j.is_array()) j.push_back(*it);
    }
    return;
  }
  j = strange_value(rng);
}

// A tokenizer small enough to parse thousands of times.
Json small_tokenizer() {
  Json t = Json::parse(read("kadence-tiny/tokenizer.json"));
  Json vocab = Json::object(), merges = Json::array();
  for (const auto& [token, id] : t["model"]["vocab"].items())
    if (id < 300) vocab[token] = id;
  for (size_t i = 0; i < 44; ++i) merges.push_back(t["model"]["merges"][i]);
  t["model"]["vocab"] = vocab, t["model"]["merges"] = merges;
  return t;
}

void fuzz_json(Target target, const Json& seed, int rounds, int min_accepted) {
  const std::string text = seed.dump();
  ASSERT_TRUE(run(target, text));
  base::Rng rng(17);
  int accepted = 0;
  for (int i = 0; i < rounds; ++i) {
    Json j = seed;
    for (uint64_t n = rng.below(3) + 1; n > 0; --n) mutate_json(j, rng);
    const std::string changed = rng.below(2) ? j.dump() : mutate_bytes(text, rng);
    ASSERT_NO_THROW(accepted += run(target, changed)) << changed.substr(0, 2000);
  }
  // Both ways were taken, so the run went past the first check.
  EXPECT_GT(accepted, min_accepted);
  EXPECT_LT(accepted, rounds);
}

TEST(Fuzz, SafetensorsHeaders) {
  const std::string file = read("random-kimi/model-00002-of-00002.safetensors");
  ASSERT_TRUE(run(safetensors_header, file));
  const Json header = {{"__metadata__", {{"format", "pt"}}},
                       {"a", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
                       {"b", {{"dtype", "BF16"}, {"shape", {4}}, {"data_offsets", {24, 32}}}},
                       {"c", {{"dtype", "U8"}, {"shape", Json::array()}, {"data_offsets", {32, 33}}}}};
  ASSERT_TRUE(run(safetensors_header, with_length(header.dump(), std::string(33, 'x'))));
  base::Rng rng(5);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    Json j = header;
    mutate_json(j, rng);
    std::string bytes = with_length(j.dump(), std::string(33, 'x'));
    if (rng.below(3) == 0) bytes = mutate_bytes(bytes, rng);
    ASSERT_NO_THROW(accepted += run(safetensors_header, bytes)) << bytes;
  }
  EXPECT_GT(accepted, 100);
  for (int i = 0; i < 200; ++i) {
    const std::string bytes = mutate_bytes(file.substr(0, 8000), rng);
    ASSERT_NO_THROW(run(safetensors_header, bytes));
  }
}

TEST(Fuzz, Configs) {
  fuzz_json(config_json, Json::parse(read("kadence-tiny/config.json")), 4000, 200);
  fuzz_json(config_json, Json::parse(read("random-kimi/config.json")), 1000, 50);
}

TEST(Fuzz, Tokenizers) { fuzz_json(tokenizer_json, small_tokenizer(), 2000, 100); }

}  // namespace
}  // namespace kadence::fuzz
