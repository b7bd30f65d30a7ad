#include "model/pretokenizer.h"

#include <unicode/normalizer2.h>
#include <unicode/unistr.h>
#include <unicode/uregex.h>

#include <algorithm>

#include "base/error.h"
#include "model/utf8.h"

namespace kadence::model {
namespace {

constexpr int32_t kMaxPatternBytes = 1 << 16;
constexpr int32_t kRegexStackBytes = 64 << 20;
// ICU's unit: 10,000 steps of its matcher, about a millisecond.
constexpr size_t kLeastSteps = 1000, kBytesPerStep = 100;

std::string translate(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    if (c == 's')
      out += "\\p{White_Space}";
    else if (c == 'S')
      out += "\\P{White_Space}";
    else
      (out += '\\') += c;
  }
  return out;
}

}  // namespace

struct SplitRegex::Impl {
  std::string pattern, origin;
  URegularExpression* compiled = nullptr;
  ~Impl() {
    if (compiled) uregex_close(compiled);
  }
};

SplitRegex::SplitRegex(const std::string& pattern, std::string origin) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  impl_->origin = std::move(origin);
  const auto fail = [&](const std::string& why) {
    base::throw_error(base::ErrorCode::kIo, impl_->origin + ": pattern " + pattern.substr(0, 200) + ": " + why);
  };
  if (pattern.empty() || pattern.size() > kMaxPatternBytes)
    fail("empty or longer than " + std::to_string(kMaxPatternBytes) + " bytes");
  const icu::UnicodeString u = icu::UnicodeString::fromUTF8(translate(pattern));
  UErrorCode status = U_ZERO_ERROR;
  UParseError where{};
  impl_->compiled = uregex_open(u.getBuffer(), u.length(), 0, &where, &status);
  if (U_FAILURE(status))
    fail(std::string("not a regular expression: ") + u_errorName(status) + " at " + std::to_string(where.offset));
}
SplitRegex::~SplitRegex() = default;
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;

void SplitRegex::split(std::string_view text, Keep keep, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  // UTF-16 for ICU; match positions are walked back to bytes with a cursor.
  std::u16string wide;
  wide.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Step s = utf8_step(rest);
    const uint32_t c = s.valid ? s.code : 0xfffd;
    if (c >= 0x10000) {
      wide += static_cast<char16_t>(0xd800 + ((c - 0x10000) >> 10));
      wide += static_cast<char16_t>(0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      wide += static_cast<char16_t>(c);
    }
    rest.remove_prefix(s.bytes);
  }
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<URegularExpression, void (*)(URegularExpression*)> re(uregex_clone(impl_->compiled, &status),
                                                                              uregex_close);
  uregex_setStackLimit(re.get(), kRegexStackBytes, &status);
  // Steps, not time, so that the same text is always taken or refused: about a second's worth, and for long texts many
  // times what linear expressions need. One that explodes on this text ends in an error.
  const size_t steps = kLeastSteps + text.size() / kBytesPerStep;
  uregex_setTimeLimit(re.get(), static_cast<int32_t>(std::min<size_t>(2'000'000'000, steps)), &status);
  uregex_setText(re.get(), wide.data(), static_cast<int32_t>(wide.size()), &status);

  size_t byte = 0;
  int32_t unit = 0;
  const auto advance = [&](int32_t to) {
    while (unit < to) {
      const Utf8Step s = utf8_step(text.substr(byte));
      byte += s.bytes;
      unit += s.valid && s.code >= 0x10000 ? 2 : 1;
    }
    return byte;
  };
  size_t at = 0;
  while (U_SUCCESS(status) && uregex_findNext(re.get(), &status)) {
    const int32_t start = uregex_start(re.get(), 0, &status), end = uregex_end(re.get(), 0, &status);
    if (start == end) continue;
    const size_t first = advance(start), last = advance(end);
    if (first > at && keep != Keep::kMatches) pieces.push_back(text.substr(at, first - at));
    if (keep != Keep::kGaps) pieces.push_back(text.substr(first, last - first));
    at = last;
  }
  if (status == U_REGEX_TIME_OUT)
    base::throw_error(base::ErrorCode::kOutOfRange,
                      impl_->origin + ": pattern " + impl_->pattern.substr(0, 200) + ": splitting a text of " +
                          std::to_string(text.size()) + " bytes took more than the " + std::to_string(steps) +
                          "0000 steps it may take (the expression backtracks without end)");
  if (U_FAILURE(status))
    base::throw_error(
        status == U_REGEX_STACK_OVERFLOW ? base::ErrorCode::kOutOfRange : base::ErrorCode::kInternal,
        impl_->origin + ": splitting a text of " + std::to_string(text.size()) + " bytes: " + u_errorName(status));
  if (at < text.size() && keep != Keep::kMatches) pieces.push_back(text.substr(at));
}

std::string normalize_unicode(std::string_view text, const std::string& form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* n = form == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                              : form == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                              : form == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                              : form == "NFKD" ? icu::Normalizer2::getNFKDInstance(status)
                                               : nullptr;
  if (!n || U_FAILURE(status))
    base::throw_error(base::ErrorCode::kUnsupported,
                      "normalizer " + form + ": NFC, NFD, NFKC and NFKD are implemented");
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  n->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
  if (U_FAILURE(status))
    base::throw_error(base::ErrorCode::kInternal, std::string("normalizing text: ") + u_errorName(status));
  return out;
}

std::string regex_quote(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
        !(c >= '0' && c <= '9'))
      out += '\\';
    out += c;
  }
  return out;
}

}  // namespace kadence::model
