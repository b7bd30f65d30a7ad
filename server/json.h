// JSON values of the API: objects keep the order of their keys.
#pragma once

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kadence::server {

using Json = nlohmann::ordered_json;

// One line; bytes that are no UTF-8 become U+FFFD.
inline std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The double whose shortest text is the float's shortest text: equal floats print equal, everywhere.
inline double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double d = value;
  std::from_chars(text, end, d);
  return d;
}

}  // namespace kadence::server
