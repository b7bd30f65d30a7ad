// Private to model/: cutting text into the pieces that byte-pair merging never crosses, with the regular expressions of
// tokenizer files run by ICU (class subtraction, lookahead).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kadence::model {

// One regular expression. Patterns are written for Oniguruma or Rust, where \s is Unicode's White_Space; ICU's own \s
// is another set, so \s and \S are translated. Safe for concurrent use.
class SplitRegex {
 public:
  // `origin`: where it was read, named in errors. Throws Error{kIo} naming the pattern if ICU does not take it.
  explicit SplitRegex(const std::string& pattern, std::string origin = "tokenizer");
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;

  enum class Keep { kAll, kMatches, kGaps };
  // Appends the pieces of `text` (valid UTF-8): matches and the gaps between them, in order, empty ones left out.
  // Throws Error{kOutOfRange} when the expression needs more memory or steps than it may have.
  void split(std::string_view text, Keep keep, std::vector<std::string_view>& pieces) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "NFC", "NFD", "NFKC", "NFKD" of valid UTF-8. Throws Error{kUnsupported} on another form.
std::string normalize_unicode(std::string_view text, const std::string& form);
// Escapes a literal for use as a pattern.
std::string regex_quote(std::string_view literal);

}  // namespace kadence::model
