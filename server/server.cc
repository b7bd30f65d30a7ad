#include "server/server.h"

#include <algorithm>

#include "server/openai_format.h"

namespace kadence::server {
namespace {

constexpr std::chrono::duration<double> kFlushGrace{5};  // for answers that are written, after the engine is done

ApiContext make_context(const engine::Engine& engine, int32_t vocab, const model::Tokenizer* tokenizer,
                        const model::ChatTemplate* chat, const std::string& name) {
  ApiContext c;
  c.tokenizer = tokenizer;
  c.chat = tokenizer != nullptr ? chat : nullptr;
  c.model_name = name;
  c.vocab = vocab;
  c.context_length = engine.memory_plan().context_length;
  if (tokenizer != nullptr) {
    c.texts = std::make_shared<TokenTexts>(*tokenizer);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
      c.longest_token = std::max(c.longest_token, tokenizer->token_bytes(id, true).size());
  }
  return c;
}

EngineFacts make_facts(const engine::Engine& engine) {
  const engine::MemoryPlan& p = engine.memory_plan();
  return {engine.describe(), p.context_length, p.grids.checkpoint, engine.options().page_size, p.shortest_hit};
}

ServiceOptions service_options(const ServerOptions& o) {
  ServiceOptions s = o.service;
  s.loopback = is_loopback(o.host);
  return s;
}

}  // namespace

// Members end in reverse order: sockets, then the API, then the engine that both speak to.
struct Server::Impl {
  Impl(std::unique_ptr<engine::Engine> e, std::unique_ptr<model::Tokenizer> t, std::unique_ptr<model::ChatTemplate> c,
       const ServerOptions& o)
      : tokenizer(std::move(t)),
        chat(std::move(c)),
        context(make_context(*e, e->model().config().vocab, tokenizer.get(), chat.get(), o.model_name)),
        facts(make_facts(*e)),
        log(o.log_file),
        engine(std::move(e)),
        service(engine, context, facts, service_options(o), log),
        http(
            o.host, o.port, o.http,
            [this](HttpRequest request, std::shared_ptr<Responder> responder) {
              service.handle(std::move(request), std::move(responder));
            },
            [](int status, const std::string& message) { return format_error(server_error(status, message)); }) {
    service.set_http_counts([this] { return http.counts(); });
  }

  const std::unique_ptr<model::Tokenizer> tokenizer;
  const std::unique_ptr<model::ChatTemplate> chat;
  const ApiContext context;
  const EngineFacts facts;
  AccessLog log;
  engine::EngineThread engine;
  Service service;
  HttpServer http;
};

Server::Server(std::unique_ptr<engine::Engine> engine, std::unique_ptr<model::Tokenizer> tokenizer,
               std::unique_ptr<model::ChatTemplate> chat, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(tokenizer), std::move(chat), options)) {}

Server::~Server() {
  // Listeners hold the service: none may be left when it goes.
  impl_->service.close();
  impl_->engine.shutdown(std::chrono::duration<double>(0));
  impl_->service.stop();
}

uint16_t Server::port() const { return impl_->http.port(); }
void Server::run() { impl_->http.run(); }

void Server::shutdown(std::chrono::duration<double> grace) {
  impl_->service.close();
  impl_->engine.shutdown(grace);
  impl_->http.stop(kFlushGrace);
}

std::string Server::failure() const { return impl_->engine.failure(); }

}  // namespace kadence::server
