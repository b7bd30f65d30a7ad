// Result<T>: a value, or the reason why an expected operation did not happen (pool full, cancelled).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace kadence::base {

template <class T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose, `return value;`
  static Result failure(std::string reason) {
    Result r;
    r.reason_ = std::move(reason);
    return r;
  }
  explicit operator bool() const { return value_.has_value(); }
  bool ok() const { return value_.has_value(); }
  T& value() {
    KADENCE_CHECK(value_.has_value());
    return *value_;
  }
  const T& value() const {
    KADENCE_CHECK(value_.has_value());
    return *value_;
  }
  const std::string& reason() const { return reason_; }

 private:
  Result() = default;
  std::optional<T> value_;
  std::string reason_;
};

}  // namespace kadence::base
