// `kadence serve`: the OpenAI-compatible server over one model.
#include <fmt/core.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/session.h"
#include "base/error.h"
#include "base/log.h"
#include "server/server.h"

namespace kadence::apps {
namespace {

struct Options {
  EngineFlags engine;
  server::ServerOptions server;
  std::string api_key_file, name;
  double grace = 30;
  int max_queued = 256;
};

std::string read_key(const Options& o) {
  if (o.api_key_file.empty()) {
    const char* key = std::getenv("KADENCE_API_KEY");
    return key != nullptr ? key : "";
  }
  std::ifstream in(o.api_key_file);
  std::string key;
  if (!std::getline(in, key) || key.empty())
    throw base::Error(base::ErrorCode::kIo, o.api_key_file + ": wanted an API key in its first line");
  return key;
}

std::string model_name(const Options& o) {
  if (!o.name.empty()) return o.name;
  std::filesystem::path dir = std::filesystem::path(o.engine.model).lexically_normal();
  if (dir.filename().empty()) dir = dir.parent_path();
  return dir.filename().empty() ? "kadence" : dir.filename().string();
}

// Signals reach sigwait() below and nothing else: every thread that starts later inherits the mask.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return set;
}

// Every connection is a file descriptor; the soft limit is often 1024.
void raise_descriptor_limit(int connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(connections) + 256;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted)
    base::log(base::LogLevel::kWarning,
              fmt::format("--max-connections {}: the system allows {} descriptors", connections, limit.rlim_cur));
}

int run_serve(Options o) {
  o.server.model_name = model_name(o);
  o.server.service.api_key = read_key(o);
  const sigset_t signals = block_signals();
  raise_descriptor_limit(o.server.http.max_connections);
  server::check_listen(o.server.host, o.server.port);
  Progress progress;
  Session session = open_session(o.engine, progress);
  o.server.service.max_in_flight = session.engine->memory_plan().effective_running_requests + o.max_queued;
  std::unique_ptr<model::ChatTemplate> chat;
  try {
    chat = model::make_chat_template(session.config, o.engine.model);
  } catch (const base::Error& e) {
    base::log(base::LogLevel::kWarning, std::string("no /v1/chat/completions: ") + e.what());
  }
  if (!session.tokenizer) base::log(base::LogLevel::kWarning, "the model has no tokenizer: token ids only");
  for (const std::string& line : session.engine->describe()) fmt::print(stderr, "kadence: {}\n", line);
  server::Server server(std::move(session.engine), std::move(session.tokenizer), std::move(chat), o.server);
  const bool v6 = o.server.host.find(':') != std::string::npos;
  fmt::print(stderr, "kadence: serving {} at http://{}{}{}:{}{}\n", o.server.model_name, v6 ? "[" : "", o.server.host,
             v6 ? "]" : "", server.port(), o.server.service.api_key.empty() ? "" : " (API key needed)");
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    fmt::print(stderr, "kadence: signal {}: finishing what runs, at most {:g} s; a second signal ends at once\n",
               signal, o.grace);
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    server.shutdown(std::chrono::duration<double>(o.grace));
  });
  server.run();
  waiter.join();
  if (const std::string failed = server.failure(); !failed.empty())
    throw base::Error(base::ErrorCode::kInternal, "the engine had failed: " + failed);
  fmt::print(stderr, "kadence: closed\n");
  return kOk;
}

}  // namespace

void add_serve(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand("serve", "An OpenAI-compatible HTTP server; SIGTERM ends it gracefully");
  auto o = std::make_shared<Options>();
  server::ServerOptions& s = o->server;
  sub->add_option("--host", s.host, "Address to listen at; anything but loopback should have an API key")
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--port", s.port, "0 = any free port (it is printed)")->capture_default_str()->group("Server");
  sub->add_option("--served-model-name", o->name, "The model's id in the API; default: the folder's name")
      ->group("Server");
  sub->add_option("--api-key-file", o->api_key_file, "File whose first line clients must send; or KADENCE_API_KEY")
      ->group("Server");
  sub->add_option("--cors-origin", s.service.cors_origin, "Origin of web pages that may use the API")->group("Server");
  sub->add_option("--max-queued", o->max_queued, "Requests that may wait besides those that run; 429 beyond")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--max-connections", s.http.max_connections, "Open connections; 503 beyond")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--max-header-bytes", s.http.max_header_bytes, "Head of a request; 431 beyond")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--max-body-bytes", s.http.max_body_bytes, "Body of a request; 413 beyond")
      ->check(CLI::Range(1024, 1 << 30))
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--header-timeout", s.http.header_seconds, "Seconds for a request's head to arrive; 408 beyond")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--body-timeout", s.http.body_seconds, "Seconds for a request's body to arrive; 408 beyond")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--idle-timeout", s.http.idle_seconds, "Seconds that a connection may rest between requests")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--write-timeout", s.http.write_seconds, "Seconds without a byte read by the client; closed beyond")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--request-timeout", s.http.request_seconds, "Seconds for an answer; 504 beyond; 0 = no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--shutdown-grace", o->grace, "Seconds that running requests get on SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Server");
  sub->add_option("--log-file", s.log_file, "JSON lines, one a request; default: standard error; - = none")
      ->group("Server");
  sub->add_flag("--log-prompts", s.service.log_prompts, "Write request bodies to the log too")->group("Server");
  add_engine_flags(*sub, &o->engine, FlagSet::kServing);
  sub->callback([=] { *action = [=] { return run_serve(*o); }; });
}

}  // namespace kadence::apps
