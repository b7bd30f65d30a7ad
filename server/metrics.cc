#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <vector>

namespace kadence::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                       0.5,   1,      2.5,   5,    10,    30,   60,  120};
const prometheus::Histogram::BucketBoundaries kTokens{1,    16,   64,    256,   512,   1024,   2048,
                                                      4096, 8192, 16384, 32768, 65536, 131072, 1048576};

// Families out of plain values.
class Writer {
 public:
  Writer& family(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
    return *this;
  }
  Writer& value(double v, std::vector<std::pair<std::string, std::string>> labels = {}) {
    ClientMetric m;
    for (auto& [name, text] : labels) m.label.push_back({name, text});
    if (families_.back().type == MetricType::Counter)
      m.counter.value = v;
    else
      m.gauge.value = v;
    families_.back().metric.push_back(std::move(m));
    return *this;
  }
  Writer& counter(const char* name, const char* help, double v) {
    return family(name, help, MetricType::Counter).value(v);
  }
  Writer& gauge(const char* name, const char* help, double v) { return family(name, help, MetricType::Gauge).value(v); }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Histogram>& http = prometheus::BuildHistogram()
                                                        .Name("kadence_http_request_seconds")
                                                        .Help("From a request's last byte to the end of its answer")
                                                        .Register(registry);
  prometheus::Family<prometheus::Counter>& answers = prometheus::BuildCounter()
                                                         .Name("kadence_http_requests_total")
                                                         .Help("Answers by route and status; 499: the client had gone")
                                                         .Register(registry);
  prometheus::Family<prometheus::Histogram>& phases = prometheus::BuildHistogram()
                                                          .Name("kadence_request_phase_seconds")
                                                          .Help("Time of a request in queue, prefill and decode")
                                                          .Register(registry);
  prometheus::Histogram& queue = phases.Add({{"phase", "queue"}}, kSeconds);
  prometheus::Histogram& prefill = phases.Add({{"phase", "prefill"}}, kSeconds);
  prometheus::Histogram& decode = phases.Add({{"phase", "decode"}}, kSeconds);
  prometheus::Histogram& first = prometheus::BuildHistogram()
                                     .Name("kadence_time_to_first_token_seconds")
                                     .Help("From submission to the first token")
                                     .Register(registry)
                                     .Add({}, kSeconds);
  prometheus::Family<prometheus::Histogram>& tokens = prometheus::BuildHistogram()
                                                          .Name("kadence_request_tokens")
                                                          .Help("Tokens of a request: prompt, cached, generated")
                                                          .Register(registry);
  prometheus::Histogram& prompt = tokens.Add({{"kind", "prompt"}}, kTokens);
  prometheus::Histogram& cached = tokens.Add({{"kind", "cached"}}, kTokens);
  prometheus::Histogram& generated = tokens.Add({{"kind", "generated"}}, kTokens);
  prometheus::Family<prometheus::Counter>& ends = prometheus::BuildCounter()
                                                      .Name("kadence_requests_finished_total")
                                                      .Help("Requests of the engine by the way they ended")
                                                      .Register(registry);
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  for (const auto reason : {engine::FinishReason::kLength, engine::FinishReason::kStop,
                            engine::FinishReason::kCancelled, engine::FinishReason::kError})
    impl_->ends.Add({{"reason", engine::to_string(reason)}});
}
Metrics::~Metrics() = default;

