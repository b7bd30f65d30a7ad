// `kadence check branching`: an unrelated branch of a shared prefix must not change what another branch sees.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/check.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"

namespace kadence::apps {
namespace {

// What a correct cache of unlimited size gives, from the rules alone (architecture: the 64-token grid and cache rules):
// every sequence seen leaves states at floor((n-1)/G)*G, floor(n/G)*G, at the ends of its chunks, and at the branch
// point that it discovered: the last grid point of what was cached of it that it was allowed to skip.
class ExpectedCache {
 public:
  ExpectedCache(int64_t grid, int64_t chunk) : grid_(grid), chunk_(chunk) {}

  // Resume depth of `ids` when position `from` is the first that must be computed; then remembers the sequence.
  int64_t serve(const std::vector<int32_t>& ids, int64_t from) {
    const auto n = static_cast<int64_t>(ids.size());
    const int64_t limit = std::min(from, n) - 1;
    int64_t resume = 0, shared = 0;
    for (const Entry& e : entries_) {
      const auto common =
          static_cast<int64_t>(std::mismatch(ids.begin(), ids.end(), e.ids.begin(), e.ids.end()).first - ids.begin());
      shared = std::max(shared, base::round_down(std::min(common, e.published), grid_));
      for (const int64_t depth : e.states) {
        if (depth <= common && depth <= limit) resume = std::max(resume, depth);
      }
    }
    Entry mine{ids, base::round_down(n, grid_), {base::round_down(n - 1, grid_), base::round_down(n, grid_)}};
    for (int64_t end = resume + base::round_down(chunk_, grid_); end < n; end += base::round_down(chunk_, grid_))
      mine.states.push_back(end);
    if (const int64_t branch = base::round_down(std::min(shared, limit), grid_); branch > resume)
      mine.states.push_back(branch);
    entries_.push_back(std::move(mine));
    return resume;
  }

