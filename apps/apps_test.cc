// The parts of the binary that need no model: numbers, tables, score lines, stop strings, contexts, flags.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "apps/check.h"
#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/numbers.h"
#include "apps/score_line.h"
#include "apps/table.h"
#include "base/error.h"
#include "base/rng.h"

namespace kadence::apps {
namespace {

TEST(ParseBytes, UnitsOfBothKinds) {
  EXPECT_EQ(parse_bytes("--memory", "80GiB"), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("--memory", "512MiB"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("--memory", "3KiB"), 3072);
  EXPECT_EQ(parse_bytes("--memory", "1.5GB"), 1500000000);
  EXPECT_EQ(parse_bytes("--memory", "2 KB"), 2000);
  EXPECT_EQ(parse_bytes("--memory", "4096"), 4096);
  EXPECT_EQ(parse_bytes("--memory", "1TiB"), int64_t{1} << 40);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "GiB", "-1GiB", "0", "80G", "80gib", "1e30TiB", "nan", "inf", "0x10", "1GiB2", "0.1"})
    EXPECT_THROW(parse_bytes("--memory", bad), UsageError) << bad;
  try {
    parse_bytes("--memory", "lots");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "--memory: wanted a positive size such as 80GiB, 512MiB or 4096, got 'lots'");
  }
}

TEST(Shortest, ReadsBackToTheSameFloatAndIsShort) {
  EXPECT_EQ(Json(shortest(0.1f)).dump(), "0.1");
  EXPECT_EQ(Json(shortest(-2.2566533f)).dump(), "-2.2566533");
  EXPECT_EQ(Json(shortest(-0.0f)).dump(), "-0.0");
  EXPECT_EQ(Json(shortest(std::nanf(""))).dump(), "null");
  base::Rng rng(7);
  for (int i = 0; i < 200000; ++i) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(rng.next()));
    if (!std::isfinite(f)) continue;
    const float back = static_cast<float>(std::stod(Json(shortest(f)).dump()));
    ASSERT_EQ(std::bit_cast<uint32_t>(back), std::bit_cast<uint32_t>(f)) << f;
  }
}

TEST(ParseIds, JsonListsAndPlainNumbers) {
  const std::vector<int32_t> want{1, 22, 333};
  for (const char* text : {"[1, 22, 333]", "1 22 333", "1,22,333\n", " [1,22,333]\n", "1\n22\n333\n", "\t1\r\n22 ,333"})
    EXPECT_EQ(parse_ids(text, "f"), want) << text;
  EXPECT_TRUE(parse_ids("", "f").empty());
  EXPECT_TRUE(parse_ids("[]", "f").empty());
}

TEST(ParseIds, RefusesWhatIsNoId) {
  for (const char* bad : {"[1, 2", "[", "1.5", "x", "1 2x", "99999999999", "[[1]]", "{\"ids\":[1]}", "1 2]"})
    EXPECT_THROW(parse_ids(bad, "f"), base::Error) << bad;
}

TEST(ParseList, PositiveIntegersOnly) {
  EXPECT_EQ(parse_list("--contexts", "2048,8320"), (std::vector<int64_t>{2048, 8320}));
  for (const char* bad : {"", "2048,", ",1", "a", "1 2", "-5", "0", "1.0"})
    EXPECT_THROW(parse_list("--contexts", bad), UsageError) << bad;
}

TEST(Table, AlignsNumbersRightAndDropsEmptyColumns) {
  Table t("Title", {{"name", "name"},
                    {"n", "count", Format::kInteger},
                    {"gap", "gap", Format::kNumber},
                    {"ok", "ok", Format::kYesNo}});
  t.add({"a", 71936, nullptr, true});
  t.add({"long name", 5, nullptr, false});
  EXPECT_EQ(t.text(),
            "Title\n"
            "  name        count  ok\n"
            "  a          71,936  yes\n"
            "  long name       5  NO\n");
  EXPECT_EQ(t.json().dump(),
            R"([{"name":"a","n":71936,"gap":null,"ok":true},{"name":"long name","n":5,"gap":null,"ok":false}])");
  EXPECT_THROW(t.add({"too few"}), base::Error);
}

TEST(Format, PeopleReadableSizesAndTimes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(85899345920.0), "80.00 GiB");
  EXPECT_EQ(format_seconds(0.00456), "4.56 ms");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(999), "999");
}

// -- score lines ----------------------------------------------------------------------------------------------------

constexpr ScoreLimits kLimits{512, nullptr};

