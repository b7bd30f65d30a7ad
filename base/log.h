// Where the library's messages go. The library itself never prints: an application installs a sink.
#pragma once

#include <functional>
#include <string>

namespace kadence::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogSink = std::function<void(LogLevel, const std::string&)>;

// Installs the process-wide sink; an empty function (the default) drops messages. Thread-safe.
void set_log_sink(LogSink sink);
void log(LogLevel level, const std::string& message);

}  // namespace kadence::base
