#include "model/utf8.h"

namespace kadence::model {

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  Utf8Step s;
  s.bytes = 1;
  const uint8_t a = byte(0);
  if (a < 0x80) {
    s.code = a, s.valid = true;
    return s;
  }
  int extra = 0;
  uint8_t low = 0x80, high = 0xbf;  // of the second byte
  if (a >= 0xc2 && a <= 0xdf) {
    extra = 1, s.code = a & 0x1fu;
  } else if (a >= 0xe0 && a <= 0xef) {
    extra = 2, s.code = a & 0x0fu;
    if (a == 0xe0) low = 0xa0;
    if (a == 0xed) high = 0x9f;  // surrogates
  } else if (a >= 0xf0 && a <= 0xf4) {
    extra = 3, s.code = a & 0x07u;
    if (a == 0xf0) low = 0x90;
    if (a == 0xf4) high = 0x8f;
  } else {
    return s;
  }
  for (int i = 1; i <= extra; ++i, low = 0x80, high = 0xbf) {
    if (static_cast<size_t>(i) >= text.size()) {
      s.incomplete = true;
      return s;
    }
    const uint8_t b = byte(static_cast<size_t>(i));
    if (b < low || b > high) return s;
    s.code = s.code << 6 | (b & 0x3fu);
    ++s.bytes;
  }
  s.valid = true;
  return s;
}

std::string utf8_lossy(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step s = utf8_step(text);
    out.append(s.valid ? text.substr(0, s.bytes) : kReplacementCharacter);
    text.remove_prefix(s.bytes);
  }
  return out;
}

bool utf8_valid(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step s = utf8_step(text);
    if (!s.valid) return false;
    text.remove_prefix(s.bytes);
  }
  return true;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace kadence::model