engine::RequestSpec good(const std::string& line) {
  auto r = parse_score_line(line, kLimits);
  EXPECT_TRUE(r.ok()) << line << ": " << (r.ok() ? "" : r.reason());
  return r.ok() ? r.value() : engine::RequestSpec{};
}
std::string bad(const std::string& line) {
  auto r = parse_score_line(line, kLimits);
  EXPECT_FALSE(r.ok()) << line;
  return r.ok() ? "" : r.reason();
}

TEST(ScoreLine, Defaults) {
  const auto spec = good(R"({"ids":[5,6,511]})");
  EXPECT_EQ(spec.ids, (std::vector<int32_t>{5, 6, 511}));
  EXPECT_EQ(spec.score_from, -1);
  EXPECT_EQ(spec.max_tokens, 0);
  EXPECT_TRUE(spec.use_cache);
  EXPECT_TRUE(spec.ignore_eos);
  EXPECT_EQ(spec.sampling.temperature, 0);
}

TEST(ScoreLine, Fields) {
  const auto spec = good(R"({"ids":[5,6,7],"from":2,"cache":false,"max_tokens":4,"ignore_eos":false})");
  EXPECT_EQ(spec.score_from, 2);
  EXPECT_EQ(spec.max_tokens, 4);
  EXPECT_FALSE(spec.use_cache);
  EXPECT_FALSE(spec.ignore_eos);
  EXPECT_EQ(good(R"({"ids":[5,6,7],"from":1})").score_from, 1);
  EXPECT_EQ(good(R"({"ids":[5,6,7],"from":3})").score_from, -1);  // nothing scored
}

TEST(ScoreLine, EveryKindOfBadLineSaysWhat) {
  EXPECT_EQ(bad(""), "empty line: wanted a JSON object");
  EXPECT_EQ(bad(" \r"), "empty line: wanted a JSON object");
  EXPECT_NE(bad("{\"ids\":[1,2").find("not valid JSON"), std::string::npos);
  EXPECT_NE(bad("{\"ids\":[1]} trailing").find("not valid JSON"), std::string::npos);
  EXPECT_NE(bad("{\"text\":\"\xff\"}").find("not valid JSON"), std::string::npos);
  EXPECT_EQ(bad("[1,2]"), "wanted a JSON object, got [1,2]");
  EXPECT_EQ(bad("{}"), "neither \"ids\" nor \"text\" given");
  EXPECT_EQ(bad(R"({"ids":[1],"text":"a"})"), "both \"ids\" and \"text\" given: wanted one of them");
  EXPECT_EQ(bad(R"({"ids":[]})"), "the prompt is empty: at least one token is needed");
  EXPECT_EQ(bad(R"({"ids":"1 2"})"), "\"ids\": wanted a list of integers, got \"1 2\"");
  EXPECT_EQ(bad(R"({"ids":[1,512]})"), "\"ids[1]\": wanted an integer from 0 to 511, got 512");
  EXPECT_EQ(bad(R"({"ids":[-1]})"), "\"ids[0]\": wanted an integer from 0 to 511, got -1");
  EXPECT_EQ(bad(R"({"ids":[1.0]})"), "\"ids[0]\": wanted an integer from 0 to 511, got 1.0");
  EXPECT_EQ(bad(R"({"ids":[18446744073709551615]})"),
            "\"ids[0]\": wanted an integer from 0 to 511, got 18446744073709551615");
  EXPECT_EQ(bad(R"({"ids":[1e400]})").substr(0, 14), "not valid JSON");
  EXPECT_EQ(bad(R"({"ids":[true]})"), "\"ids[0]\": wanted an integer from 0 to 511, got true");
  EXPECT_EQ(bad(R"({"ids":[1,2],"from":0})"), "\"from\": wanted an integer from 1 to 2, got 0");
  EXPECT_EQ(bad(R"({"ids":[1,2],"from":3})"), "\"from\": wanted an integer from 1 to 2, got 3");
  EXPECT_EQ(bad(R"({"ids":[1,2],"from":"1"})"), "\"from\": wanted an integer from 1 to 2, got \"1\"");
  EXPECT_EQ(bad(R"({"ids":[1],"cache":0})"), "\"cache\": wanted true or false, got 0");
  EXPECT_EQ(bad(R"({"ids":[1],"ignore_eos":null})"), "\"ignore_eos\": wanted true or false, got null");
  EXPECT_EQ(bad(R"({"ids":[1],"max_tokens":-1})"), "\"max_tokens\": wanted an integer from 0 to 2147483647, got -1");
  EXPECT_EQ(bad(R"({"ids":[1],"max_token":3})"),
            "unknown field \"max_token\": known are ids, text, from, cache, max_tokens, ignore_eos");
  EXPECT_EQ(bad(R"({"text":"hello"})"), "\"text\": the model has no tokenizer, give \"ids\"");
  EXPECT_EQ(bad(R"({"text":7})"), "\"text\": wanted a string, got 7");
}

