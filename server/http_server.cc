// One io_context, one thread: every member of Impl and Connection belongs to it. Other threads post.
#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <iterator>
#include <optional>
#include <random>
#include <unordered_map>

#include "base/error.h"

namespace kadence::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr size_t kScratch = 64 << 10;
constexpr size_t kPipelined = 64 << 10;     // bytes of a next request that are read ahead
constexpr size_t kLingerBytes = 64u << 20;  // read and dropped after a refusal, so that the client sees the answer
constexpr auto kTick = std::chrono::milliseconds(200);
constexpr auto kLinger = std::chrono::seconds(2);
constexpr auto kAfterTimeout = std::chrono::seconds(5);

SteadyTime now() { return std::chrono::steady_clock::now(); }
SteadyTime after(double seconds) {
  return now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

bool sane_id(std::string_view id) {
  if (id.empty() || id.size() > 64) return false;
  return id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
         std::string_view::npos;
}

void listen_at(tcp::acceptor& a, const std::string& host, uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec) base::throw_invalid("host", "an IP address or localhost", host);
  const tcp::endpoint endpoint(address, port);
  a.open(endpoint.protocol(), ec);
  if (!ec) a.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) a.bind(endpoint, ec);
  if (!ec) a.listen(4096, ec);
  if (ec)
    base::throw_error(base::ErrorCode::kIo,
                      "listening on " + host + " port " + std::to_string(port) + ": " + ec.message());
}

}  // namespace

void check_listen(const std::string& host, uint16_t port) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  listen_at(acceptor, host, port);
}

const char* status_text(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return text.data();
}

class Connection;

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(const HttpLimits& l, HttpHandler h, ErrorFormat e)
      : limits(l), handler(std::move(h)), error(std::move(e)), acceptor(io), tick(io), retry(io), scratch(kScratch) {
    id_prefix = std::random_device{}();
  }

  void accept();
  void on_tick();
  std::string next_id() {
    char text[40];
    std::snprintf(text, sizeof text, "req-%08x-%llx", id_prefix, static_cast<unsigned long long>(++id_count));
    return text;
  }

  const HttpLimits limits;
  const HttpHandler handler;
  const ErrorFormat error;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer tick, retry;
  std::vector<char> scratch;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  uint64_t buffered = 0;
  bool stopping = false;
  SteadyTime stop_at;
  uint32_t id_prefix = 0;
  uint64_t id_count = 0;
  std::atomic<int64_t> open{0}, accepted{0}, refused{0}, timeouts{0}, bad_requests{0}, disconnects{0};
};

namespace {

class Exchange;

}  // namespace

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {}

  void start() {
    error_code ec;
    socket_.non_blocking(true, ec);
    socket_.set_option(tcp::no_delay(true), ec);
    const auto peer = socket_.remote_endpoint(ec);
    if (!ec) peer_ = peer.address().to_string() + ":" + std::to_string(peer.port());
    deadline_ = after(server_.limits.idle_seconds);
    wait_read();
  }
  bool idle() const { return state_ == State::kReading; }
  void close();
  void check(SteadyTime time);

  // From exchanges; `who` must be the one under way.
  void respond(const Exchange* who, HttpResponse response);
  void begin_stream(const Exchange* who, const HttpResponse& head, std::shared_ptr<StreamSource> source);
  void pump(const Exchange* who);

 private:
  enum class State { kReading, kHandling, kLinger };

  void wait_read();
  void on_readable(const error_code& ec);
  void parse();
  void dispatch();
  void refuse(int status, const std::string& message);
  void head(const HttpResponse& response, std::optional<size_t> length);
  void pump();
  void flush();
  void write();
  void next_request();
  void release_body() { server_.buffered -= std::exchange(held_, 0); }

  HttpServer::Impl& server_;
  tcp::socket socket_;
  State state_ = State::kReading;
  std::string peer_, id_;
  std::string in_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool head_seen_ = false;
  uint64_t held_ = 0;  // bytes of the body
  bool waiting_ = false, closed_ = false;
  std::string out_, queued_;
  size_t written_ = 0;
  bool writing_ = false;
  SteadyTime deadline_ = SteadyTime::max(), progress_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<StreamSource> source_;
  bool keep_alive_ = true, head_only_ = false, chunked_ = true, complete_ = false, timed_out_ = false;
  size_t dropped_ = 0;
};

