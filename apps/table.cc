#include "apps/table.h"

#include <fmt/core.h>

#include <cmath>

#include "base/error.h"

namespace kadence::apps {
namespace {

// Columns on a terminal: code points, not bytes (titles and notes may hold a few non-ASCII letters).
size_t width_of(const std::string& s) {
  size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

bool is_right_aligned(Format f) { return f != Format::kText && f != Format::kYesNo && f != Format::kMark; }

}  // namespace

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t u = 0;
  while (std::fabs(bytes) >= 1024 && u + 1 < std::size(kUnits)) bytes /= 1024, ++u;
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[u]);
}

std::string format_seconds(double s) {
  if (s == 0) return "0 s";
  if (std::fabs(s) < 1e-3) return fmt::format("{:.3g} us", s * 1e6);
  if (std::fabs(s) < 1) return fmt::format("{:.3g} ms", s * 1e3);
  return fmt::format("{:.3g} s", s);
}

std::string format_value(const Json& v, Format format) {
  if (v.is_null()) return "";
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v.get<bool>() ? "yes" : format == Format::kMark ? "" : "NO";
  if (!v.is_number()) return v.dump(-1, ' ', false, Json::error_handler_t::replace);
  switch (format) {
    case Format::kInteger:
      return with_commas(v.get<int64_t>());
    case Format::kBytes:
      return format_bytes(v.get<double>());
    case Format::kSeconds:
      return format_seconds(v.get<double>());
    case Format::kNumber:
      return fmt::format("{:.3g}", v.get<double>());
    default:
      return v.dump();
  }
}

void Table::add(std::vector<Json> values) {
  KADENCE_CHECK(values.size() == columns_.size());
  rows_.push_back(std::move(values));
}

std::string Table::text() const {
  std::vector<std::vector<std::string>> cells;
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    auto& line = cells.emplace_back();
    for (size_t c = 0; c < columns_.size(); ++c) {
      line.push_back(format_value(row[c], columns_[c].format));
      widths[c] = std::max(widths[c], width_of(line.back()));
    }
  }
  std::string out;
  if (!title_.empty()) out += title_ + "\n";
  auto put_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (widths[c] == 0) continue;
      const std::string& cell = cell_of(c);
      const std::string pad(std::max(widths[c], width_of(columns_[c].title)) - width_of(cell), ' ');
      line += "  ";
      line += is_right_aligned(columns_[c].format) ? pad + cell : cell + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  put_line([&](size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& line : cells) put_line([&](size_t c) -> const std::string& { return line[c]; });
  return out;
}

Json Table::json() const {
  Json out = Json::array();
  for (const auto& row : rows_) {
    Json object = Json::object();
    for (size_t c = 0; c < columns_.size(); ++c) object[columns_[c].key] = row[c];
    out.push_back(std::move(object));
  }
  return out;
}

}  // namespace kadence::apps
