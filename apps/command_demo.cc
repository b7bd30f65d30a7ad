// `kadence demo`: a chat of two turns. The second turn's prompt begins with everything said before, so it resumes from
// the cache; the demo shows what was reused, what that saved, and that the answer is the one of a cold run.
#include <fmt/core.h>

#include <iostream>
#include <memory>

#include "apps/check.h"
#include "apps/cli.h"
#include "apps/numbers.h"
#include "apps/session.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

constexpr const char* kSystem = "You are a helpful assistant.";
const std::vector<std::string> kTurns = {
    "Repeat this text:\n\n"
    "A server that keeps the state of a conversation does not have to read it again. When the next message arrives, "
    "most of the "
    "prompt is known: only the new words are computed, and the answer begins at once. The state must be the one that a "
    "fresh start "
    "would have computed, to the last bit, or the answers of busy days differ from those of quiet ones.",
    "What does \"zebra\" mean?"};

struct Options {
  EngineFlags engine;
  int32_t max_tokens = 96;
  bool json = false;
};

engine::RequestSpec make_spec(const std::vector<int32_t>& ids, const std::vector<int32_t>& stop_ids, int32_t max_tokens,
                              bool use_cache) {
  engine::RequestSpec spec;
  spec.ids = ids;
  spec.stop_ids = stop_ids;
  spec.max_tokens = max_tokens;
  spec.use_cache = use_cache;
  spec.output_logprobs = true;
  return spec;
}

// Streams one answer to standard output (unless quiet) and returns what the engine says of it; replays are done
// afterwards.
engine::RequestOutput answer(Session& session, engine::RequestSpec spec, bool quiet) {
  const auto id = session.engine->submit(std::move(spec));
  if (!id) throw base::Error(base::ErrorCode::kInvalidArgument, id.reason());
  model::StreamDecoder decoder(*session.tokenizer);
  std::optional<engine::RequestOutput> out;
  while (!out) {
    KADENCE_CHECK(session.engine->step());
    for (const engine::TokenEvent& e : session.engine->take_events()) {
      if (const std::string text = decoder.push(e.token); !quiet) std::cout << text << std::flush;
    }
    out = session.engine->take_output(id.value());
  }
  if (const std::string rest = decoder.finish(); !quiet) std::cout << rest << "\n" << std::flush;
  if (out->reason == engine::FinishReason::kError) throw base::Error(base::ErrorCode::kInternal, out->error);
  session.engine->run_until_idle();
  return std::move(*out);
}

int run_demo(const Options& o) {
  Progress progress;
  Session session = open_session(o.engine, progress);
  if (!session.tokenizer)
    throw base::Error(base::ErrorCode::kUnsupported,
                      fmt::format("{}: the model has no tokenizer, so it cannot chat", o.engine.model));
  if (!session.engine->options().radix_cache)
    throw UsageError("demo shows the prefix cache: it cannot run with --disable-radix-cache");
  const auto chat = model::make_chat_template(session.config, o.engine.model);
  std::vector<int32_t> stop_ids;
  for (const std::string& spelling : chat->stop_tokens()) {
    if (const auto id = session.tokenizer->special_id(spelling)) stop_ids.push_back(*id);
  }
  run_request(*session.engine,
              make_spec(session.tokenizer->encode(kSystem, false), {}, 1, false));  // first use of every operator

  std::vector<model::ChatMessage> messages{{"system", kSystem, {}, {}}};
  Json turns = Json::array();
  bool ok = true;
  for (size_t t = 0; t < kTurns.size(); ++t) {
    messages.push_back({"user", kTurns[t], {}, {}});
    const std::vector<int32_t> ids = chat->encode(*session.tokenizer, messages, "", true);
    if (!o.json) std::cout << "user: " << kTurns[t] << "\nassistant: ";
    const auto warm = answer(session, make_spec(ids, stop_ids, o.max_tokens, true), o.json);
    const std::string text = session.tokenizer->decode(warm.output_ids, false);
    messages.push_back({"assistant", text, {}, {}});
    const auto cold = answer(session, make_spec(ids, stop_ids, o.max_tokens, false), true);
    const bool same = warm.output_ids == cold.output_ids && compare(warm.output_logprobs, cold.output_logprobs).bits;
    ok &= same && (t == 0 || warm.cached_tokens > 0);
    if (!o.json) {
      std::cout << fmt::format(
          "  [turn {}: {} prompt tokens, {} reused from the cache, {} computed; prefill {} instead of {} cold", t + 1,
          with_commas(warm.prompt_tokens), with_commas(warm.cached_tokens),
          with_commas(warm.prompt_tokens - warm.cached_tokens), format_seconds(warm.prefill_seconds),
          format_seconds(cold.prefill_seconds));
      if (warm.cached_tokens > 0)
        std::cout << fmt::format(": {:.1f} times sooner, {} saved", cold.prefill_seconds / warm.prefill_seconds,
                                 format_seconds(cold.prefill_seconds - warm.prefill_seconds));
      std::cout << fmt::format("; tokens and log-probs {} those of a cold run]\n\n",
                               same ? "are to the last bit" : "are NOT");
    }
    turns.push_back(Json{{"user", kTurns[t]},
                         {"assistant", text},
                         {"prompt_tokens", warm.prompt_tokens},
                         {"cached_tokens", warm.cached_tokens},
                         {"prefill_ms", warm.prefill_seconds * 1e3},
                         {"cold_prefill_ms", cold.prefill_seconds * 1e3},
                         {"equal_to_cold", same}});
  }
  const engine::EngineStats stats = session.engine->stats();
  if (o.json) {
    Json out = Json::object();
    out["ok"] = ok;
    out["turns"] = std::move(turns);
    out["replayed_tokens"] = stats.replayed_tokens;
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << fmt::format(
        "The cache now holds {} states and {} KV pages; to get there, {} tokens were extended again while idle: "
        "answers "
        "enter the cache with prefill's bits.\n",
        with_commas(stats.tree.states), with_commas(stats.tree.pages), with_commas(stats.replayed_tokens));
    if (!ok) std::cout << "FAILED: the second turn missed the cache, or a cached answer differs from the cold one.\n";
  }
  return ok ? kOk : kFailed;
}

}  // namespace

void add_demo(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand("demo",
                                     "A short chat whose second turn hits the cache: what was reused, what it saved; "
                                     "status 1 if it missed or differs from a cold run");
  auto o = std::make_shared<Options>();
  sub->add_option("--max-tokens", o->max_tokens, "Tokens of an answer at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  sub->add_flag("--json", o->json, "One JSON document");
  add_engine_flags(*sub, &o->engine, FlagSet::kServing);
  sub->callback([=] { *action = [=] { return run_demo(*o); }; });
}

}  // namespace kadence::apps
