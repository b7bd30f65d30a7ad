#include "server/service.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>

#include "server/json.h"
#include "server/openai_format.h"
#include "server/openai_parse.h"
#include "server/page.h"

namespace kadence::server {
namespace {

constexpr size_t kRecent = 64;
constexpr size_t kShownNodes = 2000;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[48];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, static_cast<int>(ms));
  return text;
}

// Takes the same time wherever the difference is.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < b.size(); ++i) difference |= static_cast<unsigned char>((i < a.size() ? a[i] : 0) ^ b[i]);
  return difference == 0;
}

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      out += static_cast<char>(code);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.find(']', colon) != std::string_view::npos ? host
                                                                                            : host.substr(0, colon);
}

struct Route {
  const char* method;
  const char* path;
};
constexpr Route kRoutes[] = {
    {"GET", "/"},          {"GET", "/health"},          {"GET", "/health/ready"},
    {"GET", "/metrics"},   {"GET", "/v1/models"},       {"POST", "/v1/completions"},
    {"POST", "/tokenize"}, {"POST", "/detokenize"},     {"POST", "/v1/chat/completions"},
    {"GET", "/v1/cache"},  {"POST", "/v1/cache/flush"}, {"GET", "/v1/status"},
};

HttpResponse json_response(const Json& json) {
  HttpResponse r;
  r.body = dump(json);
  return r;
}

Json slots_json(const engine::EngineStats& s) {
  return {{"capacity", s.slots.capacity},
          {"free", s.slots.free},
          {"working", s.slots.working},
          {"reserved", s.slots.reserved},
          {"cached", s.slots.cached - s.tree.locked_states},
          {"pinned", s.tree.locked_states}};
}
Json pages_json(const engine::EngineStats& s) {
  return {{"capacity", s.pages.capacity},
          {"free", s.pages.free},
          {"working", s.pages.working},
          {"cached", s.pages.cached - s.tree.locked_pages},
          {"pinned", s.tree.locked_pages}};
}

}  // namespace

bool is_loopback(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host == "localhost" || host == "::1" ||
         (host.substr(0, 4) == "127." && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

Service::Service(engine::EngineThread& engine, ApiContext context, EngineFacts facts, ServiceOptions options,
                 AccessLog& log)
    : engine_(engine),
      context_(std::move(context)),
      facts_(std::move(facts)),
      options_(std::move(options)),
      log_(log),
      created_(unix_seconds()),
      started_(clock_.now()),
      work_(std::max(1, options_.work_threads), static_cast<size_t>(std::max(1, options_.work_queue))) {}

bool Service::admit(int choices) {
  int now = in_flight_;
  do {
    if (now + choices > options_.max_in_flight) return false;
  } while (!in_flight_.compare_exchange_weak(now, now + choices));
  return true;
}

// --- what every request goes through

void Service::handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->responder = std::move(responder);
  call->begin = clock_.now();
  call->route = "other";
  call->responder->on_abort([slot = call->abort](AbortReason reason) { slot->raise(reason); });
  if (allowed(call)) route(call);
}

bool Service::allowed(const CallPtr& call) {
  const HttpRequest& r = call->request;
  // A page whose host name was made to point here is no page of ours, though its origin is the host that it asks for.
  const bool own = (r.origin == "http://" + r.host || r.origin == "https://" + r.host) &&
                   (!options_.loopback || is_loopback(without_port(r.host)));
  const bool cross = !r.origin.empty() && !own;
  if (cross && r.origin != options_.cors_origin) {
    answer(call, format_error(server_error(403, "requests of other origins are not allowed (--cors-origin)",
                                           "origin_not_allowed")));
    return false;
  }
  if (r.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.content_type.clear();
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                        {"Access-Control-Allow-Headers", "authorization, content-type, x-request-id"},
                        {"Access-Control-Max-Age", "600"}};
    answer(call, std::move(response));
    return false;
  }
  const bool open = r.path == "/" || r.path == "/health" || r.path == "/health/ready";
  if (open) return true;
  if (options_.api_key.empty()) {
    // Browsers name no origin when a page reads from its own host, so a name made to point here is told by the host.
    if (!options_.loopback || r.host.empty() || is_loopback(without_port(r.host))) return true;
    answer(call, format_error(server_error(
                     403, "this server listens on loopback and has no API key: the Host must be a loopback name",
                     "host_not_allowed")));
    return false;
  }
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view given = r.authorization;
  const bool bearer = given.size() >= kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), given.begin(), [](char want, char got) {
                        return want == std::tolower(static_cast<unsigned char>(got));
                      });
  if (bearer && same_secret(given.substr(kBearer.size()), options_.api_key)) return true;
  answer(call,
         format_error(server_error(401, "a valid API key is needed: Authorization: Bearer ...", "invalid_api_key")));
  return false;
}