namespace {

class Exchange final : public Responder, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<HttpServer::Impl> server, std::weak_ptr<Connection> connection)
      : server_(std::move(server)), connection_(std::move(connection)) {}

  void send(HttpResponse response) override {
    if (answered_.exchange(true)) return;
    asio::post(server_->io, [self = shared_from_this(), response = std::move(response)]() mutable {
      if (const auto c = self->connection_.lock()) c->respond(self.get(), std::move(response));
    });
  }
  void stream(HttpResponse head, std::shared_ptr<StreamSource> source) override {
    if (answered_.exchange(true)) return;
    asio::post(server_->io, [self = shared_from_this(), head = std::move(head), source = std::move(source)]() mutable {
      if (const auto c = self->connection_.lock()) c->begin_stream(self.get(), head, std::move(source));
    });
  }
  void wake() override {
    if (woken_.exchange(true)) return;
    asio::post(server_->io, [self = shared_from_this()] {
      self->woken_ = false;
      if (const auto c = self->connection_.lock()) c->pump(self.get());
    });
  }
  void on_abort(std::function<void(AbortReason)> callback) override { abort_ = std::move(callback); }

  void abort(AbortReason reason) {
    if (!abort_) return;
    const auto callback = reason == AbortReason::kDisconnect ? std::exchange(abort_, {}) : abort_;
    callback(reason);
  }
  void finished() { abort_ = {}; }

 private:
  const std::shared_ptr<HttpServer::Impl> server_;
  const std::weak_ptr<Connection> connection_;
  std::function<void(AbortReason)> abort_;  // HTTP thread
  std::atomic<bool> answered_{false}, woken_{false};
};

}  // namespace

// --- reading

void Connection::wait_read() {
  if (waiting_ || closed_ || (state_ == State::kHandling && in_.size() >= kPipelined)) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& ec) {
    self->waiting_ = false;
    self->on_readable(ec);
  });
}

void Connection::on_readable(const error_code& waited) {
  if (closed_) return;
  if (waited) return close();
  error_code ec;
  const size_t n = socket_.read_some(asio::buffer(server_.scratch), ec);
  if (ec == asio::error::would_block || ec == asio::error::interrupted) return wait_read();
  if (ec) return close();  // end of file too: a client that sends nothing more is taken to have gone
  if (state_ == State::kLinger) {
    dropped_ += n;
    if (dropped_ > kLingerBytes) return close();
    return wait_read();
  }
  in_.append(server_.scratch.data(), n);
  if (state_ == State::kReading) parse();
  wait_read();
}

void Connection::parse() {
  if (in_.empty()) return;
  if (!parser_) {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(server_.limits.max_header_bytes);
    parser_->body_limit(server_.limits.max_body_bytes);
    head_seen_ = false;
    deadline_ = after(server_.limits.header_seconds);
  }
  error_code ec;
  while (!in_.empty() && !parser_->is_done()) {
    const size_t used = parser_->put(asio::buffer(in_), ec);
    in_.erase(0, used);
    if (ec == http::error::need_more) {
      ec = {};
      break;
    }
    if (ec) break;
  }
  // What the parser does not take is part of a line: one without an end is no reason to keep it all.
  if (!ec && !parser_->is_done() && in_.size() > server_.limits.max_header_bytes) ec = http::error::header_limit;
  if (ec) {
    ++server_.bad_requests;
    if (ec == http::error::header_limit)
      return refuse(
          431, "the head of the request is larger than " + std::to_string(server_.limits.max_header_bytes) + " bytes");
    if (ec == http::error::body_limit)
      return refuse(
          413, "the body of the request is larger than " + std::to_string(server_.limits.max_body_bytes) + " bytes");
    if (ec == http::error::bad_version) return refuse(505, "wanted HTTP/1.1");
    return refuse(400, "not a valid HTTP request: " + ec.message());
  }
  if (parser_->is_header_done() && !head_seen_) {
    head_seen_ = true;
    deadline_ = after(server_.limits.body_seconds);
    // Any other coding leaves the end of the body unknown, and what is body must never be read as the next request.
    const auto codings = parser_->get().equal_range(http::field::transfer_encoding);
    const auto known = [](const auto& field) { return boost::beast::iequals(field.value(), "chunked"); };
    if (std::distance(codings.first, codings.second) > 1 || !std::all_of(codings.first, codings.second, known)) {
      ++server_.bad_requests;
      return refuse(501, "the only Transfer-Encoding that is known here is chunked");
    }
    const bool asks = boost::beast::iequals(parser_->get()[http::field::expect], "100-continue");
    if (asks && !parser_->is_done() && parser_->get().version() >= 11) {
      queued_ += "HTTP/1.1 100 Continue\r\n\r\n";
      flush();
    }
  }
  // Bytes that came, not those that were announced: a promise of a large body holds no room that others need.
  const uint64_t held = parser_->get().body().size();
  server_.buffered += held - std::exchange(held_, held);
  if (server_.buffered > std::max(server_.limits.max_buffered_bytes, server_.limits.max_body_bytes)) {
    ++server_.refused;
    return refuse(503, "too many bytes of requests are under way, try again later");
  }
  if (parser_->is_done()) dispatch();
}

