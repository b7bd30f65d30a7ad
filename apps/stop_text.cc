#include "apps/stop_text.h"

#include <algorithm>
#include <utility>

namespace kadence::apps {

std::string StopText::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t cut = std::string::npos;
  for (const std::string& s : stops_) {
    if (!s.empty()) cut = std::min(cut, held_.find(s));
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, cut);
    held_.clear();
    return out;
  }
  // The longest tail that some stop string begins with stays.
  size_t keep = 0;
  for (const std::string& s : stops_) {
    for (size_t n = std::min(held_.size(), s.empty() ? 0 : s.size() - 1); n > keep; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(s).substr(0, n)) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopText::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace kadence::apps
