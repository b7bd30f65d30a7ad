// One completion or chat request: its choices run in the engine, their tokens become an answer or a stream.
//
// Threads: the engine thread fills the inbox; the HTTP thread pulls a stream; a worker watches for stop strings and
// writes whole answers. The inbox has a lock of its own, held for moves only; text_mutex_ guards what is made of it.
#include <chrono>
#include <utility>

#include "server/openai_format.h"
#include "server/service.h"

namespace kadence::server {
namespace {

class Job final : public StreamSource, public std::enable_shared_from_this<Job> {
 public:
  Job(Service& service, std::shared_ptr<Call> call, ApiRequest request)
      : service_(service),
        call_(std::move(call)),
        request_(std::move(request)),
        format_(request_, service.context(), call_->request.id,
                std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                    .count()),
        unanswered_(request_.choices()),
        unfinished_(request_.choices()),
        choices_(static_cast<size_t>(request_.choices())) {
    if (request_.tools && service_.context().tokenizer != nullptr)
      tool_tokens_ = find_tool_tokens(*service_.context().tokenizer);
  }

  void start();
  bool pull(std::string& out) override;

 private:
  struct Choice {
    // Guarded by inbox_mutex_.
    std::optional<base::RequestId> id;
    bool cancelled = false;
    std::vector<engine::TokenEvent> events;
    std::optional<engine::RequestOutput> output;
    // Guarded by text_mutex_.
    std::optional<ChoiceText> text;
    bool begun = false, ended = false;
  };

  void on_answer(size_t c, const base::Result<base::RequestId>& id);
  void on_token(size_t c, const engine::TokenEvent& event);
  void on_finish(size_t c, engine::RequestOutput output);
  void on_abort(AbortReason reason);
  void cancel(size_t c);
  void cancel_all();
  void watch();
  void answer_whole();
  void write_choice(size_t c, std::vector<engine::TokenEvent> events, std::optional<engine::RequestOutput> output,
                    std::string& out);
  void finish_stream(std::string& out);
  ChoiceText new_text(int64_t first_offset) const;
  std::string echo_text(size_t prompt) const;
  std::string finish_reason(const engine::RequestOutput& output, const ChoiceText& text) const;
  std::optional<ApiError> failure(const engine::RequestOutput& output) const;
  std::vector<ChoiceAnswer::Scored> score_prompt(size_t prompt, const std::vector<float>& logprobs,
                                                 const std::vector<engine::TopLogProbs>& top) const;
  ChoiceAnswer whole_answer(size_t c, const engine::RequestOutput& output, int64_t& tokens) const;
  void note(const Usage& usage);

  Service& service_;
  const std::shared_ptr<Call> call_;
  const ApiRequest request_;
  const Formatter format_;
  std::optional<ToolTokens> tool_tokens_;

  std::mutex inbox_mutex_;
  int32_t unanswered_, unfinished_;
  int32_t refused_ = 0;
  std::string refusal_;
  std::optional<AbortReason> aborted_;
  bool watching_ = false;
  std::vector<Choice> choices_;  // the vector itself is fixed

