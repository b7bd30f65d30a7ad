// The same bits for a token whatever else is in the call, however its prompt was cut on the grid, and on any number of
// threads.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "model/tests/harness.h"

namespace kadence::model {
namespace {

using base::ErrorCode;

std::vector<int32_t> random_tokens(uint64_t seed, int64_t n, int32_t vocab = 512) {
  base::Rng rng(seed);
  std::vector<int32_t> v(static_cast<size_t>(n));
  for (int32_t& t : v) t = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  return v;
}
std::vector<int32_t> part(const std::vector<int32_t>& v, size_t begin, size_t end) {
  return {v.begin() + static_cast<std::ptrdiff_t>(begin), v.begin() + static_cast<std::ptrdiff_t>(end)};
}

void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    uint32_t a, b;
    std::memcpy(&a, &got[i], 4), std::memcpy(&b, &want[i], 4);
    ASSERT_EQ(a, b) << what << ": value " << i << " is " << got[i] << ", wanted " << want[i];
  }
}

struct Result {
  std::vector<float> logits, cache;
};

class Exactness : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return model_dir(GetParam()); }
  std::vector<int32_t> prompt(uint64_t seed, int64_t n) const { return random_tokens(seed, n, 512); }
  // The prompt alone on one thread, in one call, then three sampled tokens.
  Result whole(const std::vector<int32_t>& tokens) const {
    Harness h(dir(), 1);
    Sequence s = h.open(1024);
    Result r{h.prefill(s, tokens), {}};
    append_steps(h, s, r);
    return r;
  }
  static void append_steps(Harness& h, Sequence& s, Result& r) {
    for (const int32_t t : {5, 77, 400}) {
      const std::vector<float> l = h.step(s, t);
      r.logits.insert(r.logits.end(), l.begin(), l.end());
    }
    r.cache = h.cache_of(s.slot);
  }
};

TEST_P(Exactness, CutsOnTheGrid) {
  const std::vector<int32_t> tokens = prompt(1, 277);
  const Result want = whole(tokens);
  for (const std::vector<size_t>& cuts : {std::vector<size_t>{64}, {128}, {64, 128, 192, 256}, {256}}) {
    Harness h(dir(), 2);
    Sequence s = h.open(1024);
    Result got;
    size_t at = 0;
    std::vector<size_t> ends = cuts;
    ends.push_back(tokens.size());
    for (const size_t end : ends) {
      const std::vector<float> l = h.prefill(s, part(tokens, at, end));
      got.logits.insert(got.logits.end(), l.begin(), l.end());
      at = end;
    }
    append_steps(h, s, got);
    expect_bits(got.logits, want.logits, "logits");
    expect_bits(got.cache, want.cache, "state and window");
  }
}

TEST_P(Exactness, BatchesAndThreads) {
  const std::vector<std::vector<int32_t>> prompts = {prompt(1, 277), prompt(2, 1),  prompt(3, 64),
                                                     prompt(4, 130), prompt(5, 63), prompt(6, 200)};
  std::vector<Result> want;
  for (const auto& p : prompts) want.push_back(whole(p));
  for (const auto& [threads, reversed] : {std::pair{1, true}, {2, false}, {3, true}}) {
    Harness h(dir(), threads, Harness::small_options(), 128);
    std::vector<Sequence> sequences(prompts.size());
    for (Sequence& s : sequences) s = h.open(1024);
    std::vector<PrefillRow> rows;
    std::vector<size_t> order(prompts.size());
    std::iota(order.begin(), order.end(), 0);
    if (reversed) std::reverse(order.begin(), order.end());
    for (const size_t i : order) rows.push_back({&sequences[i], prompts[i]});
    const auto logits = h.prefill(rows);
    std::vector<Result> got(prompts.size());
    for (size_t r = 0; r < order.size(); ++r) got[order[r]].logits = logits[r];
    for (const int32_t t : {5, 77, 400}) {
      std::vector<PrefillRow> steps;
      for (const size_t i : order) steps.push_back({&sequences[i], {t}});
      const auto l = h.run(steps, ops::GemmPhase::kDecode);
      for (size_t r = 0; r < order.size(); ++r)
        got[order[r]].logits.insert(got[order[r]].logits.end(), l[r].begin(), l[r].end());
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      expect_bits(got[i].logits, want[i].logits, "logits");
      expect_bits(h.cache_of(sequences[i].slot), want[i].cache, "state and window");
    }
  }
}

TEST_P(Exactness, ResumingFromACheckpointGivesTheColdBits) {
  const std::vector<int32_t> tokens = prompt(7, 250), branch = prompt(8, 90);
  const Result want = whole(tokens);
  std::vector<int32_t> branched = part(tokens, 0, 128);
  branched.insert(branched.end(), branch.begin(), branch.end());
  const Result want_branch = whole(branched);

  Harness h(dir(), 2);
  Sequence s = h.open(1024);
  const int32_t at64 = h.new_slot(), at128 = h.new_slot();
  h.prefill({{&s, tokens, {{64, at64}, {128, at128}}}});
  const std::vector<float> kept = h.cache_of(at128);
  for (const auto& [depth, slot] : {std::pair{size_t{64}, at64}, {size_t{128}, at128}}) {
    Sequence r = s;  // the pages are shared up to the checkpoint; later ones are rewritten with the same values
    r.slot = h.new_slot(), r.done = static_cast<int64_t>(depth), r.restored = slot;
    Result got{h.prefill(r, part(tokens, depth, tokens.size())), {}};
    append_steps(h, r, got);
    const auto skip = static_cast<std::ptrdiff_t>(depth) * h.vocab();
    expect_bits(got.logits, std::vector<float>(want.logits.begin() + skip, want.logits.end()), "logits");
    expect_bits(got.cache, want.cache, "state and window");
  }
  Sequence b = h.open(256);
  b.pages[0] = s.pages[0], b.pages[1] = s.pages[1];
  b.done = 128, b.restored = at128;
  Result got{h.prefill(b, branch), {}};
  append_steps(h, b, got);
  expect_bits(got.logits, std::vector<float>(want_branch.logits.begin() + 128 * h.vocab(), want_branch.logits.end()),
              "branch");
  expect_bits(h.cache_of(at128), kept, "checkpoint");  // restored from, never written
}

