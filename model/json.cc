#include "model/json.h"

#include <cmath>
#include <fstream>
#include <set>
#include <system_error>

#include "base/error.h"

namespace kadence::model {
namespace {

[[noreturn]] void throw_io(const std::string& message) { base::throw_error(base::ErrorCode::kIo, message); }

std::string first_name(JsonObject::Names names) { return std::string(*names.begin()); }

std::string range_text(int64_t min, int64_t max) {
  return "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]";
}

bool is_integer_in(const Json& v, int64_t min, int64_t max, int64_t* out) {
  if (v.is_number_unsigned()) {
    const uint64_t u = v.get<uint64_t>();
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    *out = static_cast<int64_t>(u);
  } else if (v.is_number_integer()) {
    *out = v.get<int64_t>();
  } else {
    return false;
  }
  return *out >= min && *out <= max;
}

}  // namespace

std::string brief(const Json& value) {
  std::string s = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (s.size() > 60) s = s.substr(0, 57) + "...";
  return s;
}

std::string read_file(const std::filesystem::path& file, size_t max_bytes) {
  std::error_code ec;
  const std::filesystem::file_status status = std::filesystem::status(file, ec);
  if (status.type() == std::filesystem::file_type::not_found) throw_io(file.string() + ": no such file");
  if (ec) throw_io(file.string() + ": " + ec.message());
  if (std::filesystem::is_directory(status)) throw_io(file.string() + ": wanted a file, got a folder");
  if (!std::filesystem::is_regular_file(status))  // a FIFO would be waited for, a device has no size
    throw_io(file.string() + ": wanted a regular file, got a FIFO, socket or device");
  const auto size = std::filesystem::file_size(file, ec);
  if (ec) throw_io(file.string() + ": " + ec.message());
  if (size > max_bytes)
    throw_io(file.string() + ": " + std::to_string(size) + " bytes, more than the limit of " +
             std::to_string(max_bytes));
  std::ifstream in(file, std::ios::binary);
  std::string text(static_cast<size_t>(size), '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) throw_io(file.string() + ": could not be read");
  return text;
}

Json parse_json(std::string_view text, const std::string& origin, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    throw_io(origin + ": JSON of " + std::to_string(text.size()) + " bytes is above the limit");
  std::vector<std::set<std::string>> keys;  // of the objects that are open; arrays get an empty set
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > limits.max_depth) throw_io(origin + ": JSON nested deeper than " + std::to_string(limits.max_depth));
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          throw_io(origin + ": key " + brief(parsed) + " appears twice");
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::exception& e) {
    throw_io(origin + ": not valid JSON: " + e.what());
  }
}

Json read_json(const std::filesystem::path& file, const JsonLimits& limits) {
  return parse_json(read_file(file, limits.max_bytes), file.string(), limits);
}

void JsonObject::fail(std::string_view field, const std::string& wanted, const std::string& got) const {
  base::throw_invalid(origin_ + ": " + std::string(field), wanted, got);
}

const Json* JsonObject::find(Names names) const {
  if (!object_ || !object_->is_object()) return nullptr;
  for (std::string_view n : names) {
    const auto it = object_->find(std::string(n));
    if (it != object_->end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

int64_t JsonObject::integer(Names names, int64_t min, int64_t max, const int64_t* fallback) const {
  const Json* v = find(names);
  if (!v) {
    if (fallback) return *fallback;
    fail(first_name(names), range_text(min, max), "nothing (the field is missing)");
  }
  int64_t i = 0;
  if (!is_integer_in(*v, min, max, &i)) fail(first_name(names), range_text(min, max), brief(*v));
  return i;
}

double JsonObject::number_or(Names names, double min, double max, double fallback) const {
  const Json* v = find(names);
  if (!v) return fallback;
  const double d = v->is_number() ? v->get<double>() : std::nan("");
  if (!(d >= min && d <= max))
    fail(first_name(names), "a number in [" + Json(min).dump() + ", " + Json(max).dump() + "]", brief(*v));
  return d;
}

bool JsonObject::boolean_or(Names names, bool fallback) const {
  const Json* v = find(names);
  if (!v) return fallback;
  if (!v->is_boolean()) fail(first_name(names), "true or false", brief(*v));
  return v->get<bool>();
}

std::string JsonObject::string_or(Names names, std::string_view fallback) const {
  const Json* v = find(names);
  if (!v) return std::string(fallback);
  if (!v->is_string()) fail(first_name(names), "a string", brief(*v));
  return v->get<std::string>();
}

std::vector<int64_t> JsonObject::integers(Names names, int64_t min, int64_t max, size_t max_count) const {
  std::vector<int64_t> out;
  const Json* v = find(names);
  if (!v) return out;
  if (!v->is_array() || v->size() > max_count)
    fail(first_name(names), "a list of at most " + std::to_string(max_count) + " integers", brief(*v));
  for (const Json& e : *v) {
    int64_t i = 0;
    if (!is_integer_in(e, min, max, &i)) fail(first_name(names), "entries that are " + range_text(min, max), brief(e));
    out.push_back(i);
  }
  return out;
}

}  // namespace kadence::model
