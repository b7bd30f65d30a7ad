// HTTP as the rest of the server sees it: a request in, an answer or a stream out. No socket, no Boost.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kadence::server {

struct HttpRequest {
  std::string id;  // the client's X-Request-Id if it is a sane one, else ours
  std::string method, path, query;
  std::string authorization, origin, host;
  std::string peer;  // address:port
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // besides length, type, connection and request id
};

// Why nobody waits for an answer any more, or should not.
enum class AbortReason {
  kDisconnect,  // the client has gone, or reads too slowly
  kTimeout,     // the time of a request is up; an answer that says so still has a few seconds to get out
};

// The body of a streamed answer. Pulled only while the socket takes bytes, so that a slow reader costs no memory here.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Appends what is ready, possibly nothing; true when that was the end. On the HTTP thread.
  virtual bool pull(std::string& out) = 0;
};

// The way back of one request. Any thread may use it; after the client has gone all calls do nothing.
class Responder {
 public:
  virtual ~Responder() = default;
  // The whole answer. The first answer counts, later ones are dropped.
  virtual void send(HttpResponse response) = 0;
  // Head now, body from `source` as it comes. `head.body` is not used.
  virtual void stream(HttpResponse head, std::shared_ptr<StreamSource> source) = 0;
  // The source has something.
  virtual void wake() = 0;
  // Called on the HTTP thread, at most once for each reason, while the answer is not complete. To be set inside the
  // handler.
  virtual void on_abort(std::function<void(AbortReason)> callback) = 0;
};

// Runs on the HTTP thread and must be short: hand the work on.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;

}  // namespace kadence::server
