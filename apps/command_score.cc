// `kadence score`: log-probs of a file of prompts, one engine for the whole file.
#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/numbers.h"
#include "apps/score_line.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

struct Options {
  EngineFlags engine;
  std::string input, output;
  int concurrency = 1;
  bool json = false;
};

struct Totals {
  int64_t lines = 0, bad = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double seconds = 0;
};

// Lines in, answers out in the same order. With a concurrency of 1 each line sees all cache effects of the lines before
// it, replays included; above, `concurrency` lines are in flight and which of them hit depends on the batch.
class Scorer {
 public:
  Scorer(Session& session, std::ostream& out, int concurrency)
      : session_(session),
        out_(out),
        concurrency_(static_cast<size_t>(concurrency)),
        limits_{session.config.vocab, session.tokenizer.get()} {}

  void line(const std::string& text) {
    ++totals_.lines;
    auto spec = parse_score_line(text, limits_);
    Pending p;
    if (!spec) {
      p.error = spec.reason();
    } else {
      p.generates = spec.value().max_tokens > 0;
      totals_.prompt_tokens += static_cast<int64_t>(spec.value().ids.size());
      const auto id = session_.engine->submit(std::move(spec.value()));
      if (id)
        p.id = id.value();
      else
        p.error = id.reason();
    }
    pending_.push_back(std::move(p));
    while (pending_.size() >= concurrency_) front();
  }
  void finish() {
    while (!pending_.empty()) front();
  }
  const Totals& totals() const { return totals_; }
  void set_seconds(double s) { totals_.seconds = s; }

 private:
  struct Pending {
    std::optional<base::RequestId> id;
    std::string error;
    bool generates = false;
  };

  // Finishes and prints the oldest line in flight.
  void front() {
    const Pending p = std::move(pending_.front());
    pending_.pop_front();
    if (!p.id) return print(score_error(p.error));
    engine::Engine& engine = *session_.engine;
    std::optional<engine::RequestOutput> out;
    if (concurrency_ == 1) engine.run_until_idle();
    while (!(out = engine.take_output(*p.id))) KADENCE_CHECK(engine.step());
    engine.take_events();
    totals_.cached_tokens += out->cached_tokens;
    totals_.output_tokens += static_cast<int64_t>(out->output_ids.size());
    print(score_answer(*out, p.generates));
  }
  void print(const Json& answer) {
    totals_.bad += answer.contains("error");
    out_ << one_line(answer) << "\n" << std::flush;
    if (!out_) throw base::Error(base::ErrorCode::kIo, "the answers could not be written");
  }

  Session& session_;
  std::ostream& out_;
  size_t concurrency_;
  ScoreLimits limits_;
  std::deque<Pending> pending_;
  Totals totals_;
};

void print_summary(const Options& o, const Totals& t, const engine::Engine& engine, std::ostream& out) {
  if (o.json) {
    Json j = Json::object();
    j["lines"] = t.lines;
    j["bad_lines"] = t.bad;
    j["prompt_tokens"] = t.prompt_tokens;
    j["cached_tokens"] = t.cached_tokens;
    j["output_tokens"] = t.output_tokens;
    j["seconds"] = t.seconds;
    j["engine"] = engine_json(engine);
    out << j.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return;
  }
  out << fmt::format("{} lines ({} bad), {} prompt tokens of which {} came from the cache, {} generated, {}\n",
                     with_commas(t.lines), with_commas(t.bad), with_commas(t.prompt_tokens),
                     with_commas(t.cached_tokens), with_commas(t.output_tokens), format_seconds(t.seconds));
}

int run_score(const Options& o) {
  std::ifstream file;
  if (o.input == "-") {
    require_stdin("--input -");
  } else {
    file.open(o.input, std::ios::binary);
    if (!file)
      throw base::Error(base::ErrorCode::kIo,
                        fmt::format("--input {}: cannot be read ({})", o.input, std::strerror(errno)));
  }
  std::istream& in = o.input == "-" ? std::cin : file;
  std::error_code none;
  if (std::filesystem::equivalent(o.input, o.output, none) && std::filesystem::is_regular_file(o.output, none))
    throw UsageError(fmt::format("--input {} and --output {} are the same file: the answers would overwrite the lines",
                                 o.input, o.output));
  Progress progress;
  Session session = open_session(o.engine, progress);
  std::ofstream sink;  // after the model, so that a run that cannot start leaves earlier answers alone
  if (!o.output.empty()) {
    sink.open(o.output, std::ios::binary | std::ios::trunc);
    if (!sink)
      throw base::Error(base::ErrorCode::kIo,
                        fmt::format("--output {}: cannot be written ({})", o.output, std::strerror(errno)));
  }
  const base::SteadyClock clock;
  const double begin = clock.now();
  Scorer scorer(session, o.output.empty() ? std::cout : sink, o.concurrency);
  // Answers on a terminal are progress enough.
  const bool show = !o.output.empty();
  for (std::string line; std::getline(in, line);) {
    if (show) progress.show(fmt::format("scoring line {}", scorer.totals().lines + 1));
    scorer.line(line);
  }
  scorer.finish();
  progress.clear();
  if (in.bad() || (o.input == "-" && std::ferror(stdin)))
    throw base::Error(base::ErrorCode::kIo,
                      fmt::format("--input {}: reading stopped: {}", o.input, std::strerror(errno)));
  scorer.set_seconds(clock.now() - begin);
  if (!o.output.empty()) print_summary(o, scorer.totals(), *session.engine, std::cout);
  return scorer.totals().bad == 0 ? kOk : kFailed;
}

}  // namespace

void add_score(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand(
      "score",
      "Log-probs of prompts, one JSON object a line, answers in the same order.\n"
      "A line: {\"ids\": [..]} or {\"text\": \"..\"}, optional \"from\": first scored position (1 or more; default the "
      "length: nothing scored),\n"
      "\"cache\": false neither to read nor to write the prefix cache, \"max_tokens\": n to continue greedily, "
      "\"ignore_eos\" (default true).\n"
      "An answer: {\"logprobs\", \"cached_tokens\", \"prefill_ms\", \"output_ids\", \"output_logprobs\"}; equal "
      "log-probs print equal.\n"
      "With \"max_tokens\" also \"finish_reason\": \"stop\", or \"length\" at max_tokens and, with fewer tokens, where "
      "the "
      "context or the pools end.\n"
      "A bad line gets {\"error\": ..} in its place, the rest still runs, and the exit status is 1.");
  auto o = std::make_shared<Options>();
  sub->add_option("--input", o->input, "File of lines, - = standard input")->required();
  sub->add_option("--output", o->output, "File of answers; default: standard output");
  sub->add_option("--concurrency", o->concurrency,
                  "Lines in flight. 1: every line sees the cache that all lines before it left")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub->add_flag("--json", o->json, "With --output: the summary as JSON (answers are JSON lines anyway)");
  add_engine_flags(*sub, &o->engine, FlagSet::kServing);
  sub->callback([=] { *action = [=] { return run_score(*o); }; });
}

}  // namespace kadence::apps
