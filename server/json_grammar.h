// One JSON object, byte by byte: what has come so far and whether a byte may come next. A value of a few bytes, so that
// a vocabulary can be tried against it.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace kadence::server {

// Accepts RFC 8259 objects in well-formed UTF-8, with surrogates in pairs and within limits that keep a model from
// babbling for ever and every parser content: kMaxDepth levels, kMaxSpaces bytes of white space in a row, numbers of at
// most kMaxDigits digits before and behind the point and kMaxExponent in the exponent.
class JsonGrammar {
 public:
  static constexpr int kMaxDepth = 32, kMaxSpaces = 40, kMaxDigits = 17, kMaxExponent = 2;

  // False if `c` may not come next; nothing may come after that.
  bool push(unsigned char c);
  bool push(std::string_view text) {
    for (const char c : text)
      if (!push(static_cast<unsigned char>(c))) return false;
    return true;
  }
  // The object is closed; only white space may follow.
  bool complete() const { return mode_ == Mode::kDone; }

  auto operator<=>(const JsonGrammar&) const = default;

 private:
  enum class Mode : uint8_t {
    kBegin,       // before {
    kFirstKey,    // after {
    kKey,         // after a comma in an object
    kColon,       // after a key
    kFirstValue,  // after [
    kValue,       // after a colon, or a comma in a list
    kAfter,       // after a value
    kString,      // count_: UTF-8 bytes that must follow; low_, high_: what the next may be
    kEscape,      // after a backslash
    kHex,         // after \u; count_ digits are there
    kLowEscape,   // after a high surrogate: a backslash
    kLowU,        // and u
    kLiteral,     // count_ letters of true, false or null are there
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kE,
    kSign,
    kExponent,  // what the last byte was
    kDone,
    kDead,
  };
  enum class Hex : uint8_t { kPlain, kD, kHigh, kLow };  // the code unit so far

  bool begin_value(unsigned char c);
  bool string_byte(unsigned char c);
  bool hex_digit(unsigned char c);
  bool number_byte(unsigned char c);
  bool after(unsigned char c);
  bool open(bool object);
  bool dead() {
    mode_ = Mode::kDead;
    return false;
  }
  bool go(Mode mode) {
    mode_ = mode;
    count_ = 0;
    return true;
  }
  bool in_object() const { return depth_ > 0 && (objects_ >> (depth_ - 1) & 1) != 0; }

  Mode mode_ = Mode::kBegin;
  Hex hex_ = Hex::kPlain;
  bool key_ = false, want_low_ = false;  // the string is a key; the escape must be a low surrogate
  uint8_t count_ = 0, depth_ = 0;
  uint8_t low_ = 0x80, high_ = 0xbf;
  char literal_ = 0;
  uint32_t objects_ = 0;  // bit d: level d is an object
};

}  // namespace kadence::server