  std::mutex text_mutex_;
  Usage usage_;
  std::string stream_error_, finish_, first_finish_;
};

void Job::start() {
  // Before anything runs: the end of the job clears it again.
  call_->abort->on_raise([self = shared_from_this()](AbortReason reason) { self->on_abort(reason); });
  for (size_t c = 0; c < choices_.size(); ++c) {
    engine::EngineThread::Listener listener;
    const auto self = shared_from_this();
    if (request_.stream || !request_.stop.empty())
      listener.on_token = [self, c](const engine::TokenEvent& event) { self->on_token(c, event); };
    listener.on_finish = [self, c](engine::RequestOutput output) { self->on_finish(c, std::move(output)); };
    listener.on_answer = [self, c](const base::Result<base::RequestId>& id) { self->on_answer(c, id); };
    service_.engine().submit(request_.spec(static_cast<int32_t>(c)), std::move(listener));
  }
}

void Job::on_answer(size_t c, const base::Result<base::RequestId>& id) {
  bool all = false, refused = false, aborted = false;
  {
    const std::lock_guard lock(inbox_mutex_);
    --unanswered_;
    if (id) {
      choices_[c].id = id.value();
    } else {
      ++refused_;
      --unfinished_;
      if (refusal_.empty()) refusal_ = id.reason();
    }
    all = unanswered_ == 0;
    refused = refused_ > 0;
    aborted = aborted_.has_value();
  }
  if (!id) service_.leave(1);
  if (aborted && id) cancel(c);
  if (!all) return;
  if (!refused) {
    if (!request_.stream) return;
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    return call_->responder->stream(std::move(head), shared_from_this());
  }
  cancel_all();
  const std::string failed = service_.engine().failure();
  ApiError error;
  if (!failed.empty())
    error = server_error(500, "the engine has failed", "engine_failed");
  else if (service_.closed() || refusal_.find("shut") != std::string::npos)
    error = server_error(503, "the server is shutting down", "shutting_down");
  else
    error = server_error(400, refusal_, "invalid_value");
  call_->error_code = error.code;
  service_.answer(call_, format_error(error));
}

void Job::on_token(size_t c, const engine::TokenEvent& event) {
  bool post = false;
  {
    const std::lock_guard lock(inbox_mutex_);
    choices_[c].events.push_back(event);
    post = !request_.stream && !std::exchange(watching_, true);
  }
  if (request_.stream)
    call_->responder->wake();
  else if (post)
    service_.work().post([self = shared_from_this()] { self->watch(); });
}

void Job::on_finish(size_t c, engine::RequestOutput output) {
  service_.leave(1);
  service_.metrics().finished(output);
  bool all = false, refused = false;
  std::optional<AbortReason> aborted;
  {
    const std::lock_guard lock(inbox_mutex_);
    choices_[c].output = std::move(output);
    all = --unfinished_ == 0;
    refused = refused_ > 0;
    aborted = aborted_;
  }
  if (refused) return;  // answered
  if (aborted == AbortReason::kDisconnect) {
    if (all) {
      call_->finish = "disconnect";
      service_.log(*call_, 499);
    }
    return;
  }
  if (request_.stream)
    call_->responder->wake();
  else if (all)
    service_.work().post([self = shared_from_this()] { self->answer_whole(); });
}

void Job::on_abort(AbortReason reason) {
  bool over = false;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!aborted_ || reason == AbortReason::kDisconnect) aborted_ = reason;
    // A whole answer that is being written sees it; a stream is pulled on this very thread, and never again.
    over = request_.stream && unfinished_ == 0 && refused_ == 0 && reason == AbortReason::kDisconnect;
  }
  if (over) {
    call_->finish = "disconnect";
    service_.log(*call_, 499);
  }
  cancel_all();
}

void Job::cancel(size_t c) {
  base::RequestId id;
  {
    const std::lock_guard lock(inbox_mutex_);
    Choice& choice = choices_[c];
    if (!choice.id || choice.output || std::exchange(choice.cancelled, true)) return;
    id = *choice.id;
  }
  service_.engine().cancel(id);
}

void Job::cancel_all() {
  for (size_t c = 0; c < choices_.size(); ++c) cancel(c);
}

ChoiceText Job::new_text(int64_t first_offset) const {
  ChoiceText::Options o;
  o.stop = request_.stop;
  o.tools = tool_tokens_;
  o.keep_entries = request_.logprobs;
  o.first_offset = first_offset;
  return {service_.context().tokenizer, std::move(o)};
}

std::string Job::echo_text(size_t prompt) const {
  const model::Tokenizer* tokenizer = service_.context().tokenizer;
  return request_.echo && tokenizer != nullptr ? tokenizer->decode(request_.prompts[prompt], true) : std::string();
}

std::string Job::finish_reason(const engine::RequestOutput& output, const ChoiceText& text) const {
  if (text.stopped()) return "stop";
  if (output.reason != engine::FinishReason::kStop) return "length";
  return text.called() ? "tool_calls" : "stop";
}

std::optional<ApiError> Job::failure(const engine::RequestOutput& output) const {
  if (output.reason == engine::FinishReason::kError) return server_error(500, output.error, "engine_error");
  if (output.reason == engine::FinishReason::kCancelled) {
    if (aborted_ == AbortReason::kTimeout) return server_error(504, "the request ran out of time", "timeout");
    return server_error(503, "the server is shutting down", "shutting_down");
  }
  return std::nullopt;
}

