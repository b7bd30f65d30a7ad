// One line on stderr that says what is being done, only if stderr is a terminal.
#pragma once

#include <string>

namespace kadence::apps {

class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows `what`; `done` in [0, 1] draws a bar, a negative value none.
  void show(const std::string& what, double done = -1);
  void clear();
  bool enabled() const { return enabled_; }

 private:
  bool enabled_ = false, shown_ = false;
};

}  // namespace kadence::apps