void Service::route(const CallPtr& call) {
  const HttpRequest& r = call->request;
  const std::string method = r.method == "HEAD" ? "GET" : r.method;
  std::string allow;
  bool found = false;
  const bool one_model = r.path.rfind("/v1/models/", 0) == 0;
  for (const Route& known : kRoutes) {
    if (r.path != known.path && !(one_model && std::string_view(known.path) == "/v1/models")) continue;
    call->route = known.path;
    allow = known.method;
    found = method == known.method;
  }
  if (allow.empty())
    return answer(call, format_error(server_error(404, "no such path: " + r.path.substr(0, 200), "not_found")));
  if (!found) {
    HttpResponse response = format_error(server_error(405, "wanted " + allow, "method_not_allowed"));
    response.headers.emplace_back("Allow", allow);
    return answer(call, std::move(response));
  }
  if (r.path == "/") {
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    response.body = page_html();
    response.headers = {{"Content-Security-Policy",
                         "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
                         "'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Cache-Control", "no-cache"}};
    return answer(call, std::move(response));
  }
  if (r.path == "/health") return health(call, false);
  if (r.path == "/health/ready") return health(call, true);
  if (r.path == "/metrics") return metrics_text(call);
  if (r.path == "/v1/models" || one_model) return models(call);
  if (r.path == "/v1/cache") return cache(call);
  if (r.path == "/v1/status") return status(call);
  if (r.path == "/v1/cache/flush") return flush(call);
  if (r.path == "/tokenize") return read_body(call, &Service::tokenize);
  if (r.path == "/detokenize") return read_body(call, &Service::detokenize);
  call->kind = r.path == "/v1/completions" ? "completion" : "chat";
  read_body(call, &Service::generate);
}

void Service::answer(const CallPtr& call, HttpResponse response) {
  if (!options_.cors_origin.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
    response.headers.emplace_back("Access-Control-Expose-Headers", "x-request-id");
    response.headers.emplace_back("Vary", "Origin");
  }
  log(*call, response.status);
  call->responder->send(std::move(response));
}

void Service::log(Call& call, int status) {
  if (call.logged.exchange(true)) return;
  call.abort->clear();  // it may hold a job that holds the call
  const double seconds = clock_.now() - call.begin;
  metrics_.answered(call.route, status, seconds);
  const bool probe = call.route == "/health" || call.route == "/health/ready" || call.route == "/metrics" ||
                     call.route == "/v1/status" || call.route == "/v1/cache";
  if (!call.kind.empty()) {
    const std::lock_guard lock(recent_mutex_);
    recent_.push_back({call.request.id, call.kind, call.finish.empty() ? call.error_code : call.finish, status,
                       call.prompt_tokens, call.cached_tokens, call.output_tokens, seconds, call.queue_seconds,
                       call.first_token_seconds, clock_.now() - started_});
    if (recent_.size() > kRecent) recent_.pop_front();
  }
  if (probe && status == 200) return;
  Json line = Json::object();
  line["time"] = timestamp();
  line["request_id"] = call.request.id;
  line["client"] = call.request.peer;
  line["method"] = call.request.method.substr(0, 16);
  line["route"] = call.route;
  line["status"] = status;
  line["seconds"] = seconds;
  if (call.prompt_tokens >= 0) {
    line["prompt_tokens"] = call.prompt_tokens;
    line["cached_tokens"] = call.cached_tokens;
    line["output_tokens"] = call.output_tokens;
    line["queue_seconds"] = call.queue_seconds;
    line["first_token_seconds"] = call.first_token_seconds;
  }
  if (!call.kind.empty()) line["stream"] = call.stream;
  if (!call.finish.empty()) line["finish"] = call.finish;
  if (!call.error_code.empty()) line["error"] = call.error_code;
  if (options_.log_prompts && !call.request.body.empty()) line["body"] = call.request.body.substr(0, 16384);
  log_.line(dump(line));
}

