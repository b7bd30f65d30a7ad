#include "engine/engine_thread.h"

#include <exception>
#include <utility>

namespace kadence::engine {

namespace {

std::string message_of(const std::exception& e) { return *e.what() ? e.what() : "unknown error"; }

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine) : engine_(std::move(engine)), stats_(engine_->stats()) {
  thread_ = std::thread([this] { run(); });
}

EngineThread::~EngineThread() { shutdown(std::chrono::duration<double>(0)); }

bool EngineThread::post(Call call) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    calls_.push_back(std::move(call));
  }
  wake_.notify_one();
  return true;
}

template <class T, class F>
std::future<T> EngineThread::ask(F work, T otherwise) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> future = promise->get_future();
  const bool queued = post([this, promise, work = std::move(work), otherwise]() mutable {
    try {
      promise->set_value(failure().empty() ? work(*engine_) : otherwise);
    } catch (const std::exception& e) {
      promise->set_value(std::move(otherwise));
      fail(message_of(e));
    }
  });
  if (!queued) promise->set_value(std::move(otherwise));
  return future;
}

std::future<base::Result<RequestId>> EngineThread::submit(RequestSpec spec, Listener listener) {
  using Answer = base::Result<RequestId>;
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> future = promise->get_future();
  const auto answered = listener.on_answer;
  const auto answer = [promise, answered](Answer a) {
    if (answered) answered(a);
    promise->set_value(std::move(a));
  };
  const bool queued = post([this, answer, spec = std::move(spec), listener = std::move(listener)]() mutable {
    std::string closed;
    {
      const std::lock_guard lock(mutex_);
      closed = !failure_.empty() ? "the engine has failed: " + failure_
               : stopping_       ? "the engine is shutting down"
                                 : "";
    }
    if (!closed.empty()) return answer(Answer::failure(closed));
    std::optional<Answer> taken;
    try {
      taken = engine_->submit(std::move(spec));
      if (*taken) listeners_.emplace(taken->value(), std::move(listener));
    } catch (const std::exception& e) {
      taken = Answer::failure(message_of(e));
    }
    answer(std::move(*taken));
  });
  if (!queued) answer(Answer::failure("the engine has shut down"));
  return future;
}

std::future<bool> EngineThread::cancel(RequestId id) {
  return ask<bool>([id](Engine& e) { return e.cancel(id); }, false);
}
std::future<Engine::FlushResult> EngineThread::flush_cache() {
  return ask<Engine::FlushResult>([](Engine& e) { return e.flush_cache(); }, {});
}
std::future<EngineStats> EngineThread::stats() {
  return ask<EngineStats>([](Engine& e) { return e.stats(); }, {});
}
std::future<int64_t> EngineThread::predict_cached_tokens(RequestSpec spec) {
  return ask<int64_t>([spec = std::move(spec)](Engine& e) { return e.predict_cached_tokens(spec); }, 0);
}

bool EngineThread::call(std::function<void(Engine&)> work) {
  return post([this, work = std::move(work)] {
    try {
      work(*engine_);
    } catch (const std::exception& e) {
      fail(message_of(e));
    }
  });
}

EngineStats EngineThread::last_stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineThread::shutdown(std::chrono::duration<double> grace) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      deadline_ =
          std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(grace);
    }
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void EngineThread::run() {
  bool busy = false;
  while (true) {
    std::deque<Call> calls;
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return busy || stopping_ || !calls_.empty(); });
      calls.swap(calls_);
      stopping = stopping_;
      const bool late = std::chrono::steady_clock::now() >= deadline_;
      if (stopping && calls.empty() && (listeners_.empty() || late)) {
        closed_ = true;
        break;
      }
    }
    for (Call& call : calls) call();
    try {
      busy = failure().empty() && engine_->step();
    } catch (const std::exception& e) {
      fail(message_of(e));
      busy = false;
    }
    deliver();
    const EngineStats now = engine_->stats();
    const std::lock_guard lock(mutex_);
    stats_ = now;
  }
  // Whoever is left did not finish in time.
  while (!listeners_.empty()) {
    const auto it = listeners_.begin();
    try {
      if (!engine_->cancel(it->first)) {
        listeners_.erase(it);
        continue;
      }
    } catch (const std::exception& e) {
      fail(message_of(e));
    }
    deliver();
  }
}

void EngineThread::deliver() {
  for (const TokenEvent& event : engine_->take_events()) {
    const auto it = listeners_.find(event.request);
    if (it == listeners_.end() || !it->second.on_token) continue;
    try {
      it->second.on_token(event);
    } catch (const std::exception&) {
      engine_->cancel(event.request);
    }
  }
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    std::optional<RequestOutput> output = engine_->take_output(it->first);
    if (!output) {
      ++it;
      continue;
    }
    const Listener listener = std::move(it->second);
    it = listeners_.erase(it);
    try {
      if (listener.on_finish) listener.on_finish(std::move(*output));
    } catch (const std::exception&) {  // it has been told; nothing is left to end
    }
  }
}

// After this the engine is not touched by a step again; every request gets its error.
void EngineThread::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
  }
  try {
    engine_->abort_all(reason);
    deliver();
  } catch (const std::exception&) {
    // The engine cannot even free what requests hold; answer without it.
  }
  for (auto& [id, listener] : std::exchange(listeners_, {})) {
    RequestOutput output;
    output.reason = FinishReason::kError;
    output.error = reason;
    try {
      if (listener.on_finish) listener.on_finish(std::move(output));
    } catch (const std::exception&) {
    }
  }
}

}  // namespace kadence::engine
