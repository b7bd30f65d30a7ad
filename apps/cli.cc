#include "apps/cli.h"

#include <fmt/core.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/log.h"

namespace kadence::apps {
namespace {

spdlog::level::level_enum to_spdlog(base::LogLevel level) {
  switch (level) {
    case base::LogLevel::kDebug:
      return spdlog::level::debug;
    case base::LogLevel::kInfo:
      return spdlog::level::info;
    case base::LogLevel::kWarning:
      return spdlog::level::warn;
    case base::LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

void install_log_sink(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("kadence", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %l: %v");
  logger->set_level(spdlog::level::from_str(level));
  base::set_log_sink([logger](base::LogLevel l, const std::string& message) { logger->log(to_spdlog(l), message); });
}

int complain(const std::string& message, int status) {
  std::cout.flush();
  fmt::print(stderr, "kadence: error: {}\n", message);
  return status;
}

// `status`, unless what was printed did not arrive.
int flushed(int status) {
  std::cout.flush();
  return std::cout ? status : complain("standard output could not be written", kFailed);
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
  CLI::App app{
      "Kadence serves language models built on Kimi Delta Attention, with a prefix cache that gives the cold run's "
      "bits.\n"
      "Exit status: 0 = everything held, 1 = something failed (said on stderr), 2 = flags that are wrong whatever the "
      "model and machine.",
      "kadence"};
  app.set_version_flag("--version", std::string("kadence ") + KADENCE_VERSION);
  app.require_subcommand(1);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "Least level of messages on stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.fallthrough();
  Action action;
  add_serve(app, &action);
  add_generate(app, &action);
  add_score(app, &action);
  add_check(app, &action);
  add_demo(app, &action);
  add_plan(app, &action);
  add_info(app, &action);
  add_bench(app, &action);
  int status = kOk;
  try {
    app.parse(argc, argv);
    install_log_sink(log_level);
    status = action();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {  // --help, --version
      app.exit(e);
      return flushed(kOk);
    }
    std::string who = "kadence";
    for (const CLI::App* sub = &app; !sub->get_subcommands().empty();) {
      sub = sub->get_subcommands().front();
      who += " " + sub->get_name();
    }
    // CLI11 looks for missing flags first; a flag it did not know is the likelier mistake.
    std::string unknown;
    for (const std::string& word : app.remaining(true)) {
      if (word.rfind("-", 0) == 0 && e.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError))
        unknown += (unknown.empty() ? "unknown flag " : ", ") + word;
    }
    if (app.get_subcommands().empty() && unknown.empty() && !app.remaining().empty())
      unknown = fmt::format("unknown subcommand {}", app.remaining().front());
    if (!unknown.empty()) unknown += "; ";
    return complain(fmt::format("{}{}\n  {} --help lists the flags", unknown, e.what(), who), kUsage);
  } catch (const UsageError& e) {
    return complain(e.what(), kUsage);
  } catch (const base::Error& e) {
    return complain(e.what(), kFailed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", kFailed);
  } catch (const std::exception& e) {
    return complain(e.what(), kFailed);
  }
  return flushed(status);
}

}  // namespace kadence::apps
