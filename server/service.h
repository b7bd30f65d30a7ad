// The API over an engine thread: routes, limits on what is under way, logs and metrics. No sockets.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/engine_thread.h"
#include "server/access_log.h"
#include "server/api.h"
#include "server/http.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/work_queue.h"

namespace kadence::server {

struct ServiceOptions {
  std::string api_key;      // empty = none asked
  std::string cors_origin;  // empty = no CORS
  bool loopback = false;    // listens at a loopback address: pages must come from one, too
  int max_in_flight = 512;  // choices submitted and not finished; 429 beyond
  int work_threads = 2;
  int work_queue = 1024;  // requests whose body waits to be read; 429 beyond
  bool log_prompts = false;
};

// "localhost", 127.x.x.x, ::1, [::1].
bool is_loopback(std::string_view host);

// Facts of the engine that never change, for /v1/cache and /v1/status.
struct EngineFacts {
  std::vector<std::string> describe;
  int64_t context_length = 0, checkpoint_grid = 0, page_size = 0, shortest_hit = 0;
};

// Where an abort meets whoever is busy with the request, in either order.
class AbortSlot {
 public:
  void raise(AbortReason reason) {
    std::function<void(AbortReason)> then;
    {
      const std::lock_guard lock(mutex_);
      reason_ = reason;
      then = then_;
    }
    if (then) then(reason);
  }
  void on_raise(std::function<void(AbortReason)> then) {
    std::optional<AbortReason> reason;
    {
      const std::lock_guard lock(mutex_);
      then_ = then;
      reason = reason_;
    }
    if (reason && then) then(*reason);
  }
  void clear() {
    std::function<void(AbortReason)> gone;  // ends outside the lock: it may hold the last reference to its owner
    const std::lock_guard lock(mutex_);
    gone.swap(then_);
  }

 private:
  std::mutex mutex_;
  std::optional<AbortReason> reason_;
  std::function<void(AbortReason)> then_;
};

// One HTTP request on its way through.
struct Call {
  HttpRequest request;
  std::string route;  // for metrics: one of a fixed set
  std::shared_ptr<Responder> responder;
  double begin = 0;
  std::shared_ptr<AbortSlot> abort = std::make_shared<AbortSlot>();
  std::atomic<bool> logged{false};
  // For the log, as they become known.
  std::string kind;
  int64_t prompt_tokens = -1, cached_tokens = -1, output_tokens = -1;
  double queue_seconds = 0, first_token_seconds = 0;
  std::string finish, error_code;
  bool stream = false;
};

class Service {
 public:
  Service(engine::EngineThread& engine, ApiContext context, EngineFacts facts, ServiceOptions options, AccessLog& log);

  // HttpHandler; on the HTTP thread.
  void handle(HttpRequest request, std::shared_ptr<Responder> responder);
  // From now on new work is answered with 503 and /health/ready says no.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  // Runs what is queued and takes no more; before the sockets go.
  void stop() { work_.stop(); }
  // Where the socket layer's counts come from.
  void set_http_counts(std::function<HttpCounts()> counts) { http_counts_ = std::move(counts); }

  // For jobs.
  void answer(const std::shared_ptr<Call>& call, HttpResponse response);
  // Ends a call, once; later ones do nothing.
  void log(Call& call, int status);
  bool admit(int choices);
  void leave(int choices) { in_flight_ -= choices; }
  engine::EngineThread& engine() { return engine_; }
  const ApiContext& context() const { return context_; }
  Metrics& metrics() { return metrics_; }
  WorkQueue& work() { return work_; }
  double now() const { return clock_.now(); }

 private:
  using CallPtr = std::shared_ptr<Call>;
  void route(const CallPtr& call);
  void read_body(const CallPtr& call, void (Service::*then)(const CallPtr&));
  void generate(const CallPtr& call);
  void tokenize(const CallPtr& call);
  void detokenize(const CallPtr& call);
  void models(const CallPtr& call);
  void health(const CallPtr& call, bool ready);
  void metrics_text(const CallPtr& call);
  void cache(const CallPtr& call);
  void flush(const CallPtr& call);
  void status(const CallPtr& call);
  bool allowed(const CallPtr& call);
  Metrics::Snapshot snapshot() const;

  engine::EngineThread& engine_;
  const ApiContext context_;
  const EngineFacts facts_;
  const ServiceOptions options_;
  AccessLog& log_;
  base::SteadyClock clock_;
  Metrics metrics_;
  std::function<HttpCounts()> http_counts_;
  std::atomic<bool> closed_{false};
  std::atomic<int> in_flight_{0};
  const int64_t created_;
  const double started_;

  struct Recent {
    std::string id, kind, finish;
    int status;
    int64_t prompt, cached, output;
    double seconds, queue, first, at;
  };
  std::mutex recent_mutex_;
  std::deque<Recent> recent_;
  WorkQueue work_;  // last: its threads use the rest
};

// Takes a parsed request through the engine and answers it. On a worker.
void start_job(Service& service, std::shared_ptr<Call> call, ApiRequest request);

}  // namespace kadence::server
