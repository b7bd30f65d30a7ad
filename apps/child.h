// This binary again, as a child: for what is fixed once a process, like oneDNN's instruction set.
#pragma once

#include <string>
#include <vector>

namespace kadence::apps {

struct ChildResult {
  int status = 0;      // exit status; 128 + n for signal n
  std::string output;  // its standard output; its standard error is ours
};
// Throws base::Error when it cannot be started.
ChildResult run_self(const std::vector<std::string>& arguments);

}  // namespace kadence::apps
