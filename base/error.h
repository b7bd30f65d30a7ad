// Errors. Bad arguments and broken files throw Error; expected outcomes (pool full, cancelled) are return values.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace kadence::base {

enum class ErrorCode {
  kInvalidArgument,  // the caller passed something that can never work
  kUnsupported,      // well-formed, but nothing here implements it; the message lists what was asked and what exists
  kOutOfRange,       // a size or id beyond a stated bound
  kIo,               // a file could not be read or is malformed
  kDevice,           // a CUDA call or launch failed
  kInternal,         // a broken invariant of ours
};

const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error{kInvalidArgument}: "<what>: wanted <wanted>, got <got>".
[[noreturn]] void throw_invalid(std::string_view what, std::string_view wanted, std::string_view got);
// Throws Error with `code` and `message`.
[[noreturn]] void throw_error(ErrorCode code, const std::string& message);

}  // namespace kadence::base

// Invariants of ours. KADENCE_CHECK is always on; KADENCE_DCHECK only with KADENCE_DEBUG_CHECKS.
#define KADENCE_CHECK(cond)                                                                            \
  do {                                                                                                 \
    if (!(cond))                                                                                       \
      ::kadence::base::throw_error(                                                                    \
          ::kadence::base::ErrorCode::kInternal,                                                       \
          std::string("invariant broken: " #cond " at ") + __FILE__ + ":" + std::to_string(__LINE__)); \
  } while (0)
#ifdef KADENCE_DEBUG_CHECKS
#define KADENCE_DCHECK(cond) KADENCE_CHECK(cond)
#else
#define KADENCE_DCHECK(cond) \
  do {                       \
  } while (0)
#endif
