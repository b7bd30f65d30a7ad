// `kadence check`: runs the chosen procedures; status 0 only if all of them hold.
#include <fmt/core.h>

#include <iostream>
#include <memory>
#include <sstream>

#include "apps/check.h"
#include "apps/cli.h"
#include "apps/numbers.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

struct Procedure {
  const char* name;
  CheckReport (*run)(const CheckOptions&, Progress&);
};
constexpr Procedure kProcedures[] = {{"golden", check_golden},
                                     {"blocks", check_blocks},
                                     {"branching", check_branching},
                                     {"cold-cached", check_cold_cached}};

struct Options {
  std::string what;
  CheckOptions check;
  std::string contexts, runs;
  bool json = false;
};

void print(const CheckReport& r) {
  std::cout << fmt::format("== check {}: {} ({})\n", r.name, r.ok ? "holds" : "FAILED", format_seconds(r.seconds));
  for (const Table& t : r.tables) std::cout << t.text() << "\n";
  for (const std::string& note : r.notes) std::cout << "  " << note << "\n";
  std::cout << "\n" << std::flush;
}

Json to_json(const CheckReport& r) {
  Json out = Json::object();
  out["name"] = r.name;
  out["ok"] = r.ok;
  out["seconds"] = r.seconds;
  out["tables"] = Json::array();
  for (const Table& t : r.tables) out["tables"].push_back(Json{{"title", t.title()}, {"rows", t.json()}});
  out["notes"] = r.notes;
  return out;
}

// In `all`, a check that cannot run has failed and the others still run.
CheckReport run_one(const Procedure& p, const Options& o, Progress& progress) {
  try {
    return p.run(o.check, progress);
  } catch (const std::exception& e) {
    if (o.what != "all") throw;
    progress.clear();
    CheckReport r;
    r.name = p.name;
    r.ok = false;
    r.notes.push_back(std::string("error: ") + e.what());
    return r;
  }
}

int run_check(Options o) {
  const bool has_contexts = o.what == "all" || o.what == "cold-cached";
  if (!o.contexts.empty() && o.check.quick)
    throw UsageError("--contexts and --quick contradict each other: --quick means --contexts 2048,8320");
  if (!o.contexts.empty() && !has_contexts)
    throw UsageError(fmt::format("--contexts is for cold-cached and all, not for {}", o.what));
  if (!o.runs.empty() && !has_contexts)
    throw UsageError(fmt::format("--runs is for cold-cached and all, not for {}", o.what));
  if (!o.contexts.empty()) o.check.contexts = parse_list("--contexts", o.contexts);
  for (const int64_t c : o.check.contexts) {
    if (c < 65 || c > (int64_t{1} << 26))
      throw UsageError(fmt::format("--contexts: wanted 65 to 67108864 tokens each, got {}", c));
  }
  std::istringstream names(o.runs);
  for (std::string name; std::getline(names, name, ',');) {
    if (name != "default" && name != "chunk-512" && name != "avx2" && name != "reference" && name != "bfloat16" &&
        name != "float16")
      throw UsageError(
          fmt::format("--runs: known are default, chunk-512, avx2, reference, bfloat16, float16, got '{}'", name));
    o.check.runs.push_back(name);
  }
  o.check.model = o.check.engine.model;
  engine_options(o.check.engine);  // wrong flags are no failed check
  Progress progress;
  std::vector<CheckReport> reports;
  bool ok = true;
  for (const Procedure& p : kProcedures) {
    if (o.what != "all" && o.what != p.name) continue;
    reports.push_back(run_one(p, o, progress));
    ok &= reports.back().ok;
    if (!o.json) print(reports.back());
  }
  Table summary(fmt::format("{}: {}", o.check.model, ok ? "everything holds" : "NOT everything holds"),
                {{"check", "check"}, {"seconds", "time", Format::kSeconds}, {"ok", "holds", Format::kYesNo}});
  for (const CheckReport& r : reports) summary.add({r.name, r.seconds, r.ok});
  if (o.json) {
    Json out = Json::object();
    out["model"] = o.check.model;
    out["ok"] = ok;
    out["checks"] = Json::array();
    for (const CheckReport& r : reports) out["checks"].push_back(to_json(r));
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << summary.text();
  }
  return ok ? kOk : kFailed;
}

}  // namespace

void add_check(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand(
      "check",
      "Procedures that a model's serving must pass; status 0 only if all hold\n"
      "  golden       logits, log-probs, greedy tokens, strings and chat texts against DIR/golden.json\n"
      "  cold-cached  a continuation after long contexts: cold, resumed, repeated, batched: the same bits\n"
      "  branching    scores of a branch before and after an unrelated branch of the same prefix\n"
      "  blocks       extend's workspace window changes no bit, and its bytes do not depend on the prompt\n"
      "  all          all of these\n"
      "The checks size the pools and --context-length themselves and say so.");
  auto o = std::make_shared<Options>();
  sub->add_option("what", o->what, "golden, cold-cached, branching, blocks or all")
      ->required()
      ->check(CLI::IsMember({"golden", "cold-cached", "branching", "blocks", "all"}));
  sub->add_flag("--quick", o->check.quick, "Contexts of 2,048 and 8,320 tokens only");
  sub->add_option("--contexts", o->contexts,
                  "Contexts of cold-cached, in tokens, apart by commas (default 2048,8320,32769,36000,72000)");
  sub->add_option(
      "--runs", o->runs,
      "Runs of cold-cached, apart by commas: default, chunk-512, avx2, reference, bfloat16, float16 (default: all)");
  sub->add_flag("--json", o->json, "One JSON document");
  add_engine_flags(*sub, &o->check.engine, FlagSet::kChecks);
  sub->callback([=] { *action = [=] { return run_check(*o); }; });
}

}  // namespace kadence::apps