void Metrics::answered(const std::string& route, int status, double seconds) {
  impl_->http.Add({{"route", route}}, kSeconds).Observe(seconds);
  impl_->answers.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::finished(const engine::RequestOutput& o) {
  impl_->ends.Add({{"reason", engine::to_string(o.reason)}}).Increment();
  impl_->queue.Observe(o.queue_seconds);
  impl_->prefill.Observe(o.prefill_seconds);
  impl_->decode.Observe(o.decode_seconds);
  if (!o.output_ids.empty()) impl_->first.Observe(o.first_token_seconds);
  impl_->prompt.Observe(static_cast<double>(o.prompt_tokens));
  impl_->cached.Observe(static_cast<double>(o.cached_tokens));
  impl_->generated.Observe(static_cast<double>(o.output_ids.size()));
}

std::string Metrics::text(const Snapshot& s) const {
  const engine::EngineStats& e = s.engine;
  const auto n = [](int64_t v) { return static_cast<double>(v); };
  Writer w;
  w.gauge("kadence_up", "1 while the engine works", s.healthy);
  w.gauge("kadence_ready", "1 while new requests are taken", s.ready);
  w.family("kadence_state_slots", "State slots by kind; the kinds add up to the capacity. pinned: cached and in use",
           MetricType::Gauge)
      .value(e.slots.free, {{"kind", "free"}})
      .value(e.slots.working, {{"kind", "working"}})
      .value(e.slots.reserved, {{"kind", "reserved"}})
      .value(n(e.slots.cached - e.tree.locked_states), {{"kind", "cached"}})
      .value(n(e.tree.locked_states), {{"kind", "pinned"}});
  w.gauge("kadence_state_slots_capacity", "State slots in all", e.slots.capacity);
  w.family("kadence_kv_pages", "Pages by kind; the kinds add up to the capacity. pinned: cached and in use",
           MetricType::Gauge)
      .value(e.pages.free, {{"kind", "free"}})
      .value(e.pages.working, {{"kind", "working"}})
      .value(n(e.pages.cached - e.tree.locked_pages), {{"kind", "cached"}})
      .value(n(e.tree.locked_pages), {{"kind", "pinned"}});
  w.gauge("kadence_kv_pages_capacity", "Pages in all", e.pages.capacity);
  w.gauge("kadence_tree_nodes", "Nodes of the radix tree", n(e.tree.nodes));
  w.family("kadence_requests", "Requests in the engine by stage", MetricType::Gauge)
      .value(e.waiting, {{"stage", "waiting"}})
      .value(e.running, {{"stage", "running"}})
      .value(e.replaying, {{"stage", "replaying"}});
  w.counter("kadence_engine_steps_total", "Steps of the engine", n(e.steps));
  w.family("kadence_tokens_total", "Tokens by what was done with them", MetricType::Counter)
      .value(n(e.prefill_tokens), {{"kind", "prefill"}})
      .value(n(e.decode_tokens), {{"kind", "decode"}})
      .value(n(e.replayed_tokens), {{"kind", "replayed"}})
      .value(n(e.restored_tokens), {{"kind", "restored"}});
  w.counter("kadence_cache_lookups_total", "Prompts looked up in the prefix cache", n(e.lookups));
  w.counter("kadence_cache_hits_total", "Lookups that resumed from a cached state", n(e.hits));
  w.family("kadence_cache_misses_total",
           "Lookups that resumed from nothing, by reason. too_short: no grid point could have been resumed",
           MetricType::Counter)
      .value(n(e.misses_too_short), {{"reason", "too_short"}})
      .value(n(e.misses_no_match), {{"reason", "no_match"}})
      .value(n(e.misses_no_state), {{"reason", "no_state"}})
      .value(n(e.misses_disabled), {{"reason", "disabled"}});
  w.family("kadence_checkpoints_total",
           "Checkpoints: written, skipped for want of a slot, refused because the tree had one there already",
           MetricType::Counter)
      .value(n(e.checkpoints_written), {{"result", "written"}})
      .value(n(e.checkpoints_skipped), {{"result", "skipped"}})
      .value(n(e.checkpoints_duplicate), {{"result", "refused"}});
  w.counter("kadence_replays_dropped_total", "Generated texts that were not published", n(e.replays_dropped));
  w.counter("kadence_aborts_total", "Requests cancelled before their end", n(e.cancelled));
  w.counter("kadence_retractions_total", "Requests that gave their pages back and started again", n(e.retracted));
  w.counter("kadence_nan_alarms_total", "Forward passes with NaN or infinite logits", n(e.nan_alarms));
  w.gauge("kadence_server_in_flight", "Choices submitted and not finished", n(s.in_flight));
  w.gauge("kadence_server_work_queue", "Requests whose body waits to be read", n(s.work_queue));
  w.gauge("kadence_http_connections", "Open connections", n(s.http.connections));
  w.counter("kadence_http_connections_accepted_total", "Connections accepted", n(s.http.accepted));
  w.counter("kadence_http_refused_total", "Connections and requests refused for limits", n(s.http.refused));
  w.counter("kadence_http_timeouts_total", "Requests that ran out of time", n(s.http.timeouts));
  w.counter("kadence_http_bad_requests_total", "Requests that were no HTTP or too large", n(s.http.bad_requests));
  w.counter("kadence_http_disconnects_total", "Clients that left before their answer was complete",
            n(s.http.disconnects));
  w.counter("kadence_log_lines_dropped_total", "Log lines that could not be written", n(s.log_lines_dropped));
  std::vector<MetricFamily> families = w.take();
  for (auto& f : impl_->registry.Collect()) families.push_back(std::move(f));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kadence::server
