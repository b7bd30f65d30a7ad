#include "apps/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace kadence::apps {

Progress::Progress() : enabled_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& what, double done) {
  if (!enabled_) return;
  std::string line = "\r\033[K";
  if (done >= 0) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kWidth);
    line += "[" + std::string(static_cast<size_t>(filled), '#') +
            std::string(static_cast<size_t>(kWidth - filled), '.') + "] ";
  }
  line += what;
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace kadence::apps
