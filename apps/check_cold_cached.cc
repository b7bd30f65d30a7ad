// `kadence check cold-cached`: a continuation after a long context gives the same log-probs, to the last bit, whether
// the context is computed, resumed from the cache, alone or in a batch.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "apps/check.h"
#include "apps/child.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"

namespace kadence::apps {
namespace {

const std::vector<int64_t> kContexts = {2048, 8320, 32769, 36000, 72000};
const std::vector<int64_t> kQuickContexts = {2048, 8320};
const std::vector<int64_t> kShortContexts = {320, 1100};                  // for the reference backend
constexpr int64_t kLongestRounded = 8320;                                 // of the runs with half-precision states
const std::vector<int64_t> kCompanions = {2, 63, 64, 65, 200, 333, 700};  // prompts beside the long one in a batch
constexpr int32_t kCompanionTokens = 3;                                   // that each of them generates
const std::vector<std::string> kRuns = {"default", "chunk-512", "avx2", "reference", "bfloat16", "float16"};

// One engine and what is asked of it.
struct Run {
  std::string name;
  std::vector<int64_t> contexts;
  engine::EngineOptions options;
  bool exact = true;  // float32 states: bits must be equal
  bool batches = true;
};

const std::vector<Column> kColumns = {{"run", "run"},
                                      {"context", "context", Format::kInteger},
                                      {"case", "case"},
                                      {"expected_tokens", "cached expected", Format::kInteger},
                                      {"cached_tokens", "cached", Format::kInteger},
                                      {"rows", "rows in a call", Format::kInteger},
                                      {"prefill_seconds", "prefill", Format::kSeconds},
                                      {"mean", "mean diff", Format::kNumber},
                                      {"p90", "p90 diff", Format::kNumber},
                                      {"max", "max diff", Format::kNumber},
                                      {"finite", "finite", Format::kYesNo},
                                      {"equal", "bits equal", Format::kYesNo},
                                      {"ok", "ok", Format::kYesNo}};

engine::RequestSpec scoring(std::vector<int32_t> ids, int64_t from, bool use_cache) {
  engine::RequestSpec spec;
  if (from < static_cast<int64_t>(ids.size())) spec.score_from = from;
  spec.ids = std::move(ids);
  spec.use_cache = use_cache;
  spec.ignore_eos = true;
  return spec;
}

class Checker {
 public:
  Checker(const CheckOptions& o, const Json& golden, const model::ModelConfig& config, Progress& progress,
          CheckReport* report)
      : o_(o),
        golden_(golden),
        config_(config),
        progress_(progress),
        report_(report),
        table_("A 167-token continuation after a context, each case against the cold run", kColumns) {
    continuation_ = make_context(golden, config.vocab, 4096);
    continuation_.erase(continuation_.begin(), continuation_.end() - kContinuation);
    const std::vector<int32_t> text = make_context(golden, config.vocab, 20000);
    int64_t at = 17;  // away from the beginning, which the contexts share
    for (const int64_t n : kCompanions) {
      auto spec = scoring({text.begin() + at, text.begin() + at + n}, std::max<int64_t>(1, n / 2), true);
      spec.max_tokens = kCompanionTokens;
      spec.output_logprobs = true;
      companions_.push_back(std::move(spec));
      at += n + 1;
    }
  }

  void run(Run run) {
    size_engine(&run);
    Session session = open_session(o_.model, o_.engine.device, run.options, progress_);
    engine_ = session.engine.get();
    run_ = &run;
    alone_.clear();
    if (run.batches) {
      step_name("companions alone");
      for (engine::RequestSpec spec : companions_) {
        spec.use_cache = false;
        alone_.push_back(run_request(*engine_, std::move(spec)));
      }
    }
    for (const int64_t context : run.contexts) one_context(context);
    engine_->check_accounting();
  }

  // Rows of a child's report, under another name.
  void add_child(const std::string& name, const Json& document) {
    for (const Json& check : document["checks"]) {
      for (const Json& table : check["tables"]) {
        for (const Json& row : table["rows"]) {
          std::vector<Json> values;
          for (const Column& c : kColumns) values.push_back(c.key == "run" ? Json(name) : row[c.key]);
          report_->ok &= row["ok"].get<bool>();
          table_.add(std::move(values));
        }
      }
    }
  }
  Table take_table() { return std::move(table_); }