void Service::read_body(const CallPtr& call, void (Service::*then)(const CallPtr&)) {
  if (closed_) return answer(call, format_error(server_error(503, "the server is shutting down", "shutting_down")));
  const bool queued = work_.try_post([this, call, then] {
    try {
      (this->*then)(call);
    } catch (const std::exception&) {
      answer(call, format_error(server_error(500, "internal error")));
    }
  });
  if (!queued) answer(call, format_error(server_error(429, "too many requests wait, try again later", "queue_full")));
}

// --- routes

void Service::generate(const CallPtr& call) {
  auto parsed =
      call->kind == "chat" ? parse_chat(call->request.body, context_) : parse_completion(call->request.body, context_);
  if (!options_.log_prompts) call->request.body = {};
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    call->error_code = error->code;
    return answer(call, format_error(*error));
  }
  auto& request = std::get<ApiRequest>(parsed);
  call->stream = request.stream;
  start_job(*this, call, std::move(request));
}

void Service::tokenize(const CallPtr& call) {
  auto parsed = parse_tokenize(call->request.body, context_);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return answer(call, format_error(*error));
  auto request = std::get<TokenizeRequest>(std::move(parsed));
  const auto reply = [this, call](const std::vector<int32_t>& ids, int64_t cached) {
    Json json = {{"count", ids.size()}, {"max_model_len", context_.context_length}, {"tokens", ids}};
    if (cached >= 0) json["cached_tokens"] = cached;
    answer(call, json_response(json));
  };
  if (!request.predict) return reply(request.ids, -1);
  engine::RequestSpec spec;
  spec.ids = request.ids;
  spec.cache_salt = request.cache_salt;
  const bool asked = engine_.call([this, reply, spec = std::move(spec)](engine::Engine& e) {
    const int64_t cached = e.predict_cached_tokens(spec);
    work_.post([reply, ids = spec.ids, cached] { reply(ids, cached); });
  });
  if (!asked) answer(call, format_error(server_error(503, "the server is shutting down", "shutting_down")));
}

void Service::detokenize(const CallPtr& call) {
  auto parsed = parse_detokenize(call->request.body, context_);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return answer(call, format_error(*error));
  const auto& ids = std::get<std::vector<int32_t>>(parsed);
  answer(call, json_response({{"prompt", context_.tokenizer->decode(ids, true)}}));
}

void Service::models(const CallPtr& call) {
  const Json model = {{"id", context_.model_name},
                      {"object", "model"},
                      {"created", created_},
                      {"owned_by", "kadence"},
                      {"max_model_len", context_.context_length}};
  const std::string path = percent_decoded(call->request.path);
  constexpr size_t kPrefix = sizeof("/v1/models/") - 1;
  if (path.size() <= kPrefix) return answer(call, json_response({{"object", "list"}, {"data", Json::array({model})}}));
  if (path.substr(kPrefix) == context_.model_name) return answer(call, json_response(model));
  answer(call, format_error(server_error(404, "The model '" + path.substr(kPrefix, 200) + "' does not exist",
                                         "model_not_found")));
}

void Service::health(const CallPtr& call, bool ready) {
  const std::string failed = engine_.failure();
  const bool good = failed.empty() && !(ready && closed_);
  HttpResponse response = json_response({{"status", !failed.empty()    ? "failed"
                                                    : ready && closed_ ? "shutting down"
                                                                       : "ok"}});
  response.status = good ? 200 : 503;
  response.headers.emplace_back("Cache-Control", "no-store");
  answer(call, std::move(response));
}

Metrics::Snapshot Service::snapshot() const {
  Metrics::Snapshot s;
  s.engine = engine_.last_stats();
  if (http_counts_) s.http = http_counts_();
  s.in_flight = in_flight_;
  s.work_queue = static_cast<int64_t>(work_.size());
  s.log_lines_dropped = log_.dropped();
  s.healthy = engine_.failure().empty();
  s.ready = s.healthy && !closed_;
  return s;
}

void Service::metrics_text(const CallPtr& call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.text(snapshot());
  answer(call, std::move(response));
}

