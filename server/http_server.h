// HTTP/1.1 over TCP: one thread for all sockets, limits on everything that a client controls.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http.h"

namespace kadence::server {

struct HttpLimits {
  int max_connections = 12000;               // more are told 503 and closed
  uint32_t max_header_bytes = 16 << 10;      // start line and fields; 431 beyond
  uint64_t max_body_bytes = 32u << 20;       // 413 beyond
  uint64_t max_buffered_bytes = 256u << 20;  // bodies of all requests under way; 503 beyond
  double idle_seconds = 75;                  // a connection between requests
  double header_seconds = 10;                // from a request's first byte to the end of its head; 408 beyond
  double body_seconds = 60;                  // from there to the end of its body; 408 beyond
  double write_seconds = 30;                 // without a byte taken by the client
  double request_seconds = 600;              // from the end of the body to the end of the answer; 0 = no limit
};

// What the socket layer counts. Values of one moment.
struct HttpCounts {
  int64_t connections = 0;  // open now
  int64_t accepted = 0, refused = 0, timeouts = 0, bad_requests = 0, disconnects = 0;
};

class HttpServer {
 public:
  // An answer in the API's form for what never reaches the handler: bad requests, limits, timeouts.
  using ErrorFormat = std::function<HttpResponse(int status, const std::string& message)>;

  // Binds and listens. `host`: an address or "localhost"; port 0 = any free one. Throws Error{kIo}.
  HttpServer(const std::string& host, uint16_t port, const HttpLimits& limits, HttpHandler handler, ErrorFormat error);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // Serves until stop() is through. The calling thread is the HTTP thread.
  void run();
  // Any thread: takes no more connections, closes idle ones, gives answers under way `grace` to get out, closes the
  // rest and ends run().
  void stop(std::chrono::duration<double> grace);
  HttpCounts counts() const;

  struct Impl;  // of http_server.cc

 private:
  std::shared_ptr<Impl> impl_;
};

// Throws Error{kIo} if nobody could listen there now: to be asked before minutes are spent on loading a model.
void check_listen(const std::string& host, uint16_t port);

// The reason phrase of a status.
const char* status_text(int status);

}  // namespace kadence::server