TEST_P(Exactness, WantedLogitsAndBlocksChangeNothing) {
  const std::vector<int32_t> tokens = prompt(9, 300);
  const Result want = whole(tokens);
  for (const int32_t block : {64, 128}) {
    ForwardOptions o = Harness::small_options();
    o.extend_block_tokens = block;
    o.limits.max_logit_rows = 3;
    Harness h(dir(), 2, o);
    Sequence s = h.open(1024);
    ForwardBatch b = h.batch({{&s, tokens}}, ops::GemmPhase::kPrefill);
    b.logit_tokens = {0, 150, 299};
    const std::vector<float> got = h.forward(b);
    for (size_t i = 0; i < 3; ++i) {
      const auto row = static_cast<size_t>(b.logit_tokens[i] * h.vocab());
      expect_bits(std::vector<float>(got.begin() + static_cast<std::ptrdiff_t>(i) * h.vocab(),
                                     got.begin() + static_cast<std::ptrdiff_t>(i + 1) * h.vocab()),
                  std::vector<float>(want.logits.begin() + static_cast<std::ptrdiff_t>(row),
                                     want.logits.begin() + static_cast<std::ptrdiff_t>(row) + h.vocab()),
                  "logits");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::Values("random-kimi", "kadence-tiny"),
                         [](const auto& p) { return p.param == "random-kimi" ? "RandomKimi" : "KadenceTiny"; });

TEST(Forward, BadBatchesAreRefusedByName) {
  Harness h(model_dir("random-kimi"), 1);
  Sequence s = h.open(1024);
  const auto refuse = [&](const std::function<void(ForwardBatch&)>& change, const std::string& a,
                          const std::string& b = "") {
    ForwardBatch batch = h.batch({{&s, random_tokens(1, 100)}}, ops::GemmPhase::kPrefill);
    change(batch);
    EXPECT_ERROR(h.forward(batch), ErrorCode::kInvalidArgument, a, b);
  };
  refuse([](ForwardBatch& b) { b.tokens[7] = 512; }, "tokens[7]", "512");
  refuse([](ForwardBatch& b) { b.tokens[99] = -1; }, "tokens[99]", "-1");
  refuse([](ForwardBatch& b) { b.start[0] = 32; }, "start[0]", "grid");
  refuse([](ForwardBatch& b) { b.start[0] = 64; }, "state_in[0]", "64");
  refuse([](ForwardBatch& b) { b.state_out[0] = 100; }, "state_out", "100");
  refuse([](ForwardBatch& b) { b.seq_begin[1] = 99; }, "seq_begin");
  refuse([](ForwardBatch& b) { b.seq_begin.pop_back(); }, "seq_begin");
  refuse([](ForwardBatch& b) { b.page_table[1] = -1; }, "page 1 of row 0", "-1");
  refuse([](ForwardBatch& b) { b.page_table[0] = 64; }, "page 0 of row 0", "64");
  refuse([](ForwardBatch& b) { b.max_pages = 1, b.page_table.resize(1); }, "max_pages", "2");
  refuse([](ForwardBatch& b) { b.logit_tokens = {5, 5}; }, "logit_tokens[1]", "5");
  refuse([](ForwardBatch& b) { b.logit_tokens = {100}; }, "logit_tokens[0]", "100");
  refuse([](ForwardBatch& b) { b.phase = ops::GemmPhase::kDecode, b.state_in[0] = 0; }, "tokens", "16");
  refuse([](ForwardBatch& b) { b.ckpt_begin = {0, 1}, b.ckpt_depth = {63}, b.ckpt_slot = {1}; }, "ckpt_depth", "63");
  refuse([](ForwardBatch& b) { b.tokens.resize(1025), b.seq_begin[1] = 1025; }, "tokens", "1024");
  ForwardBatch step = h.batch({{&s, {3}}}, ops::GemmPhase::kDecode);
  EXPECT_ERROR(h.forward(step), ErrorCode::kInvalidArgument, "state_in[0]");
  h.caches().windows.dtype = base::DType::kBF16;
  EXPECT_ERROR(h.prefill(s, {1}), ErrorCode::kInvalidArgument, "windows");
}

TEST(Forward, NeedsPrepareAndASaneLimit) {
  device::Stream stream = device::Stream::cpu(1);
  const auto model = load_model(model_dir("random-kimi"), {}, stream);
  EXPECT_ERROR(model->forward({}, {}, {}, stream), ErrorCode::kInvalidArgument, "prepare");
  ForwardOptions o;
  o.limits.max_rows = 0;
  EXPECT_ERROR(model->prepare(o, stream), ErrorCode::kInvalidArgument, "max_rows");
  o = {};
  o.prefill_backend = "warp";
  EXPECT_ERROR(model->prepare(o, stream), ErrorCode::kInvalidArgument, "warp");
}

}  // namespace
}  // namespace kadence::model
