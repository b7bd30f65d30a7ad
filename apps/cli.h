// The command line: subcommands, and how errors become exit statuses.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

namespace kadence::apps {

// Flags that are wrong whatever the model and the machine: unknown, missing, out of range, contradictory. Exit
// status 2. Anything else that goes wrong, flags that this model or machine cannot satisfy included: 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr int kOk = 0, kFailed = 1, kUsage = 2;

// What a chosen subcommand does; returns the exit status. May throw base::Error or UsageError.
using Action = std::function<int()>;

// Each adds one subcommand to `app` and sets `*action` when it is the one chosen.
void add_info(CLI::App& app, Action* action);
void add_generate(CLI::App& app, Action* action);
void add_score(CLI::App& app, Action* action);
void add_check(CLI::App& app, Action* action);
void add_plan(CLI::App& app, Action* action);
void add_bench(CLI::App& app, Action* action);
// Under `bench`; returns it.
CLI::App* add_bench_serve(CLI::App& bench, Action* action);
void add_demo(CLI::App& app, Action* action);
void add_serve(CLI::App& app, Action* action);

// Parses, runs, reports errors on stderr; returns the exit status.
int run_cli(int argc, const char* const* argv);

}  // namespace kadence::apps
