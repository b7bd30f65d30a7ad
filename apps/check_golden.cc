// `kadence check golden`: a model against the outputs recorded beside it (float32, another implementation).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/check.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "state/kv_pool.h"
#include "state/state_pool.h"

namespace kadence::apps {
namespace {

// Logits and hidden states of a prompt's last token, straight from the model's forward pass: what an engine does not
// show.
struct LastToken {
  std::vector<float> logits;
  std::map<int32_t, std::vector<float>> hidden;  // by layer: -1 = embedding, layers = after the final norm
};

class Probe {
 public:
  Probe(model::Model& model, const EngineFlags& flags, int64_t max_tokens, device::Stream& stream)
      : model_(model),
        stream_(stream),
        tokens_(max_tokens),
        shape_(model::cache_shape(model.config())),
        page_(flags.options.page_size),
        states_({shape_.kda_layers, shape_.HV, shape_.V, shape_.K, base::DType::kF32, shape_.conv_channels,
                 base::DType::kF32},
                1, stream.info()),
        pages_({shape_.attention_layers, shape_.latent_width, page_, base::DType::kF32}, pages_of(max_tokens),
               stream.info()) {
    model::ForwardOptions o;
    o.prefill_backend = flags.options.prefill_backend;
    o.decode_backend = flags.options.decode_backend;
    o.verify_backend = flags.options.verify_backend;
    o.extend_block_tokens = flags.options.extend_block_tokens;
    o.limits = {1, max_tokens, 1, 1};
    model_.prepare(o, stream_);
  }

  LastToken run(const std::vector<int32_t>& ids) {
    const auto n = static_cast<int64_t>(ids.size());
    KADENCE_CHECK(n <= tokens_);
    model::ForwardBatch batch;
    batch.tokens = ids;
    batch.seq_begin = {0, n};
    batch.start = {0};
    batch.state_in = {-1};
    batch.state_out = {0};
    batch.ckpt_begin = {0, 0};
    batch.max_pages = pages_of(n);
    for (int32_t p = 0; p < batch.max_pages; ++p) batch.page_table.push_back(p);
    batch.logit_tokens = {n - 1};
    LastToken last;
    model_.set_hidden_observer([&](int32_t layer, int64_t rows, int64_t width, const float* data) {
      if (rows > 0) last.hidden[layer].assign(data + (rows - 1) * width, data + rows * width);
    });
    model_.forward(
        batch, views(),
        [&](int64_t, int64_t, const float* logits) { last.logits.assign(logits, logits + model_.config().vocab); },
        stream_);
    model_.set_hidden_observer({});
    return last;
  }

 private:
  int32_t pages_of(int64_t tokens) const { return static_cast<int32_t>(base::ceil_div<int64_t>(tokens, page_)); }
  model::CacheViews views() const {
    model::CacheViews v;
    v.states = {states_.states(),           base::DType::kF32, states_.slots(),
                states_.state_slot_pitch(), shape_.kda_layers, states_.state_layer_pitch()};
    v.windows = {states_.windows(),           base::DType::kF32, states_.slots(),
                 states_.window_slot_pitch(), shape_.kda_layers, states_.window_layer_pitch()};
    v.latents = {pages_.data(), base::DType::kF32, pages_.pages(), pages_.page_pitch(), page_};
    v.latent_layer_pitch = pages_.layer_pitch();
    return v;
  }

