// The whole server: engine thread, API, sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "server/http_server.h"
#include "server/service.h"

namespace kadence::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0 = any free one
  std::string model_name = "kadence";
  HttpLimits http;
  ServiceOptions service;
  std::string log_file;  // see AccessLog
};

class Server {
 public:
  // `tokenizer` and `chat` may be null. Throws base::Error when the port or the log cannot be had.
  Server(std::unique_ptr<engine::Engine> engine, std::unique_ptr<model::Tokenizer> tokenizer,
         std::unique_ptr<model::ChatTemplate> chat, const ServerOptions& options);
  ~Server();

  uint16_t port() const;
  // Serves; returns after shutdown(). The calling thread is the HTTP thread.
  void run();
  // Takes no new work, gives what runs `grace` to finish, cancels the rest, closes. Blocks that long. Not from run()'s
  // thread.
  void shutdown(std::chrono::duration<double> grace);
  // Why the engine stopped working; empty while all is well.
  std::string failure() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kadence::server
