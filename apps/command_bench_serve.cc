// `kadence bench serve`: open-loop load on an OpenAI-compatible server, percentiles, A/B/A, plots.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/load_client.h"
#include "apps/table.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

struct Options {
  LoadPlan plan;
  std::string url = "http://127.0.0.1:8080", url_b, plot;
  double share_b = 0;
  bool aba = false, json = false;
};

struct Named {
  std::string name, url;
  double share = 0;
  LoadRun run;
};

// Nearest rank; values sorted.
double percentile(const std::vector<double>& v, double p) {
  if (v.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(v.size())));
  return v[std::clamp<size_t>(rank, 1, v.size()) - 1];
}

enum class Measure { kFirst, kGap, kTotal };
constexpr struct {
  Measure measure;
  const char *key, *title;
} kMeasures[] = {{Measure::kFirst, "ttft", "time to first token"},
                 {Measure::kGap, "itl", "between tokens"},
                 {Measure::kTotal, "e2e", "whole answer"}};

std::vector<double> values(const LoadRun& run, Measure m) {
  std::vector<double> out;
  for (const LoadSample& s : run.samples) {
    if (!s.error.empty()) continue;
    if (m == Measure::kFirst) out.push_back(s.first_token);
    if (m == Measure::kTotal) out.push_back(s.total);
    if (m == Measure::kGap) out.insert(out.end(), s.gaps.begin(), s.gaps.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Json run_json(const Named& n) {
  Json j = Json::object();
  j["run"] = n.name;
  j["url"] = n.url;
  j["cached_share_asked"] = n.share;
  int64_t errors = 0, prompt = 0, cached = 0, output = 0;
  for (const LoadSample& s : n.run.samples) {
    errors += !s.error.empty();
    prompt += s.prompt_tokens;
    cached += s.cached_tokens;
    output += s.output_tokens;
  }
  j["requests"] = n.run.samples.size();
  j["errors"] = errors;
  for (const LoadSample& s : n.run.samples)
    if (!s.error.empty() && !j.contains("first_error")) j["first_error"] = s.error;
  j["seconds"] = n.run.seconds;
  j["output_tokens_per_second"] = n.run.seconds > 0 ? static_cast<double>(output) / n.run.seconds : 0;
  j["cached_share"] = prompt > 0 ? static_cast<double>(cached) / static_cast<double>(prompt) : 0;
  for (const auto& m : kMeasures) {
    const auto v = values(n.run, m.measure);
    j[m.key] = {{"p50", percentile(v, 0.5)}, {"p90", percentile(v, 0.9)}, {"p99", percentile(v, 0.99)}};
  }
  return j;
}

// Three panels, one a measure: the share of values at or below x, one line a run.
std::string plot_svg(const std::vector<Named>& runs) {
  constexpr double kWidth = 300, kHeight = 180, kLeft = 40, kTop = 34;
  const char* colors[] = {"#14705f", "#b4530a", "#5b3fa8"};
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} 270' font-family='sans-serif' font-size='11'>"
      "<rect width='100%' height='100%' fill='#fff'/>",
      3 * (kWidth + kLeft + 20));
  for (size_t p = 0; p < std::size(kMeasures); ++p) {
    const double x0 = kLeft + static_cast<double>(p) * (kWidth + kLeft + 20);
    double most = 1e-9;
    for (const Named& n : runs) most = std::max(most, percentile(values(n.run, kMeasures[p].measure), 1));
    out += fmt::format(
        "<text x='{0}' y='20' font-size='13'>{1}</text><path d='M{0} {2}V{3}H{4}' fill='none' stroke='#888'/>"
        "<text x='{0}' y='{5}'>0</text><text x='{4}' y='{5}' text-anchor='end'>{6}</text>"
        "<text x='{7}' y='{2}' text-anchor='end'>100 %</text>",
        x0, kMeasures[p].title, kTop, kTop + kHeight, x0 + kWidth, kTop + kHeight + 15, format_seconds(most), x0 - 4);
    for (size_t r = 0; r < runs.size(); ++r) {
      const auto v = values(runs[r].run, kMeasures[p].measure);
      std::string points;
      for (size_t i = 0; i < v.size(); ++i)
        points += fmt::format("{:.1f},{:.1f} ", x0 + kWidth * v[i] / most,
                              kTop + kHeight * (1 - static_cast<double>(i + 1) / static_cast<double>(v.size())));
      out += fmt::format("<polyline points='{}' fill='none' stroke='{}' stroke-width='1.6'/>", points, colors[r % 3]);
      if (p == 0)
        out += fmt::format("<text x='{}' y='256' fill='{}'>{}</text>", x0 + 150 * static_cast<double>(r), colors[r % 3],
                           runs[r].name);
    }
  }
  return out + "</svg>\n";
}

Table make_table(const std::vector<Named>& runs, const LoadPlan& plan) {
  Table table(fmt::format("{} requests a run, {} prompt and {} output tokens, {:g} requests a second", plan.requests,
                          plan.prompt_tokens, plan.output_tokens, plan.rate),
              {{"run", "run"},
               {"cached", "cached", Format::kNumber},
               {"errors", "errors", Format::kInteger},
               {"ttft50", "first token p50", Format::kSeconds},
               {"ttft90", "p90", Format::kSeconds},
               {"ttft99", "p99", Format::kSeconds},
               {"itl50", "between tokens p50", Format::kSeconds},
               {"itl99", "p99", Format::kSeconds},
               {"e2e50", "whole answer p50", Format::kSeconds},
               {"e2e99", "p99", Format::kSeconds},
               {"rate", "tokens a second", Format::kNumber}});
  for (const Named& n : runs) {
    const Json j = run_json(n);
    table.add({n.name, j["cached_share"], j["errors"], j["ttft"]["p50"], j["ttft"]["p90"], j["ttft"]["p99"],
               j["itl"]["p50"], j["itl"]["p99"], j["e2e"]["p50"], j["e2e"]["p99"], j["output_tokens_per_second"]});
  }
  return table;
}

int run_bench_serve(Options o) {
  if (const char* key = std::getenv("KADENCE_API_KEY")) o.plan.api_key = key;
  if (!o.url_b.empty() && !o.aba) throw UsageError("--url-b needs --aba");
  std::vector<Named> runs;
  const auto add = [&](const char* name, const std::string& url, double share, uint64_t seed) {
    LoadPlan plan = o.plan;
    plan.url = parse_api_url("--url", url);
    plan.cached_share = share;
    plan.seed = seed;
    runs.push_back({name, url, share, run_load(plan)});
  };
  const double share_a = o.plan.cached_share;
  add(o.aba ? "A" : "run", o.url, share_a, o.plan.seed);
  if (o.aba) {
    const bool other = !o.url_b.empty();
    add("B", other ? o.url_b : o.url, other ? share_a : o.share_b, o.plan.seed + 1);
    add("A again", o.url, share_a, o.plan.seed + 2);
  }
  Json out = Json::object();
  out["runs"] = Json::array();
  int64_t errors = 0;
  for (const Named& n : runs) {
    out["runs"].push_back(run_json(n));
    errors += out["runs"].back()["errors"].get<int64_t>();
  }
  if (o.aba) {
    for (const auto& m : kMeasures) {
      const auto p50 = [&](size_t r) { return out["runs"][r][m.key]["p50"].get<double>(); };
      const double a = (p50(0) + p50(2)) / 2;
      if (a > 0) out["b_over_a"][m.key] = p50(1) / a;
      if (p50(0) > 0) out["a_again_over_a"][m.key] = p50(2) / p50(0);
    }
  }
  if (!o.plot.empty()) {
    std::ofstream file(o.plot);
    file << plot_svg(runs);
    if (!file.flush()) throw base::Error(base::ErrorCode::kIo, o.plot + ": cannot be written");
  }
  if (o.json) {
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << make_table(runs, o.plan).text();
    if (o.aba)
      std::cout << fmt::format("first token, medians: B takes {:.3g} times A; A again {:.3g} times A\n",
                               out["b_over_a"].value("ttft", 0.0), out["a_again_over_a"].value("ttft", 0.0));
    for (const Json& r : out["runs"])
      if (r.contains("first_error"))
        std::cout << r["run"].get<std::string>() << ": " << r["first_error"].get<std::string>() << "\n";
  }
  return errors == 0 ? kOk : kFailed;
}

}  // namespace

