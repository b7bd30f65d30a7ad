// Metrics in Prometheus' text form. Histograms are kept here; everything the engine counts comes from its statistics.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/http_server.h"

namespace kadence::server {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // One HTTP request that was answered (or given up: 499). `route` is one of a fixed set.
  void answered(const std::string& route, int status, double seconds);
  // One choice that ended.
  void finished(const engine::RequestOutput& output);

  struct Snapshot {
    engine::EngineStats engine;
    HttpCounts http;
    int64_t in_flight = 0;   // choices submitted and not finished
    int64_t work_queue = 0;  // requests whose body waits to be read
    int64_t log_lines_dropped = 0;
    bool healthy = true, ready = true;
  };
  std::string text(const Snapshot& snapshot) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kadence::server