TEST(ScoreLine, DeepNestingIsRefusedAndNotFollowed) {
  const std::string deep = "{\"ids\":" + std::string(2000000, '[');
  EXPECT_EQ(bad(deep), "nested deeper than 8 levels");
}

TEST(ScoreAnswer, FieldsInOrder) {
  engine::RequestOutput out;
  out.logprobs = {-0.1f, -2.5f};
  out.cached_tokens = 64;
  out.prefill_seconds = 0.5;
  out.output_ids = {3};
  out.output_logprobs = {-1};
  EXPECT_EQ(
      one_line(score_answer(out, false)),
      R"({"logprobs":[-0.1,-2.5],"cached_tokens":64,"prefill_ms":500.0,"output_ids":[3],"output_logprobs":[-1.0]})");
  EXPECT_EQ(score_answer(out, true)["finish_reason"], "length");
  out.reason = engine::FinishReason::kStop;
  EXPECT_EQ(score_answer(out, true)["finish_reason"], "stop");
  EXPECT_EQ(score_answer(out, true).size(), score_answer(out, false).size() + 1);
  out.reason = engine::FinishReason::kError;
  out.error = "pools are too small";
  EXPECT_EQ(one_line(score_answer(out, true)), R"({"error":"pools are too small"})");
  EXPECT_EQ(one_line(score_error("bytes \xff")), "{\"error\":\"bytes \xef\xbf\xbd\"}");
}

// -- checks ---------------------------------------------------------------------------------------------------------

TEST(Compare, SeesTheLastBitAndNaN) {
  const Difference same = compare({-1.5f, -2.0f}, {-1.5f, -2.0f});
  EXPECT_TRUE(same.bits && same.finite && same.max == 0);
  const Difference close = compare({-1.5f, -2.0f}, {-1.5f, std::nextafter(-2.0f, 0.0f)});
  EXPECT_FALSE(close.bits);
  EXPECT_GT(close.max, 0);
  EXPECT_FALSE(compare({0.0f}, {-0.0f}).bits);
  const float nan = std::nanf("");
  EXPECT_FALSE(compare({nan}, {nan}).finite);
  EXPECT_THROW(compare({1.0f}, {}), base::Error);
}

TEST(Compare, MeanAndPercentile) {
  std::vector<float> a, b;
  for (int i = 0; i < 100; ++i) a.push_back(0), b.push_back(static_cast<float>(i));
  const Difference d = compare(a, b);
  EXPECT_DOUBLE_EQ(d.mean, 49.5);
  EXPECT_DOUBLE_EQ(d.p90, 90);
  EXPECT_DOUBLE_EQ(d.max, 99);
}

TEST(MakeContext, PrefixStableDeterministicNotPeriodic) {
  Json golden = Json::object();
  golden["prompts"] = Json::array({Json{{"token_ids", {1, 2, 3, 4, 5}}}, Json{{"token_ids", {6, 7}}}});
  const auto a = make_context(golden, 512, 5000), b = make_context(golden, 512, 3000);
  EXPECT_TRUE(std::equal(b.begin(), b.end(), a.begin()));
  EXPECT_EQ(std::vector<int32_t>(a.begin(), a.begin() + 7), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7}));
  for (const int32_t id : a) EXPECT_TRUE(id >= 1 && id <= 7);
  EXPECT_FALSE(std::equal(a.begin() + 49, a.begin() + 2000, a.begin() + 98));
  for (const int32_t id : make_context(Json::object(), 100, 5000)) EXPECT_TRUE(id >= 0 && id < 100);
}

TEST(MakeContext, BeginsWithTheLongestCopyCase) {
  Json golden = Json::object();
  golden["copy_cases"] = Json::array({Json{{"token_ids", {9, 9}}}, Json{{"token_ids", {5, 6, 7}}}});
  EXPECT_EQ(make_context(golden, 512, 5), (std::vector<int32_t>{5, 6, 7, 9, 9}));
}