 private:
  void size_engine(Run* run) {
    const int64_t longest = *std::max_element(run->contexts.begin(), run->contexts.end()) + kContinuation;
    engine::EngineOptions& o = run->options;
    o.max_running_requests = static_cast<int32_t>(companions_.size()) + 1;
    o.context_length = std::max(longest, config_.max_context);
    o.kv_tokens = base::round_up<int64_t>(3 * longest + 16384, 64 * int64_t{o.page_size});
    constexpr int32_t kSlots = 384;
    if (longest / o.chunked_prefill_size < kSlots / 2) o.state_slots = kSlots;
    report_->notes.push_back(
        fmt::format("{}: --context-length set to {} (the config says {}), --kv-tokens {}, --state-slots {}, "
                    "--chunked-prefill-size {}",
                    run->name, with_commas(o.context_length), with_commas(config_.max_context),
                    with_commas(o.kv_tokens), o.state_slots, with_commas(o.chunked_prefill_size)));
  }

  void step_name(const std::string& what) { progress_.show(fmt::format("cold-cached: {}: {}", run_->name, what)); }

  // One row: `out` is the case's output, `cold` what it must equal.
  void add(int64_t context, const std::string& what, const engine::RequestOutput& out, const std::vector<float>& cold,
           int64_t expected, Json rows, bool must_equal, bool others_ok = true) {
    const Difference d = compare(out.logprobs, cold);
    const bool ok = d.finite && out.cached_tokens == expected && (!must_equal || d.bits) && others_ok &&
                    (rows.is_null() || rows.get<int64_t>() == static_cast<int64_t>(companions_.size()) + 1);
    report_->ok &= ok;
    table_.add({run_->name, context, what, expected, out.cached_tokens, rows, out.prefill_seconds, d.mean, d.p90, d.max,
                d.finite, must_equal ? Json(d.bits) : Json(), ok});
  }

  // The long request beside the companions; rows = of the first step's extend call. Companions must give what they gave
  // alone.
  engine::RequestOutput batch(const engine::RequestSpec& spec, int64_t* rows, bool* others_ok) {
    std::vector<base::RequestId> ids;
    auto submit = [&](const engine::RequestSpec& s) {
      const auto id = engine_->submit(s);
      if (!id) throw base::Error(base::ErrorCode::kInvalidArgument, id.reason());
      ids.push_back(id.value());
    };
    submit(spec);
    for (const auto& s : companions_) submit(s);
    engine_->step();
    *rows = engine_->stats().last_step_extend_rows;
    engine_->run_until_idle();
    *others_ok = true;
    for (size_t i = 0; i < companions_.size(); ++i) {
      const engine::RequestOutput out = engine_->take_output(ids[i + 1]).value();
      if (out.reason == engine::FinishReason::kError) throw base::Error(base::ErrorCode::kInternal, out.error);
      *others_ok &= out.output_ids == alone_[i].output_ids || !run_->exact;
      if (run_->exact)
        *others_ok &= compare(out.logprobs, alone_[i].logprobs).bits &&
                      compare(out.output_logprobs, alone_[i].output_logprobs).bits;
    }
    engine::RequestOutput out = engine_->take_output(ids[0]).value();
    if (out.reason == engine::FinishReason::kError) throw base::Error(base::ErrorCode::kInternal, out.error);
    return out;
  }

  void one_context(int64_t context) {
    const std::string name = with_commas(context) + " tokens, ";
    const std::vector<int32_t> prefix = make_context(golden_, config_.vocab, context);
    std::vector<int32_t> ids = prefix;
    ids.insert(ids.end(), continuation_.begin(), continuation_.end());
    const int64_t expected = base::round_down(context - 1, engine_->memory_plan().grids.checkpoint);
    const bool exact = run_->exact;

    step_name(name + "cold");
    const engine::RequestOutput cold = run_request(*engine_, scoring(ids, context, false));
    add(context, "cold", cold, cold.logprobs, 0, {}, exact);
    if (run_->name == "default")
      default_cold_[context] = cold.logprobs;
    else if (const auto it = default_cold_.find(context); it != default_cold_.end())
      add(context, run_->exact ? "cold, against the default run" : "cold, against float32 states", cold, it->second, 0,
          {}, exact && run_->name != "reference");
    step_name(name + "caching the context");
    run_request(*engine_, scoring(prefix, context, true));
    for (const char* what : {"resumed", "warm repeat"}) {
      step_name(name + what);
      add(context, what, run_request(*engine_, scoring(ids, context, true)), cold.logprobs, expected, {}, exact);
    }
    if (run_->batches) {
      int64_t rows = 0;
      bool others = false;
      step_name(name + "resumed in a batch");
      auto out = batch(scoring(ids, context, true), &rows, &others);
      add(context, "resumed, batch of 8", out, cold.logprobs, expected, rows, exact, others);
      step_name(name + "cold in a batch");
      out = batch(scoring(ids, context, false), &rows, &others);
      add(context, "cold, batch of 8", out, cold.logprobs, 0, rows, exact, others);
    }
    engine_->flush_cache();
  }