CLI::App* add_bench_serve(CLI::App& bench, Action* action) {
  CLI::App* sub = bench.add_subcommand(
      "serve",
      "Open-loop load on an OpenAI-compatible server: time to first token, between tokens, of the whole answer.\n"
      "Prompts are random token ids; --cached-share of each was sent before. KADENCE_API_KEY is sent if set.");
  auto o = std::make_shared<Options>();
  LoadPlan& p = o->plan;
  sub->add_option("--url", o->url, "http://host:port of the server (A)")->capture_default_str();
  sub->add_option("--model", p.model, "Its model's id, if it asks for one");
  sub->add_option("--rate", p.rate, "Requests a second, at random; 0 = one after the other")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--requests", p.requests, "Requests of a run")->check(CLI::Range(1, 100000))->capture_default_str();
  sub->add_option("--prompt-tokens", p.prompt_tokens, "Tokens of a prompt")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  sub->add_option("--output-tokens", p.output_tokens, "Tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub->add_option("--cached-share", p.cached_share, "Share of a prompt that was sent before")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--prefixes", p.prefixes, "Different prefixes")->check(CLI::Range(1, 10000))->capture_default_str();
  sub->add_option("--vocab", p.vocab, "Prompts are ids below this")
      ->check(CLI::Range(6, 1 << 24))
      ->capture_default_str();
  sub->add_option("--seed", p.seed, "Of prompts and arrival times")->check(unsigned_integer())->capture_default_str();
  sub->add_option("--timeout", p.timeout, "Seconds without a byte after which a request has failed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_flag("--aba", o->aba, "Three runs: A, B, A again. B is --url-b, or the same server with --cached-share-b");
  sub->add_option("--url-b", o->url_b, "Server B");
  sub->add_option("--cached-share-b", o->share_b, "Share in run B when there is no --url-b")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--plot", o->plot, "SVG with the distributions");
  sub->add_flag("--json", o->json, "One JSON document");
  sub->callback([=] { *action = [=] { return run_bench_serve(*o); }; });
  return sub;
}

}  // namespace kadence::apps