void Connection::dispatch() {
  auto& message = parser_->get();
  HttpRequest request;
  const auto field = [&](http::field f) {
    const auto v = message[f];
    return std::string(v.data(), v.size());
  };
  request.method = std::string(message.method_string().data(), message.method_string().size());
  std::string target(message.target().data(), message.target().size());
  if (const size_t authority = target.find("://"); authority != std::string::npos && target[0] != '/') {
    const size_t path = target.find('/', authority + 3);  // the absolute form
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  request.authorization = field(http::field::authorization);
  request.origin = field(http::field::origin);
  request.host = field(http::field::host);
  const auto id = message["X-Request-Id"];
  request.id = sane_id({id.data(), id.size()}) ? std::string(id.data(), id.size()) : server_.next_id();
  request.peer = peer_;
  request.body = std::move(message.body());
  id_ = request.id;
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  chunked_ = message.version() >= 11;
  complete_ = timed_out_ = false;
  parser_.reset();
  state_ = State::kHandling;
  deadline_ = server_.limits.request_seconds > 0 ? after(server_.limits.request_seconds) : SteadyTime::max();
  exchange_ = std::make_shared<Exchange>(server_.shared_from_this(), weak_from_this());
  try {
    server_.handler(std::move(request), exchange_);
  } catch (const std::exception&) {
    exchange_->send(server_.error(500, "internal error"));
  }
}

// --- answering

void Connection::head(const HttpResponse& response, std::optional<size_t> length) {
  queued_ += "HTTP/1.1 " + std::to_string(response.status) + " " + status_text(response.status) + "\r\n";
  if (!response.content_type.empty()) queued_ += "Content-Type: " + response.content_type + "\r\n";
  if (length && response.status != 204) queued_ += "Content-Length: " + std::to_string(*length) + "\r\n";
  if (!length && chunked_) queued_ += "Transfer-Encoding: chunked\r\n";
  if (!id_.empty()) queued_ += "X-Request-Id: " + id_ + "\r\n";
  for (const auto& [name, value] : response.headers) queued_ += name + ": " + value + "\r\n";
  queued_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void Connection::refuse(int status, const std::string& message) {
  const HttpResponse response = server_.error(status, message);
  state_ = State::kHandling;
  keep_alive_ = false;
  id_ = server_.next_id();
  in_.clear();
  parser_.reset();
  complete_ = true;
  head(response, response.body.size());
  queued_ += response.body;
  deadline_ = after(server_.limits.write_seconds);
  flush();
}

void Connection::respond(const Exchange* who, HttpResponse response) {
  if (closed_ || exchange_.get() != who || complete_) return;
  if (server_.stopping) keep_alive_ = false;
  head(response, response.body.size());
  if (!head_only_) queued_ += response.body;
  complete_ = true;
  exchange_->finished();
  flush();
}

void Connection::begin_stream(const Exchange* who, const HttpResponse& response, std::shared_ptr<StreamSource> source) {
  if (closed_ || exchange_.get() != who || complete_) return;
  if (!chunked_ || server_.stopping) keep_alive_ = false;
  head(response, std::nullopt);
  source_ = std::move(source);
  flush();
  pump();
}

void Connection::pump(const Exchange* who) {
  if (!closed_ && exchange_.get() == who) pump();
}

void Connection::pump() {
  if (!source_ || writing_) return;
  std::string piece;
  const bool end = source_->pull(piece);
  if (!piece.empty()) {
    if (chunked_) {
      char size[24];
      std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
      queued_ += size;
      queued_ += piece;
      queued_ += "\r\n";
    } else {
      queued_ += piece;
    }
  }
  if (end) {
    if (chunked_) queued_ += "0\r\n\r\n";
    source_.reset();
    complete_ = true;
    exchange_->finished();
  }
  if (!queued_.empty())
    flush();
  else if (complete_)
    next_request();
}

void Connection::flush() {
  if (writing_ || closed_ || queued_.empty()) return;
  out_.swap(queued_);
  queued_.clear();
  written_ = 0;
  writing_ = true;
  progress_ = now();
  write();
}

void Connection::write() {
  socket_.async_write_some(asio::buffer(out_.data() + written_, out_.size() - written_),
                           [self = shared_from_this()](const error_code& ec, size_t n) {
                             if (self->closed_) return;
                             if (ec) return self->close();
                             self->written_ += n;
                             self->progress_ = now();
                             if (self->written_ < self->out_.size()) return self->write();
                             self->writing_ = false;
                             self->out_.clear();
                             if (!self->queued_.empty()) return self->flush();
                             if (self->source_) return self->pump();
                             if (self->complete_) self->next_request();
                           });
}

void Connection::next_request() {
  exchange_.reset();
  complete_ = false;
  release_body();
  if (out_.capacity() > (1u << 20)) out_ = {};
  if (!keep_alive_ || server_.stopping) {
    state_ = State::kLinger;
    error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    deadline_ = now() + kLinger;
    return wait_read();
  }
  state_ = State::kReading;
  deadline_ = after(server_.limits.idle_seconds);
  if (!in_.empty()) {  // pipelined; not from here, or the stack would grow with their number
    asio::post(server_.io, [self = shared_from_this()] {
      if (self->closed_ || self->state_ != State::kReading) return;
      self->parse();
      self->wait_read();
    });
    return;
  }
  wait_read();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  release_body();
  source_.reset();
  if (exchange_ && !complete_) {
    ++server_.disconnects;
    exchange_->abort(AbortReason::kDisconnect);
  }
  exchange_.reset();
  error_code ec;
  socket_.close(ec);
  --server_.open;
  server_.connections.erase(this);  // a pending handler holds the object a little longer
}

void Connection::check(SteadyTime time) {
  if (writing_ && time - progress_ > std::chrono::duration<double>(server_.limits.write_seconds)) {
    ++server_.timeouts;
    return close();
  }
  if (time < deadline_) return;
  switch (state_) {
    case State::kReading:
      if (!parser_) return close();
      ++server_.timeouts;
      return refuse(408, head_seen_ ? "the body of the request did not arrive in time"
                                    : "the head of the request did not arrive in time");
    case State::kHandling:
      if (timed_out_ || !exchange_) return close();
      ++server_.timeouts;
      timed_out_ = true;
      deadline_ = time + kAfterTimeout;
      keep_alive_ = false;
      return exchange_->abort(AbortReason::kTimeout);
    case State::kLinger:
      return close();
  }
}

// --- the server

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](const error_code& ec, tcp::socket socket) {
    if (stopping || ec == asio::error::operation_aborted) return;
    if (ec) {  // out of file descriptors, most likely: those under way give theirs back
      retry.expires_after(std::chrono::milliseconds(100));
      retry.async_wait([this](const error_code& cancelled) {
        if (!cancelled && !stopping) accept();
      });
      return;
    }
    if (open >= limits.max_connections) {
      ++refused;
      const HttpResponse full = error(503, "too many connections");
      const std::string text =
          "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: "
          "1\r\nConnection: close\r\nContent-Length: " +
          std::to_string(full.body.size()) + "\r\n\r\n" + full.body;
      error_code ignored;
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(text), ignored);
      socket.shutdown(tcp::socket::shutdown_send, ignored);
    } else {
      ++open;
      ++accepted;
      auto c = std::make_shared<Connection>(*this, std::move(socket));
      connections.emplace(c.get(), c);
      c->start();
    }
    accept();
  });
}