  const CheckOptions& o_;
  const Json& golden_;
  const model::ModelConfig& config_;
  Progress& progress_;
  CheckReport* report_;
  Table table_;
  std::vector<int32_t> continuation_;
  std::vector<engine::RequestSpec> companions_;
  std::vector<engine::RequestOutput> alone_;
  std::map<int64_t, std::vector<float>> default_cold_;
  engine::Engine* engine_ = nullptr;
  const Run* run_ = nullptr;
};

std::vector<int64_t> up_to(const std::vector<int64_t>& contexts, int64_t longest) {
  std::vector<int64_t> out;
  for (const int64_t c : contexts) {
    if (c <= longest) out.push_back(c);
  }
  if (out.empty()) out.push_back(*std::min_element(contexts.begin(), contexts.end()));
  return out;
}

// The instruction set is capped once a process, so --isa avx2 runs in a child.
void run_avx2(const CheckOptions& o, const std::vector<int64_t>& contexts, Checker* checker, CheckReport* report,
              Progress& progress) {
  if (o.engine.device.isa != "auto") {
    report->notes.push_back(fmt::format("avx2: not run beside --isa {}", o.engine.device.isa));
    return;
  }
  try {
    device::resolve_isa(device::Isa::kAvx2);
  } catch (const base::Error& e) {
    report->notes.push_back(std::string("avx2: not run: ") + e.what());
    return;
  }
  std::string list;
  for (const int64_t c : contexts) list += (list.empty() ? "" : ",") + std::to_string(c);
  const engine::EngineOptions& e = o.engine.options;
  progress.show(fmt::format("cold-cached: avx2: a child with --isa avx2 runs contexts {}", list));
  const ChildResult child = run_self({"check",
                                      "cold-cached",
                                      "--model",
                                      o.model,
                                      "--isa",
                                      "avx2",
                                      "--threads",
                                      std::to_string(o.engine.device.threads),
                                      "--contexts",
                                      list,
                                      "--runs",
                                      "default",
                                      "--linear-attn-prefill-backend",
                                      e.prefill_backend,
                                      "--linear-attn-decode-backend",
                                      e.decode_backend,
                                      "--kda-extend-block-tokens",
                                      std::to_string(e.extend_block_tokens),
                                      "--page-size",
                                      std::to_string(e.page_size),
                                      "--json"});
  const Json document = Json::parse(child.output, nullptr, false);
  if (document.is_discarded() || !document.contains("checks"))
    throw base::Error(base::ErrorCode::kInternal,
                      fmt::format("the child with --isa avx2 ended with status {} and no report", child.status));
  checker->add_child("avx2", document);
  report->ok &= child.status == 0;
}

}  // namespace

CheckReport check_cold_cached(const CheckOptions& options, Progress& progress) {
  const base::SteadyClock clock;
  const double begin = clock.now();
  CheckReport report;
  report.name = "cold-cached";
  const Json golden = load_golden(options.model);
  const model::ModelConfig config = model::load_config(options.model);
  const std::vector<int64_t> contexts = !options.contexts.empty() ? options.contexts
                                        : options.quick           ? kQuickContexts
                                                                  : kContexts;
  const std::vector<std::string> runs = options.runs.empty() ? kRuns : options.runs;
  Checker checker(options, golden, config, progress, &report);
  const engine::EngineOptions defaults = engine_options(options.engine);
  for (const std::string& name : kRuns) {
    if (std::find(runs.begin(), runs.end(), name) == runs.end()) continue;
    Run run{name, contexts, defaults, true, true};
    if (name == "avx2") {
      run_avx2(options, contexts, &checker, &report, progress);
      continue;
    }
    if (name == "chunk-512") {
      run.options.chunked_prefill_size = 512;
    } else if (name == "reference") {
      run.contexts = kShortContexts;
      run.options.prefill_backend = run.options.decode_backend = "reference";
    } else if (name != "default") {
      run.contexts = up_to(contexts, kLongestRounded);
      run.options.state_dtype = base::parse_float_dtype(name);
      run.exact = run.batches = false;
    }
    checker.run(std::move(run));
  }
  report.tables.push_back(checker.take_table());
  report.notes.push_back(
      "default, avx2 and chunk-512: every context; reference 320 and 1,100 tokens; bfloat16 and float16 up to 8,320, "
      "whose differences are reported");
  report.notes.push_back(
      fmt::format("batch of 8: the long request beside {} short ones (2 to 700 tokens, {} generated each), which must "
                  "give what they give alone",
                  kCompanions.size(), kCompanionTokens));
  report.notes.push_back(
      "contexts are the model's recorded prompts one after another, then again from other places with one token in 97 "
      "changed");
  progress.clear();
  report.seconds = clock.now() - begin;
  return report;
}

}  // namespace kadence::apps
