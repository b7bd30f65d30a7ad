// `kadence generate`: one prompt, text as it comes.
#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/numbers.h"
#include "apps/session.h"
#include "apps/table.h"
#include "base/error.h"
#include "server/choice_text.h"

namespace kadence::apps {
namespace {

struct Options {
  EngineFlags engine;
  std::string prompt, prompt_file, ids, system;
  bool has_prompt = false, has_prompt_file = false, has_ids = false;
  int32_t max_tokens = 64;
  ops::SamplingParams sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false, chat = false, json = false;
};

void check_flags(const Options& o) {
  std::vector<std::string> given;
  if (o.has_prompt) given.push_back("--prompt");
  if (o.has_prompt_file) given.push_back("--prompt-file");
  if (o.has_ids) given.push_back("--ids");
  if (given.empty()) throw UsageError("generate: one of --prompt, --prompt-file and --ids is needed");
  if (given.size() > 1)
    throw UsageError(fmt::format("{} and {} contradict each other: wanted one prompt", given[0], given[1]));
  if (o.chat && o.has_ids) throw UsageError("--chat and --ids contradict each other: ids are taken as they are");
  if (!o.system.empty() && !o.chat) throw UsageError("--system needs --chat");
  try {
    ops::validate(o.sampling);
  } catch (const base::Error& e) {  // "top_p: wanted .." is the flag --top-p
    std::string why = e.what();
    std::replace(why.begin(), why.begin() + static_cast<std::ptrdiff_t>(std::min(why.find(':'), why.size())), '_', '-');
    throw UsageError("--" + why);
  }
}

struct Prompt {
  std::vector<int32_t> ids, stop_ids;
};

Prompt make_prompt(const Options& o, const Session& session) {
  Prompt p;
  if (o.has_ids) {
    p.ids = parse_ids(read_text(o.ids), "--ids " + o.ids);
    return p;
  }
  const std::string text = o.has_prompt ? o.prompt : read_text(o.prompt_file);
  if (!session.tokenizer)
    throw base::Error(
        base::ErrorCode::kUnsupported,
        fmt::format("{}: the model has no tokenizer (tokenizer.json or tiktoken.model): give --ids", o.engine.model));
  if (!o.chat) {
    p.ids = session.tokenizer->encode(text, true);
    return p;
  }
  const auto chat = model::make_chat_template(session.config, o.engine.model);
  std::vector<model::ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system, {}, {}});
  messages.push_back({"user", text, {}, {}});
  p.ids = chat->encode(*session.tokenizer, messages, "", true);
  for (const std::string& spelling : chat->stop_tokens()) {
    if (const auto id = session.tokenizer->special_id(spelling)) p.stop_ids.push_back(*id);
  }
  return p;
}

// Prints what may be shown: text with a tokenizer, ids without.
class Printer {
 public:
  Printer(const model::Tokenizer* tokenizer, std::vector<std::string> stops, bool quiet)
      : stops_(std::move(stops)), quiet_(quiet) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  }
  void token(int32_t id) {
    if (decoder_)
      emit(stops_.push(decoder_->push(id)));
    else
      emit((text_.empty() ? "" : " ") + std::to_string(id));
  }
  void finish() {
    if (decoder_) emit(stops_.push(decoder_->finish()) + stops_.finish());
    if (!quiet_) std::cout << "\n" << std::flush;
  }
  bool stopped() const { return stops_.stopped(); }
  const std::string& text() const { return text_; }

 private:
  void emit(const std::string& piece) {
    text_ += piece;
    if (!quiet_ && !piece.empty()) std::cout << piece << std::flush;
  }
  std::optional<model::StreamDecoder> decoder_;
  server::StopScanner stops_;
  std::string text_;
  bool quiet_;
};

Json answer_json(const Options& o, const Session& session, const engine::RequestOutput& out, const Printer& printer) {
  Json j = Json::object();
  if (session.tokenizer) j["text"] = printer.text();
  j["finish_reason"] = printer.stopped() ? "stop" : engine::to_string(out.reason);
  j["prompt_tokens"] = out.prompt_tokens;
  j["cached_tokens"] = out.cached_tokens;
  j["output_ids"] = out.output_ids;
  j["output_logprobs"] = shortest(out.output_logprobs);
  j["prefill_ms"] = out.prefill_seconds * 1e3;
  j["decode_ms"] = out.decode_seconds * 1e3;
  j["load_ms"] = session.load_seconds * 1e3;
  j["seed"] = o.sampling.seed;
  j["engine"] = engine_json(*session.engine);
  return j;
}