// A worker looks for stop strings while tokens come.
void Job::watch() {
  const std::lock_guard text_lock(text_mutex_);
  for (size_t c = 0; c < choices_.size(); ++c) {
    std::vector<engine::TokenEvent> events;
    {
      const std::lock_guard lock(inbox_mutex_);
      watching_ = false;
      events.swap(choices_[c].events);
    }
    Choice& choice = choices_[c];
    if (!choice.text) choice.text.emplace(new_text(0));
    for (const auto& event : events) choice.text->push(event.token, event.logprob, {});
    choice.text->take_text();
    choice.text->take_entries();
    if (choice.text->stopped()) cancel(c);
  }
}

std::vector<ChoiceAnswer::Scored> Job::score_prompt(size_t prompt, const std::vector<float>& logprobs,
                                                    const std::vector<engine::TopLogProbs>& top) const {
  const model::Tokenizer* tokenizer = service_.context().tokenizer;
  std::optional<model::StreamDecoder> decoder;
  if (tokenizer != nullptr) decoder.emplace(*tokenizer, true);
  std::vector<ChoiceAnswer::Scored> out;
  int64_t offset = 0;
  const auto& ids = request_.prompts[prompt];
  for (size_t i = 0; i < ids.size(); ++i) {
    ChoiceAnswer::Scored s;
    s.entry.token = ids[i];
    s.entry.offset = offset;
    s.has_logprob = i > 0 && i - 1 < logprobs.size();
    if (s.has_logprob) {
      s.entry.logprob = logprobs[i - 1];
      if (i - 1 < top.size()) s.entry.top = top[i - 1];
    }
    out.push_back(std::move(s));
    if (decoder) offset += characters(decoder->push(ids[i]));
  }
  return out;
}

ChoiceAnswer Job::whole_answer(size_t c, const engine::RequestOutput& output, int64_t& tokens) const {
  ChoiceAnswer answer;
  const auto prompt = static_cast<size_t>(static_cast<int32_t>(c) / request_.n);
  answer.text = echo_text(prompt);
  if (request_.echo && request_.logprobs) answer.scored = score_prompt(prompt, output.logprobs, output.top_logprobs);
  ChoiceText text = new_text(characters(answer.text));
  for (size_t i = 0; i < output.output_ids.size() && !text.stopped(); ++i) {
    text.push(output.output_ids[i], i < output.output_logprobs.size() ? output.output_logprobs[i] : 0,
              i < output.output_top_logprobs.size() ? output.output_top_logprobs[i] : engine::TopLogProbs());
  }
  text.finish();
  answer.text += text.take_text();
  answer.tools = text.take_tools();
  for (auto& entry : text.take_entries()) answer.scored.push_back({std::move(entry), true});
  answer.finish_reason = finish_reason(output, text);
  tokens = text.tokens();
  return answer;
}

void Job::note(const Usage& usage) {
  call_->prompt_tokens = usage.prompt;
  call_->cached_tokens = usage.cached;
  call_->output_tokens = usage.completion;
}

void Job::answer_whole() {
  const std::lock_guard text_lock(text_mutex_);
  Usage usage;
  std::vector<ChoiceAnswer> answers;
  std::optional<ApiError> error;
  for (size_t c = 0; c < choices_.size(); ++c) {
    const engine::RequestOutput& output = *choices_[c].output;  // nobody writes it any more
    int64_t tokens = 0;
    answers.push_back(whole_answer(c, output, tokens));
    usage.completion += tokens;
    if (c % static_cast<size_t>(request_.n) == 0) {
      usage.prompt += output.prompt_tokens;
      usage.cached += output.cached_tokens;
    }
    if (c == 0) {
      call_->queue_seconds = output.queue_seconds;
      call_->first_token_seconds = output.first_token_seconds;
    }
    // Cancelled by us, because a stop string was there, is no failure.
    const bool stopped = choices_[c].text && choices_[c].text->stopped();
    if (!stopped && !error) {
      const std::lock_guard lock(inbox_mutex_);
      error = failure(output);
    }
  }
  note(usage);
  if (error) {
    call_->error_code = error->code;
    return service_.answer(call_, format_error(*error));
  }
  {
    const std::lock_guard lock(inbox_mutex_);
    if (aborted_ == AbortReason::kDisconnect) {
      call_->finish = "disconnect";
      return service_.log(*call_, 499);
    }
  }
  call_->finish = answers[0].finish_reason;
  HttpResponse response;
  response.body = format_.answer(answers, usage);
  service_.answer(call_, std::move(response));
}

