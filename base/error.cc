#include "base/error.h"

namespace kadence::base {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfRange:
      return "out of range";
    case ErrorCode::kIo:
      return "i/o";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void throw_invalid(std::string_view what, std::string_view wanted, std::string_view got) {
  std::string m(what);
  m.append(": wanted ").append(wanted).append(", got ").append(got);
  throw Error(ErrorCode::kInvalidArgument, m);
}

void throw_error(ErrorCode code, const std::string& message) { throw Error(code, message); }

}  // namespace kadence::base
