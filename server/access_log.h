// Lines to a file descriptor from a thread of its own: a full disk or a reader that sleeps costs lines, which are
// counted, and never a request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace kadence::server {

class AccessLog {
 public:
  // Appends to `path`; empty = standard error, "-" = nowhere. Throws Error{kIo} when the file cannot be opened.
  explicit AccessLog(const std::string& path);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void line(std::string text);  // without its newline
  int64_t dropped() const { return dropped_; }

 private:
  void run();

  int fd_ = -1;
  bool owned_ = false;
  std::atomic<int64_t> dropped_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> lines_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kadence::server