  model::Model& model_;
  device::Stream& stream_;
  int64_t tokens_;
  model::CacheShape shape_;
  int32_t page_;
  state::StatePool states_;
  state::KvPool pages_;
};

double max_gap(const std::vector<float>& got, const Json& want) {
  KADENCE_CHECK(got.size() == want.size());
  double gap = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::fabs(static_cast<double>(got[i]) - want[i].get<double>());
    gap = std::isnan(d) ? INFINITY : std::max(gap, d);
  }
  return gap;
}

double logits_gap(const std::vector<float>& logits, const Json& prompt) {
  double gap = 0;
  for (size_t i = 0; i < prompt["last_top20_ids"].size(); ++i) {
    const double d = std::fabs(static_cast<double>(logits.at(prompt["last_top20_ids"][i].get<size_t>())) -
                               prompt["last_top20_logits"][i].get<double>());
    gap = std::isnan(d) ? INFINITY : std::max(gap, d);
  }
  return prompt.contains("last_logits") ? std::max(gap, max_gap(logits, prompt["last_logits"])) : gap;
}

// Hidden states are held to the tolerance times their largest value, as their scale differs from layer to layer; the
// last recorded one is after the final norm.
Json hidden_gap(const LastToken& last, const Json& prompt, int32_t layers, bool* ok) {
  if (!prompt.contains("hidden_states_last")) return nullptr;
  double worst = 0;
  const Json& recorded = prompt["hidden_states_last"];
  for (size_t i = 0; i < recorded.size(); ++i) {
    const int32_t layer = i + 1 == recorded.size() ? layers : static_cast<int32_t>(i) - 1;
    const auto it = last.hidden.find(layer);
    if (it == last.hidden.end())
      throw base::Error(base::ErrorCode::kInternal, fmt::format("no hidden state of layer {} was observed", layer));
    double scale = 1;
    for (const auto& x : recorded[i]) scale = std::max(scale, std::fabs(x.get<double>()));
    worst = std::max(worst, max_gap(it->second, recorded[i]) / scale);
  }
  *ok &= worst <= kGoldenTolerance;
  return worst;
}

struct Prompts {
  Table table{
      "Against recorded float32 outputs (largest absolute differences, 5e-4 allowed; hidden states relative to their "
      "largest value)",
      {{"prompt", "prompt"},
       {"tokens", "tokens", Format::kInteger},
       {"logits", "top logits", Format::kNumber},
       {"logprobs", "log-probs", Format::kNumber},
       {"hidden", "hidden states", Format::kNumber},
       {"greedy_logprobs", "greedy log-probs", Format::kNumber},
       {"greedy", "greedy tokens equal", Format::kYesNo},
       {"ok", "ok", Format::kYesNo}}};
  std::map<std::string, LastToken> last;
};

engine::RequestOutput score(engine::Engine& engine, std::vector<int32_t> ids, int64_t from, int32_t max_tokens) {
  engine::RequestSpec spec;
  if (from < static_cast<int64_t>(ids.size())) spec.score_from = from;
  spec.ids = std::move(ids);
  spec.max_tokens = max_tokens;
  spec.ignore_eos = true;
  spec.output_logprobs = true;
  return run_request(engine, std::move(spec));
}

void check_prompts(const Json& golden, Session& session, Prompts* prompts, CheckReport* report) {
  for (const Json& p : golden["prompts"]) {
    const auto ids = p["token_ids"].get<std::vector<int32_t>>();
    const auto greedy = p["greedy_ids"].get<std::vector<int32_t>>();
    const LastToken& last = prompts->last.at(p["name"].get<std::string>());
    const auto out = score(*session.engine, ids, 1, static_cast<int32_t>(greedy.size()));
    const double logits = logits_gap(last.logits, p), logprobs = max_gap(out.logprobs, p["next_token_logprobs"]);
    const bool same = out.output_ids == greedy;
    const Json greedy_gap = same ? Json(max_gap(out.output_logprobs, p["greedy_logprobs"])) : Json();
    bool ok = same && logits <= kGoldenTolerance && logprobs <= kGoldenTolerance &&
              greedy_gap.get<double>() <= kGoldenTolerance;
    const Json hidden = hidden_gap(last, p, session.config.layers, &ok);
    report->ok &= ok;
    prompts->table.add({p["name"], ids.size(), logits, logprobs, hidden, greedy_gap, same, ok});
  }
  if (!golden.contains("copy_cases")) return;
  for (const Json& c : golden["copy_cases"]) {
    auto ids = c["token_ids"].get<std::vector<int32_t>>();
    const auto n = static_cast<int64_t>(ids.size());
    const double gap =
        max_gap(score(*session.engine, std::move(ids), n - c["span"].get<int64_t>(), 0).logprobs, c["span_logprobs"]);
    report->ok &= gap <= kGoldenTolerance;
    prompts->table.add(
        {fmt::format("copy-{}", n), n, nullptr, gap, nullptr, nullptr, nullptr, gap <= kGoldenTolerance});
  }
}

// Strings and their ids, chat transcripts and their texts: identical or not.
void check_text(const Json& golden, const Session& session, CheckReport* report) {
  Table table("Recorded strings and chat transcripts", {{"what", "what"},
                                                        {"cases", "cases", Format::kInteger},
                                                        {"different", "different", Format::kInteger},
                                                        {"first", "first difference"},
                                                        {"ok", "identical", Format::kYesNo}});
  auto row = [&](const char* what, const Json& cases, const auto& same) {
    int64_t different = 0;
    std::string first;
    for (const Json& c : cases) {
      if (same(c)) continue;
      if (different++ == 0) first = (c.contains("text") ? c["text"] : c["messages"]).dump().substr(0, 60);
    }
    report->ok &= different == 0;
    table.add({what, cases.size(), different, first, different == 0});
  };
  if (golden.contains("tokenizer")) {
    if (!session.tokenizer)
      throw base::Error(base::ErrorCode::kIo, "golden.json has strings, but the model has no tokenizer");
    row("encode", golden["tokenizer"], [&](const Json& c) {
      return session.tokenizer->encode(c["text"].get<std::string>(), true) == c["ids"].get<std::vector<int32_t>>();
    });
    row("decode", golden["tokenizer"], [&](const Json& c) {
      return !c.contains("decoded") ||
             session.tokenizer->decode(c["ids"].get<std::vector<int32_t>>()) == c["decoded"].get<std::string>();
    });
  }
  if (golden.contains("chat")) {
    const auto chat = model::make_chat_template(session.config);
    auto messages_of = [](const Json& c) {
      std::vector<model::ChatMessage> messages;
      for (const Json& m : c["messages"])
        messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>(), {}, {}});
      return messages;
    };
    row("chat text", golden["chat"], [&](const Json& c) {
      return chat->render(messages_of(c), "", c["add_generation_prompt"].get<bool>()) == c["text"].get<std::string>();
    });
    row("chat ids", golden["chat"], [&](const Json& c) {
      return chat->encode(*session.tokenizer, messages_of(c), "", c["add_generation_prompt"].get<bool>()) ==
             c["ids"].get<std::vector<int32_t>>();
    });
  }
  if (!table.empty()) report->tables.push_back(std::move(table));
}

}  // namespace

