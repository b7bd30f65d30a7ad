#include "server/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kadence::server {
namespace {

constexpr size_t kMostLines = 8192;

bool write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

AccessLog::AccessLog(const std::string& path) {
  if (path == "-") return;
  if (path.empty()) {
    fd_ = STDERR_FILENO;
  } else {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    owned_ = true;
    if (fd_ < 0) base::throw_error(base::ErrorCode::kIo, path + ": cannot be opened (" + std::strerror(errno) + ")");
  }
  thread_ = std::thread([this] { run(); });
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (owned_ && fd_ >= 0) ::close(fd_);
}

void AccessLog::line(std::string text) {
  if (fd_ < 0) return;
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMostLines) {
      ++dropped_;
      return;
    }
    text += '\n';
    lines_.push_back(std::move(text));
  }
  wake_.notify_one();
}

void AccessLog::run() {
  while (true) {
    std::deque<std::string> lines;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !lines_.empty(); });
      if (lines_.empty()) return;
      lines.swap(lines_);
    }
    for (const std::string& text : lines)
      if (!write_all(fd_, text)) ++dropped_;
  }
}

}  // namespace kadence::server