void HttpServer::Impl::on_tick() {
  const SteadyTime time = now();
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections.size());
  for (const auto& [key, c] : connections) all.push_back(c);
  for (const auto& c : all) {
    if (stopping && (c->idle() || time >= stop_at))
      c->close();
    else
      c->check(time);
  }
  if (stopping && connections.empty()) return io.stop();
  tick.expires_after(stopping ? std::chrono::milliseconds(20) : kTick);
  tick.async_wait([this](const error_code& ec) {
    if (!ec || stopping) on_tick();
  });
}

HttpServer::HttpServer(const std::string& host, uint16_t port, const HttpLimits& limits, HttpHandler handler,
                       ErrorFormat error)
    : impl_(std::make_shared<Impl>(limits, std::move(handler), std::move(error))) {
  listen_at(impl_->acceptor, host, port);
}

HttpServer::~HttpServer() {
  auto all = std::move(impl_->connections);
  impl_->connections.clear();
  for (const auto& [key, c] : all) c->close();
  impl_->io.restart();
  impl_->io.poll();  // what other threads posted holds references to us
}

uint16_t HttpServer::port() const { return impl_->acceptor.local_endpoint().port(); }

void HttpServer::run() {
  impl_->accept();
  impl_->on_tick();
  impl_->io.run();
}

void HttpServer::stop(std::chrono::duration<double> grace) {
  asio::post(impl_->io, [impl = impl_, grace] {
    if (impl->stopping) return;
    impl->stopping = true;
    impl->stop_at = after(grace.count());
    error_code ec;
    impl->acceptor.close(ec);
    impl->retry.cancel();
    impl->tick.cancel();  // runs at once
  });
}

HttpCounts HttpServer::counts() const {
  return {impl_->open, impl_->accepted, impl_->refused, impl_->timeouts, impl_->bad_requests, impl_->disconnects};
}

}  // namespace kadence::server
