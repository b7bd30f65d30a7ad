#include "base/log.h"

#include <mutex>
#include <utility>

namespace kadence::base {
namespace {
std::mutex g_mutex;
LogSink g_sink;
}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_sink = std::move(sink);
}

void log(LogLevel level, const std::string& message) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_sink) g_sink(level, message);
}

}  // namespace kadence::base