void Service::cache(const CallPtr& call) {
  const bool asked = engine_.call([this, call](engine::Engine& e) {
    // Values only; what they look like is written elsewhere.
    auto nodes = std::make_shared<std::vector<prefix::RadixTree::NodeView>>(e.tree().nodes());
    const engine::EngineStats stats = e.stats();
    std::string broken;
    try {
      e.check_accounting();
    } catch (const std::exception& error) {
      broken = error.what();
    }
    work_.post([this, call, nodes, stats, broken] {
      Json json = Json::object();
      json["slots"] = slots_json(stats);
      json["pages"] = pages_json(stats);
      json["page_size"] = facts_.page_size;
      json["checkpoint_grid"] = facts_.checkpoint_grid;
      json["accounting"] = broken.empty() ? "ok" : broken;
      Json tree = {{"nodes", stats.tree.nodes},
                   {"pages", stats.tree.pages},
                   {"states", stats.tree.states},
                   {"locked_pages", stats.tree.locked_pages},
                   {"locked_states", stats.tree.locked_states},
                   {"evictable_pages", stats.tree.evictable_pages},
                   {"evictable_states", stats.tree.evictable_states}};
      Json list = Json::array();
      for (size_t i = 0; i < std::min(nodes->size(), kShownNodes); ++i) {
        const auto& n = (*nodes)[i];
        list.push_back({{"id", n.id},
                        {"parent", n.parent},
                        {"depth", n.depth},
                        {"tokens", n.tokens},
                        {"resumable", n.has_state},
                        {"locks", n.locks}});
      }
      tree["shown"] = list.size();
      tree["list"] = std::move(list);
      json["tree"] = std::move(tree);
      answer(call, json_response(json));
    });
  });
  if (!asked) answer(call, format_error(server_error(503, "the server is shutting down", "shutting_down")));
}

void Service::flush(const CallPtr& call) {
  const bool asked = engine_.call([this, call](engine::Engine& e) {
    const auto f = e.flush_cache();
    work_.post([this, call, f] {
      answer(call, json_response({{"dropped", {{"pages", f.pages}, {"states", f.states}}},
                                  {"stayed", {{"pages", f.locked_pages}, {"states", f.locked_states}}}}));
    });
  });
  if (!asked) answer(call, format_error(server_error(503, "the server is shutting down", "shutting_down")));
}

void Service::status(const CallPtr& call) {
  const Metrics::Snapshot s = snapshot();
  const engine::EngineStats& e = s.engine;
  Json json = Json::object();
  json["model"] = context_.model_name;
  json["uptime_seconds"] = clock_.now() - started_;
  json["describe"] = facts_.describe;
  json["context_length"] = facts_.context_length;
  json["shortest_hit"] = facts_.shortest_hit;
  json["healthy"] = s.healthy;
  json["ready"] = s.ready;
  json["requests"] = {{"waiting", e.waiting},     {"running", e.running},   {"replaying", e.replaying},
                      {"in_flight", s.in_flight}, {"finished", e.finished}, {"cancelled", e.cancelled}};
  json["tokens"] = {{"prefill", e.prefill_tokens},
                    {"decode", e.decode_tokens},
                    {"replayed", e.replayed_tokens},
                    {"restored", e.restored_tokens}};
  json["cache"] = {
      {"lookups", e.lookups},
      {"hits", e.hits},
      {"misses",
       {{"too_short", e.misses_too_short},
        {"no_match", e.misses_no_match},
        {"no_state", e.misses_no_state},
        {"disabled", e.misses_disabled}}},
      {"checkpoints",
       {{"written", e.checkpoints_written}, {"skipped", e.checkpoints_skipped}, {"refused", e.checkpoints_duplicate}}}};
  json["slots"] = slots_json(e);
  json["pages"] = pages_json(e);
  json["connections"] = s.http.connections;
  Json recent = Json::array();
  {
    const std::lock_guard lock(recent_mutex_);
    for (auto r = recent_.rbegin(); r != recent_.rend(); ++r) {
      recent.push_back({{"id", r->id},
                        {"kind", r->kind},
                        {"status", r->status},
                        {"finish", r->finish},
                        {"prompt_tokens", r->prompt},
                        {"cached_tokens", r->cached},
                        {"output_tokens", r->output},
                        {"seconds", r->seconds},
                        {"queue_seconds", r->queue},
                        {"first_token_seconds", r->first},
                        {"at_seconds", r->at}});
    }
  }
  json["recent"] = std::move(recent);
  answer(call, json_response(json));
}

}  // namespace kadence::server
