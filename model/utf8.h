// Private to model/: UTF-8 as the tokenizers need it. Invalid input becomes U+FFFD, one per maximal ill-formed subpart
// (Unicode 15, section 3.9, "best practice"), which is what Rust and Python do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kadence::model {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

struct Utf8Step {
  uint32_t code = 0;  // valid only
  uint8_t bytes = 0;  // of the character, or of the ill-formed subpart
  bool valid = false;
  bool incomplete = false;  // ill-formed only because the text ends here
};
// The character at the start of `text`, which is not empty.
Utf8Step utf8_step(std::string_view text);
// `text` with every ill-formed subpart replaced.
std::string utf8_lossy(std::string_view text);
bool utf8_valid(std::string_view text);
void append_utf8(std::string& out, uint32_t code);
// Unicode's White_Space property.
bool is_white_space(uint32_t code);

}  // namespace kadence::model
