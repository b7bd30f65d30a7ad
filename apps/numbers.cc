#include "apps/numbers.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "apps/cli.h"
#include "base/error.h"

namespace kadence::apps {

int64_t parse_bytes(const std::string& flag, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static constexpr struct {
    const char* name;
    double factor;
  } kUnits[] = {
      {"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0},
      {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},   {"TB", 1e12}};
  for (const auto& u : kUnits) {
    if (error == std::errc{} && unit == u.name && value > 0 && value * u.factor < 9e18 && value * u.factor >= 1)
      return static_cast<int64_t>(value * u.factor);
  }
  throw UsageError(fmt::format("{}: wanted a positive size such as 80GiB, 512MiB or 4096, got '{}'", flag, text));
}

double shortest(float value) {
  if (!std::isfinite(value)) return value;
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  double d = 0;
  std::from_chars(buffer, end, d);
  return d;
}

Json shortest(std::span<const float> values) {
  Json out = Json::array();
  for (const float v : values) out.push_back(shortest(v));
  return out;
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& origin) {
  std::string flat(text);
  const size_t first = flat.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && flat[first] == '[') {
    const size_t last = flat.find_last_not_of(" \t\r\n");
    if (flat[last] != ']' || last == first)
      throw base::Error(base::ErrorCode::kIo, origin + ": the list of ids has no closing ]");
    flat = flat.substr(first + 1, last - first - 1);
  }
  std::vector<int32_t> ids;
  const char *p = flat.data(), *end = p + flat.size();
  while (true) {
    while (p != end && std::strchr(" \t\r\n,", *p)) ++p;
    if (p == end) return ids;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    if (error != std::errc{} || (next != end && !std::strchr(" \t\r\n,", *next))) {
      const char* stop = p;
      while (stop != end && stop - p < 24 && !std::strchr(" \t\r\n,", *stop)) ++stop;
      throw base::Error(base::ErrorCode::kIo,
                        fmt::format("{}: id {}: wanted an integer below 2^31, got '{}'", origin, ids.size(),
                                    std::string_view(p, static_cast<size_t>(stop - p))));
    }
    ids.push_back(id);
    p = next;
  }
}

std::vector<int64_t> parse_list(const std::string& flag, std::string_view text) {
  std::vector<int64_t> out;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc{} || end != item.data() + item.size() || value <= 0)
      throw UsageError(fmt::format("{}: wanted positive integers apart by commas, got '{}'", flag, item));
    out.push_back(value);
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

void require_stdin(const std::string& who) {
  const int flags = fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY)
    throw base::Error(base::ErrorCode::kIo,
                      fmt::format("{}: standard input cannot be read ({})", who,
                                  flags < 0 ? std::strerror(errno) : "it is open for writing only"));
}

std::string read_text(const std::string& path) {
  if (path == "-") {
    require_stdin("-");
    std::string text(std::istreambuf_iterator<char>(std::cin), {});
    if (std::cin.bad() || std::ferror(stdin))
      throw base::Error(base::ErrorCode::kIo, fmt::format("standard input: reading stopped: {}", std::strerror(errno)));
    return text;
  }
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    throw base::Error(base::ErrorCode::kIo, fmt::format("{}: wanted a file, got a folder", path));
  if (in) text.assign(std::istreambuf_iterator<char>(in), {});
  if (!in || in.bad())
    throw base::Error(base::ErrorCode::kIo, fmt::format("{}: cannot be read ({})", path, std::strerror(errno)));
  return text;
}

}  // namespace kadence::apps
