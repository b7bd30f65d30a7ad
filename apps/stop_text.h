// Stop strings over streamed text: holds back what may be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kadence::apps {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // Text that may be shown now. After a stop string was seen, stopped() is true and nothing more comes out; the stop
  // string itself is never shown. Of several in one piece the earliest counts, then the longest.
  std::string push(std::string_view piece);
  // What was held back, when the text ends without a stop string.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kadence::apps
