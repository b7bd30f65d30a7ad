// Tables for people that are lists of objects for machines: one source for both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kadence::apps {

using Json = nlohmann::ordered_json;

// How a column's values look to people. JSON has the values themselves.
enum class Format {
  kText,
  kInteger,  // 71,936
  kBytes,    // 1.5 MiB
  kNumber,   // three significant digits
  kSeconds,  // 12.3 s, 4.56 ms
  kYesNo,    // yes | NO
  kMark,     // yes | nothing
};

struct Column {
  std::string key;    // in JSON
  std::string title;  // for people
  Format format = Format::kText;
};

std::string format_value(const Json& value, Format format);
std::string format_bytes(double bytes);
std::string format_seconds(double seconds);
std::string with_commas(int64_t value);

class Table {
 public:
  Table(std::string title, std::vector<Column> columns) : title_(std::move(title)), columns_(std::move(columns)) {}
  // One value a column, in order; null = nothing to say. Throws Error{kInternal} on a wrong count.
  void add(std::vector<Json> values);
  // Aligned text with a header line; numbers to the right. Empty columns are left out.
  std::string text() const;
  // [{key: value, ..}, ..]
  Json json() const;
  const std::string& title() const { return title_; }
  bool empty() const { return rows_.empty(); }

 private:
  std::string title_;
  std::vector<Column> columns_;
  std::vector<std::vector<Json>> rows_;
};

}  // namespace kadence::apps
