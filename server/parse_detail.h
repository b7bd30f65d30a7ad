// What the readers of completions and chats share; nobody else includes it.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "server/api.h"
#include "server/json.h"

namespace kadence::server::detail {

inline constexpr int32_t kMaxTopLogprobs = 20;

// Throws ApiError.
[[noreturn]] void refuse(std::string message, std::string param = {}, std::string code = {}, int status = 400);
[[noreturn]] void wrong(const std::string& field, const std::string& wanted, const Json& got);

// Typed reading of one object's fields; null counts as absent.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  const Json* get(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::string path(const char* name) const { return prefix_ + name; }

  int64_t integer(const char* name, int64_t otherwise, int64_t min, int64_t max) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    const std::string wanted = "an integer from " + std::to_string(min) + " to " + std::to_string(max);
    if (!v->is_number_integer()) wrong(path(name), wanted, *v);
    if (v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      wrong(path(name), wanted, *v);
    const auto i = v->get<int64_t>();
    if (i < min || i > max) wrong(path(name), wanted, *v);
    return i;
  }
  float number(const char* name, float otherwise, double min, double max, const char* wanted) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    if (!v->is_number()) wrong(path(name), wanted, *v);
    const auto d = v->get<double>();
    if (!(d >= min && d <= max)) wrong(path(name), wanted, *v);
    return static_cast<float>(d);
  }
  bool boolean(const char* name, bool otherwise) const {
    const Json* v = get(name);
    if (v == nullptr) return otherwise;
    if (!v->is_boolean()) wrong(path(name), "true or false", *v);
    return v->get<bool>();
  }
  std::optional<std::string> text(const char* name) const {
    const Json* v = get(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_string()) wrong(path(name), "a string", *v);
    return v->get<std::string>();
  }
  const Json* list(const char* name) const {
    const Json* v = get(name);
    if (v != nullptr && !v->is_array()) wrong(path(name), "a list", *v);
    return v;
  }
  const Json* object(const char* name) const {
    const Json* v = get(name);
    if (v != nullptr && !v->is_object()) wrong(path(name), "an object", *v);
    return v;
  }

  // Known fields that are not served: absent, null and their neutral value pass.
  void unserved(const char* name, const Json& neutral = nullptr) const {
    const Json* v = get(name);
    if (v == nullptr || (!neutral.is_null() && *v == neutral)) return;
    refuse(path(name) + " is not supported by this server", path(name), "unsupported_parameter");
  }

 private:
  const Json& object_;
  std::string prefix_;
};
// A body as an object; bounded in depth and size before a tree is built.
Json parse_object(std::string_view body);
std::vector<int32_t> token_ids(const Json& list, const std::string& field, const ApiContext& context);
const model::Tokenizer& need_tokenizer(const ApiContext& context, const std::string& field);
[[noreturn]] void refuse_long(const std::string& field, const std::string& what, const ApiContext& context);
void check_length(const std::vector<int32_t>& ids, int32_t max_tokens, const std::string& field,
                  const ApiContext& context);
// Model, sampling, stops, cache, stream; refuses what is known and not served.
void parse_common(const Fields& f, const ApiContext& context, ApiRequest& r);

// "messages" and "tools" as the prompt's tokens.
std::vector<int32_t> parse_transcript(const Fields& f, bool generation, const ApiContext& context);

// What `work` returns or throws.
template <class T, class F>
std::variant<T, ApiError> guarded(F work) {
  try {
    return work();
  } catch (const ApiError& e) {
    return e;
  } catch (const base::Error& e) {
    ApiError error;
    error.message = e.what();
    return error;
  } catch (const std::bad_alloc&) {
    ApiError error;
    error.status = 503;
    error.type = "server_error";
    error.message = "out of memory";
    return error;
  } catch (const std::exception&) {
    ApiError error;
    error.status = 500;
    error.type = "server_error";
    error.message = "internal error";
    return error;
  }
}
}  // namespace kadence::server::detail