CheckReport check_golden(const CheckOptions& options, Progress& progress) {
  const base::SteadyClock clock;
  const double begin = clock.now();
  CheckReport report;
  report.name = "golden";
  const Json golden = load_golden(options.model);
  if (!golden.contains("prompts"))
    throw base::Error(
        base::ErrorCode::kIo,
        fmt::format("{}/golden.json: not there or without prompts; check golden compares with recorded outputs",
                    options.model));
  Prompts prompts;
  int64_t longest = 1;
  for (const Json& p : golden["prompts"]) longest = std::max(longest, static_cast<int64_t>(p["token_ids"].size()));
  {
    device::Stream stream = open_stream(options.engine.device);
    const auto model = model::load_model(options.model, {}, stream);
    Probe probe(*model, options.engine, longest, stream);
    for (const Json& p : golden["prompts"]) {
      progress.show("golden: logits of " + p["name"].get<std::string>());
      prompts.last[p["name"].get<std::string>()] = probe.run(p["token_ids"].get<std::vector<int32_t>>());
    }
  }
  Session session = open_session(options.model, options.engine.device, engine_options(options.engine), progress);
  progress.show("golden: log-probs and greedy continuations");
  check_prompts(golden, session, &prompts, &report);
  report.tables.push_back(std::move(prompts.table));
  check_text(golden, session, &report);
  progress.clear();
  report.seconds = clock.now() - begin;
  return report;
}

}  // namespace kadence::apps