// -- flags ----------------------------------------------------------------------------------------------------------

struct Parsed {
  CLI::App app;
  EngineFlags flags;
  explicit Parsed(std::vector<std::string> arguments) {
    add_engine_flags(app, &flags, FlagSet::kServing);
    arguments.insert(arguments.begin(), {"--model", "m"});
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
  }
};

TEST(Flags, NamesThatSglangUsersKnow) {
  const Parsed p({"--chunked-prefill-size",
                  "512",
                  "--max-prefill-tokens",
                  "1024",
                  "--page-size",
                  "16",
                  "--mamba-track-interval",
                  "128",
                  "--mamba-ssm-dtype",
                  "bfloat16",
                  "--max-running-requests",
                  "3",
                  "--linear-attn-prefill-backend",
                  "reference",
                  "--linear-attn-decode-backend",
                  "cpu",
                  "--linear-attn-verify-backend",
                  "cpu",
                  "--kda-extend-block-tokens",
                  "128",
                  "--cache-generated",
                  "step",
                  "--state-slots",
                  "9",
                  "--kv-tokens",
                  "640",
                  "--context-length",
                  "100"});
  const engine::EngineOptions o = engine_options(p.flags);
  EXPECT_EQ(o.chunked_prefill_size, 512);
  EXPECT_EQ(o.max_prefill_tokens, 1024);
  EXPECT_EQ(o.page_size, 16);
  EXPECT_EQ(o.track_interval, 128);
  EXPECT_EQ(o.state_dtype, base::DType::kBF16);
  EXPECT_EQ(o.max_running_requests, 3);
  EXPECT_EQ(o.prefill_backend, "reference");
  EXPECT_EQ(o.decode_backend, "cpu");
  EXPECT_EQ(o.verify_backend, "cpu");
  EXPECT_EQ(o.extend_block_tokens, 128);
  EXPECT_EQ(o.cache_generated, engine::CacheGenerated::kStep);
  EXPECT_EQ(o.state_slots, 9);
  EXPECT_EQ(o.kv_tokens, 640);
  EXPECT_EQ(o.context_length, 100);
  EXPECT_TRUE(o.radix_cache);
}

// What flags must say when they contradict: both names.
void expect_contradiction(const std::vector<std::string>& arguments, const std::string& one, const std::string& other) {
  const Parsed p(arguments);
  try {
    engine_options(p.flags);
    device_info(p.flags.device);
    FAIL() << one << " with " << other << " was taken";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find(one), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(other), std::string::npos) << e.what();
  }
}

TEST(Flags, ContradictionsNameBoth) {
  expect_contradiction({"--disable-radix-cache", "--cache-generated", "replay"}, "--disable-radix-cache",
                       "--cache-generated");
  expect_contradiction({"--chunked-prefill-size", "8192", "--max-prefill-tokens", "4096"}, "--chunked-prefill-size",
                       "--max-prefill-tokens");
  expect_contradiction({"--memory", "1GiB", "--state-slots", "8", "--kv-tokens", "640"}, "--memory", "--state-slots");
  expect_contradiction({"--device", "cuda", "--isa", "avx2"}, "--device", "--isa");
  expect_contradiction({"--device", "cuda:1", "--threads", "2"}, "--device", "--threads");
}

TEST(Flags, DisableRadixCacheAloneTurnsReplayOff) {
  const engine::EngineOptions o = engine_options(Parsed({"--disable-radix-cache"}).flags);
  EXPECT_FALSE(o.radix_cache);
  EXPECT_EQ(o.cache_generated, engine::CacheGenerated::kOff);
}

TEST(Flags, BadValues) {
  EXPECT_THROW(engine_options(Parsed({"--mamba-ssm-dtype", "int8"}).flags), UsageError);
  EXPECT_THROW(engine_options(Parsed({"--dtype", "bfloat16"}).flags), UsageError);
  EXPECT_THROW(engine_options(Parsed({"--dtype", "x"}).flags), UsageError);
  EXPECT_THROW(Parsed({"--threads", "-1"}), CLI::ParseError);
  EXPECT_THROW(Parsed({"--isa", "sse"}), CLI::ParseError);
  EXPECT_THROW(Parsed({"--max-running-requests", "0"}), CLI::ParseError);
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999"}) {
    DeviceFlags flags;
    flags.device = device;
    EXPECT_THROW(device_info(flags), UsageError) << device;
  }
}

}  // namespace
}  // namespace kadence::apps
