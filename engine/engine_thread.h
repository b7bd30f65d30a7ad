// One thread that owns an engine. Everybody else talks to it in values: calls are queued and run between two steps,
// tokens and outputs come back through a request's listener, on the engine thread. No pointer into the engine ever
// leaves it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "engine/engine.h"

namespace kadence::engine {

class EngineThread {
 public:
  // Both run on the engine thread and must be short: hand the value on. An exception that one throws ends its request.
  struct Listener {
    std::function<void(const TokenEvent&)> on_token;  // may be empty
    std::function<void(RequestOutput)> on_finish;     // exactly once for an accepted request; may be empty
    // Exactly once, before the others: what submit() resolves to. May be empty. On the calling thread when the engine
    // thread takes no calls any more.
    std::function<void(const base::Result<RequestId>&)> on_answer = {};
  };

  explicit EngineThread(std::unique_ptr<Engine> engine);
  // shutdown() with no time to finish.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread may call these. After shutdown() or when the engine has failed, submit() resolves to a failure that says
  // so; the others resolve to false and empty values.
  std::future<base::Result<RequestId>> submit(RequestSpec spec, Listener listener);
  std::future<bool> cancel(RequestId id);
  std::future<Engine::FlushResult> flush_cache();
  std::future<EngineStats> stats();
  std::future<int64_t> predict_cached_tokens(RequestSpec spec);

  // Runs `work` on the engine thread between two steps; false, and it never runs, when the thread takes none any more.
  // It must be short, hand its findings on as values and keep no reference.
  bool call(std::function<void(Engine&)> work);
  // The statistics after the last step; never waits for one.
  EngineStats last_stats() const;

  // Takes no new requests, gives the running ones `grace` to finish, cancels the rest and ends the thread. Their
  // listeners have all been called when it returns. Pending replays are dropped. May be called again.
  void shutdown(std::chrono::duration<double> grace);

  // Why the engine cannot go on: the message of an exception that left a step; empty while all is well.
  std::string failure() const;

 private:
  using Call = std::function<void()>;
  void run();
  void deliver();
  void fail(const std::string& reason);
  // Queues `call`; false (and nothing queued) when the thread takes none any more.
  bool post(Call call);
  template <class T, class F>
  std::future<T> ask(F work, T otherwise);

  std::unique_ptr<Engine> engine_;           // engine thread only
  std::map<RequestId, Listener> listeners_;  // engine thread only
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Call> calls_;                  // guarded by mutex_
  bool stopping_ = false, closed_ = false;  // guarded by mutex_: no new requests; no calls at all
  std::chrono::steady_clock::time_point deadline_;
  std::string failure_;  // guarded by mutex_
  EngineStats stats_;    // guarded by mutex_
  std::thread thread_;
};

}  // namespace kadence::engine
