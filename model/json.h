// Private to model/: JSON files with limits, and fields with errors that name the file, the field, wanted and got.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kadence::model {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 32;
};

// Whole file as bytes. Throws Error{kIo}.
std::string read_file(const std::filesystem::path& file, size_t max_bytes);
// Parses `text`; `origin` names it in errors. Refuses nesting beyond the limit and duplicate keys of one object:
// Error{kIo}.
Json parse_json(std::string_view text, const std::string& origin, const JsonLimits& limits = {});
Json read_json(const std::filesystem::path& file, const JsonLimits& limits = {});

// One JSON object whose fields are asked for under any of several spellings. null counts as absent.
class JsonObject {
 public:
  JsonObject(const Json* object, std::string origin) : object_(object), origin_(std::move(origin)) {}
  using Names = std::initializer_list<std::string_view>;

  const Json* find(Names names) const;
  // Integer in [min, max]; without `fallback`, absence is an error. Throws Error{kInvalidArgument}.
  int64_t integer(Names names, int64_t min, int64_t max, const int64_t* fallback = nullptr) const;
  int64_t integer_or(Names names, int64_t min, int64_t max, int64_t fallback) const {
    return integer(names, min, max, &fallback);
  }
  double number_or(Names names, double min, double max, double fallback) const;
  bool boolean_or(Names names, bool fallback) const;
  std::string string_or(Names names, std::string_view fallback) const;
  // A list of integers in [min, max]; empty when absent.
  std::vector<int64_t> integers(Names names, int64_t min, int64_t max, size_t max_count) const;

  const std::string& origin() const { return origin_; }
  [[noreturn]] void fail(std::string_view field, const std::string& wanted, const std::string& got) const;

 private:
  const Json* object_;
  std::string origin_;
};

// A value for an error message, shortened.
std::string brief(const Json& value);

}  // namespace kadence::model