// --- streams

bool Job::pull(std::string& out) {
  const std::lock_guard text_lock(text_mutex_);
  bool all = true;
  for (size_t c = 0; c < choices_.size(); ++c) {
    if (choices_[c].ended) continue;
    std::vector<engine::TokenEvent> events;
    std::optional<engine::RequestOutput> output;
    {
      const std::lock_guard lock(inbox_mutex_);
      events.swap(choices_[c].events);
      output = std::exchange(choices_[c].output, std::nullopt);
      if (output) choices_[c].id.reset();
    }
    write_choice(c, std::move(events), std::move(output), out);
    all &= choices_[c].ended;
  }
  if (all) finish_stream(out);
  return all;
}

void Job::write_choice(size_t c, std::vector<engine::TokenEvent> events, std::optional<engine::RequestOutput> output,
                       std::string& out) {
  Choice& choice = choices_[c];
  const auto index = static_cast<int32_t>(c);
  if (!choice.begun) {
    std::vector<ChoiceAnswer::Scored> scored;
    const size_t prompt = c / static_cast<size_t>(request_.n);
    if (request_.echo && request_.logprobs) {  // the prompt and its log-probs come with the first token
      if (!events.empty() && events.front().scores)
        scored = score_prompt(prompt, events.front().scores->logprobs, events.front().scores->top_logprobs);
      else if (output)
        scored = score_prompt(prompt, output->logprobs, output->top_logprobs);
      else
        return;
    }
    choice.begun = true;
    const std::string echo = echo_text(prompt);
    choice.text.emplace(new_text(characters(echo)));
    if (request_.kind == ApiKind::kChat) out += format_.role_chunk(index);
    if (!echo.empty() || !scored.empty()) out += format_.chunk(index, echo, {}, scored, {});
  }
  ChoiceText& text = *choice.text;
  const auto emit = [&](std::string_view reason) {
    std::vector<ChoiceAnswer::Scored> scored;
    for (auto& entry : text.take_entries()) scored.push_back({std::move(entry), true});
    const std::string visible = text.take_text();
    const auto tools = text.take_tools();
    if (!visible.empty() || !tools.empty() || !scored.empty() || !reason.empty())
      out += format_.chunk(index, visible, tools, scored, reason);
  };
  for (const auto& event : events) {
    text.push(event.token, event.logprob, event.top);
    emit({});  // one event a token, as clients expect, even when several came together
  }
  if (text.stopped()) cancel(c);
  if (!output) return;
  choice.ended = true;
  usage_.completion += text.tokens();
  if (c % static_cast<size_t>(request_.n) == 0) {
    usage_.prompt += output->prompt_tokens;
    usage_.cached += output->cached_tokens;
  }
  if (c == 0) {
    call_->queue_seconds = output->queue_seconds;
    call_->first_token_seconds = output->first_token_seconds;
  }
  std::optional<ApiError> error;
  if (!text.stopped()) {
    const std::lock_guard lock(inbox_mutex_);
    error = failure(*output);
  }
  text.finish();
  if (error) {
    emit({});
    if (stream_error_.empty()) {
      stream_error_ = error_json(*error);
      call_->error_code = error->code;
    }
    return;
  }
  const std::string reason = finish_reason(*output, text);
  if (finish_.empty()) finish_ = reason;
  emit(reason);
}

void Job::finish_stream(std::string& out) {
  note(usage_);
  call_->finish = stream_error_.empty() ? finish_ : "error";
  if (!stream_error_.empty()) {
    out += sse_event(stream_error_);
  } else {
    if (request_.include_usage) out += format_.usage_chunk(usage_);
    out += kSseDone;
  }
  service_.log(*call_, 200);
}

}  // namespace

void start_job(Service& service, std::shared_ptr<Call> call, ApiRequest request) {
  const int choices = request.choices();
  if (!service.admit(choices)) {
    call->error_code = "queue_full";
    return service.answer(
        call, format_error(server_error(429, "too many requests are under way, try again later", "queue_full")));
  }
  std::make_shared<Job>(service, std::move(call), std::move(request))->start();
}

}  // namespace kadence::server