 private:
  struct Entry {
    std::vector<int32_t> ids;
    int64_t published;
    std::vector<int64_t> states;
  };
  int64_t grid_, chunk_;
  std::vector<Entry> entries_;
};

double mean_after(const std::vector<float>& logprobs, size_t skip) {
  double sum = 0;
  for (size_t i = skip; i < logprobs.size(); ++i) sum += static_cast<double>(logprobs[i]);
  return sum / static_cast<double>(logprobs.size() - skip);
}

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Prefix, branch A and branch B of a model's recorded prompts; the means recorded for kadence-tiny hold for those.
struct Input {
  std::vector<int32_t> prefix, a, b;
  bool recorded = false;
};

Input make_input(const Json& golden, int32_t vocab) {
  constexpr int64_t kPrefix = 8320;
  Input in;
  if (golden.contains("copy_cases")) {
    for (const Json& c : golden["copy_cases"]) {
      if (c["context"] == kPrefix) in.prefix = c["token_ids"].get<std::vector<int32_t>>();
    }
    for (const Json& p : golden["prompts"]) {
      auto ids = p["token_ids"].get<std::vector<int32_t>>();
      if (p["name"] == "heldout-700")
        in.a = std::move(ids);
      else
        in.b.insert(in.b.end(), ids.begin(), ids.end());
    }
    in.recorded = in.prefix.size() == static_cast<size_t>(kPrefix) && in.a.size() == 700 && !in.b.empty();
    if (in.recorded) return in;
  }
  // A model without these records: the same procedure on made-up text; only the bits and depths are checked.
  const auto ids = make_context(golden, vocab, kPrefix + 1200);
  in.prefix.assign(ids.begin(), ids.begin() + kPrefix);
  in.a.assign(ids.begin() + kPrefix, ids.begin() + kPrefix + 700);
  in.b.assign(ids.begin() + kPrefix + 700, ids.end());
  in.b.front() = (in.a.front() + 1) % vocab;  // diverges at once
  return in;
}

struct Span {
  int64_t begin;
  double recorded_mean;
};
constexpr Span kSpans[] = {{0, -0.0338}, {60, -0.0226}, {120, -0.0172}};

}  // namespace

CheckReport check_branching(const CheckOptions& options, Progress& progress) {
  const base::SteadyClock clock;
  const double begin = clock.now();
  CheckReport report;
  report.name = "branching";
  const model::ModelConfig config = model::load_config(options.model);
  const Input in = make_input(load_golden(options.model), config.vocab);
  engine::EngineOptions engine_flags = engine_options(options.engine);
  const auto longest = static_cast<int64_t>(in.prefix.size() + in.a.size() + in.b.size()) + kContinuation;
  engine_flags.context_length = std::max(longest, config.max_context);
  engine_flags.kv_tokens = base::round_up<int64_t>(4 * longest, 64 * int64_t{engine_flags.page_size});
  engine_flags.state_slots = 96;
  report.notes.push_back(
      fmt::format("--context-length set to {} (the config says {}), --kv-tokens to {}, --state-slots to {}",
                  with_commas(engine_flags.context_length), with_commas(config.max_context),
                  with_commas(engine_flags.kv_tokens), engine_flags.state_slots));
  Session session = open_session(options.model, options.engine.device, engine_flags, progress);
  engine::Engine& engine = *session.engine;
  ExpectedCache expected(engine.memory_plan().grids.checkpoint, engine_flags.chunked_prefill_size);

  Table table(
      fmt::format("Branch A, {} tokens into an {}-token prefix, before and after an unrelated branch B",
                  with_commas(static_cast<int64_t>(in.a.size())), with_commas(static_cast<int64_t>(in.prefix.size()))),
      {{"span", "span of A"},
       {"request", "request"},
       {"tokens", "tokens", Format::kInteger},
       {"expected_tokens", "resume expected", Format::kInteger},
       {"predicted_tokens", "engine predicts", Format::kInteger},
       {"cached_tokens", "resumed at", Format::kInteger},
       {"mean", "mean log-prob", Format::kText},
       {"recorded_mean", "recorded", Format::kText},
       {"equal", "equal to before", Format::kYesNo},
       {"ok", "ok", Format::kYesNo}});
  // Serves one request and checks its resume depth; scored positions start at `from` (the length = none).
  auto serve = [&](const std::vector<int32_t>& ids, int64_t from, Json* facts) {
    engine::RequestSpec spec;
    spec.ids = ids;
    if (from < static_cast<int64_t>(ids.size())) spec.score_from = from;
    const int64_t want = expected.serve(ids, from), predicted = engine.predict_cached_tokens(spec);
    engine::RequestOutput out = run_request(engine, spec);
    *facts = Json{{"expected", want}, {"predicted", predicted}, {"cached", out.cached_tokens}};
    return out;
  };
  auto depth_holds = [](const Json& f) { return f["expected"] == f["cached"] && f["predicted"] == f["cached"]; };
  auto add = [&](const std::string& span, const char* request, size_t tokens, const Json& facts, Json mean,
                 Json recorded, Json equal) {
    bool ok = depth_holds(facts) && (equal.is_null() || equal.get<bool>());
    if (!recorded.is_null()) ok &= std::fabs(mean.get<double>() - recorded.get<double>()) <= kGoldenTolerance;
    report.ok &= ok;
    auto text = [](const Json& x) { return x.is_null() ? Json() : Json(std::round(x.get<double>() * 1e6) / 1e6); };
    table.add({span, request, tokens, facts["expected"], facts["predicted"], facts["cached"], text(mean),
               text(recorded), equal, ok});
  };

  Json facts;
  progress.show("branching: caching the prefix");
  serve(in.prefix, static_cast<int64_t>(in.prefix.size()), &facts);
  add("", "prefix", in.prefix.size(), facts, {}, {}, {});
  int branches = 0;
  for (const Span& span : kSpans) {
    const std::string name = fmt::format("A[{}:{}]", span.begin, span.begin + kContinuation);
    const std::vector<int32_t> copy(in.a.begin() + span.begin, in.a.begin() + span.begin + kContinuation);
    const std::vector<int32_t> ids = join(join(in.prefix, in.a), copy);
    const auto from = static_cast<int64_t>(in.prefix.size() + in.a.size());
    const Json recorded = in.recorded ? Json(span.recorded_mean) : Json();
    progress.show("branching: " + name);
    const auto before = serve(ids, from, &facts);
    add(name, "A", ids.size(), facts, mean_after(before.logprobs, 16), recorded, {});
    // Each time another B: the recorded prompts in another order.
    std::vector<int32_t> b = in.b;
    std::rotate(b.begin(), b.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(branches++) * 65 % b.size()),
                b.end());
    serve(join(in.prefix, b), static_cast<int64_t>(in.prefix.size() + b.size()), &facts);
    add(name, "B", in.prefix.size() + b.size(), facts, {}, {}, {});
    for (const char* again : {"A again", "A once more"}) {
      const auto after = serve(ids, from, &facts);
      add(name, again, ids.size(), facts, mean_after(after.logprobs, 16), recorded,
          compare(before.logprobs, after.logprobs).bits);
    }
  }
  engine.check_accounting();
  report.tables.push_back(std::move(table));
  report.notes.push_back(
      "expected = deepest state that the grid and publish rules leave below the first scored position; mean without "
      "the first 16 tokens");
  if (!in.recorded) report.notes.push_back("the model has no recorded copy cases: made-up text, no reference means");
  progress.clear();
  report.seconds = clock.now() - begin;
  return report;
}

}  // namespace kadence::apps
