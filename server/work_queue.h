// A few threads for what is too long for the HTTP thread: reading bodies, encoding prompts, writing long answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kadence::server {

class WorkQueue {
 public:
  WorkQueue(int threads, size_t limit) : limit_(limit) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~WorkQueue() { stop(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False, and nothing is queued, when `limit` items wait already or after stop().
  bool try_post(std::function<void()> work) { return push(std::move(work), limit_); }
  // For what was taken on before: never refused for length. Dropped after stop().
  void post(std::function<void()> work) { push(std::move(work), SIZE_MAX); }
  // Runs what is queued, then ends the threads.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_)
      if (t.joinable()) t.join();
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return work_.size();
  }

 private:
  bool push(std::function<void()> work, size_t limit) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ || work_.size() >= limit) return false;
      work_.push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
  }
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || !work_.empty(); });
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kadence::server