int run_generate(const Options& o) {
  check_flags(o);
  engine_options(o.engine);  // before anything is read
  Progress progress;
  Session session = open_session(o.engine, progress);
  if (!o.stop.empty() && !session.tokenizer)
    throw base::Error(base::ErrorCode::kUnsupported,
                      fmt::format("{}: the model has no tokenizer, which --stop needs", o.engine.model));
  Prompt prompt = make_prompt(o, session);
  engine::RequestSpec spec;
  spec.ids = std::move(prompt.ids);
  spec.stop_ids = std::move(prompt.stop_ids);
  spec.max_tokens = o.max_tokens;
  spec.sampling = o.sampling;
  spec.ignore_eos = o.ignore_eos;
  spec.output_logprobs = true;
  const auto id = session.engine->submit(std::move(spec));
  if (!id) throw base::Error(base::ErrorCode::kInvalidArgument, id.reason());

  Printer printer(session.tokenizer.get(), o.stop, o.json);
  std::optional<engine::RequestOutput> out;
  while (!out) {
    const bool more = session.engine->step();
    for (const engine::TokenEvent& e : session.engine->take_events()) {
      if (!printer.stopped()) printer.token(e.token);
    }
    if (printer.stopped()) session.engine->cancel(id.value());
    out = session.engine->take_output(id.value());
    KADENCE_CHECK(more || out);
  }
  printer.finish();
  if (out->reason == engine::FinishReason::kError) throw base::Error(base::ErrorCode::kInternal, out->error);
  if (o.json)
    std::cout << answer_json(o, session, *out, printer).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  return kOk;
}

}  // namespace

void add_generate(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand("generate", "Continue one prompt; text streams to standard output");
  auto o = std::make_shared<Options>();
  CLI::Option* prompt =
      sub->add_option("--prompt", o->prompt, "The prompt; spelled-out control tokens become their ids")
          ->group("Prompt");
  CLI::Option* file =
      sub->add_option("--prompt-file", o->prompt_file, "A file with the prompt, - = standard input")->group("Prompt");
  CLI::Option* ids =
      sub->add_option("--ids", o->ids,
                      "A file with token ids: a JSON list, or integers apart by spaces; - = standard input")
          ->group("Prompt");
  sub->add_flag("--chat", o->chat, "Wrap the prompt as a user turn of the model's chat form")->group("Prompt");
  sub->add_option("--system", o->system, "System message, with --chat")->group("Prompt");
  sub->add_option("--max-tokens", o->max_tokens, "Tokens to generate at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--temperature", o->sampling.temperature, "0 = greedy")->capture_default_str()->group("Sampling");
  sub->add_option("--top-k", o->sampling.top_k, "0 = off")->capture_default_str()->group("Sampling");
  sub->add_option("--top-p", o->sampling.top_p, "In (0, 1]")->capture_default_str()->group("Sampling");
  sub->add_option("--min-p", o->sampling.min_p, "In [0, 1]")->capture_default_str()->group("Sampling");
  sub->add_option("--repetition-penalty", o->sampling.repetition_penalty, "Above 0, 1 = off")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--presence-penalty", o->sampling.presence_penalty, "0 = off")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--frequency-penalty", o->sampling.frequency_penalty, "0 = off")
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--seed", o->sampling.seed, "Draws are a function of the seed and the token's index")
      ->check(unsigned_integer())
      ->capture_default_str()
      ->group("Sampling");
  sub->add_option("--stop", o->stop, "Stop before this text; may be given several times")
      ->allow_extra_args(false)
      ->group("Sampling");
  sub->add_flag("--ignore-eos", o->ignore_eos, "Go on after end-of-text tokens")->group("Sampling");
  sub->add_flag("--json", o->json, "One JSON document instead of streamed text");
  add_engine_flags(*sub, &o->engine, FlagSet::kServing);
  sub->callback([=] {
    o->has_prompt = prompt->count() > 0;
    o->has_prompt_file = file->count() > 0;
    o->has_ids = ids->count() > 0;
    *action = [=] { return run_generate(*o); };
  });
}

}  // namespace kadence::apps
