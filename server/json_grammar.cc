#include "server/json_grammar.h"

namespace kadence::server {
namespace {

bool digit(unsigned char c) { return c >= '0' && c <= '9'; }

std::string_view literal(char first) { return first == 't' ? "true" : first == 'f' ? "false" : "null"; }

}  // namespace

bool JsonGrammar::push(unsigned char c) {
  switch (mode_) {
    case Mode::kString:
      return string_byte(c);
    case Mode::kEscape:
      if (c == 'u') {
        hex_ = Hex::kPlain;
        want_low_ = false;
        return go(Mode::kHex);
      }
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(c)) != std::string_view::npos ? go(Mode::kString)
                                                                                                 : dead();
    case Mode::kHex:
      return hex_digit(c);
    case Mode::kLowEscape:
      return c == '\\' ? go(Mode::kLowU) : dead();
    case Mode::kLowU:
      hex_ = Hex::kPlain;
      want_low_ = true;
      return c == 'u' ? go(Mode::kHex) : dead();
    case Mode::kLiteral:
      if (c != static_cast<unsigned char>(literal(literal_)[count_])) return dead();
      return ++count_ == literal(literal_).size() ? go(Mode::kAfter) : true;
    case Mode::kMinus:
    case Mode::kZero:
    case Mode::kInteger:
    case Mode::kPoint:
    case Mode::kFraction:
    case Mode::kE:
    case Mode::kSign:
    case Mode::kExponent:
      return number_byte(c);
    case Mode::kDead:
      return false;
    default:
      break;
  }
  if (c == ' ' || c == '\n' || c == '\t' || c == '\r') return ++count_ <= kMaxSpaces ? true : dead();
  switch (mode_) {
    case Mode::kBegin:
      return c == '{' ? open(true) : dead();
    case Mode::kFirstKey:
      if (c == '}') return after(c);
      [[fallthrough]];
    case Mode::kKey:
      key_ = true;
      return c == '"' ? go(Mode::kString) : dead();
    case Mode::kColon:
      return c == ':' ? go(Mode::kValue) : dead();
    case Mode::kFirstValue:
      if (c == ']') return after(c);
      [[fallthrough]];
    case Mode::kValue:
      return begin_value(c);
    case Mode::kAfter:
      return after(c);
    default:
      return dead();
  }
}

bool JsonGrammar::open(bool object) {
  if (depth_ == kMaxDepth) return dead();
  const uint32_t bit = uint32_t{1} << depth_++;
  objects_ = object ? objects_ | bit : objects_ & ~bit;
  return go(object ? Mode::kFirstKey : Mode::kFirstValue);
}

bool JsonGrammar::begin_value(unsigned char c) {
  key_ = false;
  if (c == '"') return go(Mode::kString);
  if (c == '{' || c == '[') return open(c == '{');
  if (c == '-') return go(Mode::kMinus);
  if (c == '0') return go(Mode::kZero);
  if (digit(c)) {
    mode_ = Mode::kInteger;
    count_ = 1;
    return true;
  }
  if (c != 't' && c != 'f' && c != 'n') return dead();
  literal_ = static_cast<char>(c);
  mode_ = Mode::kLiteral;
  count_ = 1;
  return true;
}

bool JsonGrammar::after(unsigned char c) {
  if (c == ',') return go(in_object() ? Mode::kKey : Mode::kValue);
  if (c != (in_object() ? '}' : ']')) return dead();
  objects_ &= ~(uint32_t{1} << --depth_);  // equal situations are equal values
  return go(depth_ == 0 ? Mode::kDone : Mode::kAfter);
}

// The Unicode standard's table of well-formed UTF-8: only the second byte has ranges of its own.
bool JsonGrammar::string_byte(unsigned char c) {
  if (count_ > 0) {
    if (c < low_ || c > high_) return dead();
    low_ = 0x80;
    high_ = 0xbf;
    --count_;
    return true;
  }
  if (c == '"') return go(key_ ? Mode::kColon : Mode::kAfter);
  if (c == '\\') return go(Mode::kEscape);
  if (c < 0x20 || (c >= 0x80 && c < 0xc2) || c > 0xf4) return dead();
  if (c < 0x80) return true;
  count_ = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
  if (c == 0xe0) low_ = 0xa0;
  if (c == 0xed) high_ = 0x9f;
  if (c == 0xf0) low_ = 0x90;
  if (c == 0xf4) high_ = 0x8f;
  return true;
}

bool JsonGrammar::hex_digit(unsigned char c) {
  const unsigned char l = c | 0x20;
  const bool letter = l >= 'a' && l <= 'f';
  if (!digit(c) && !letter) return dead();
  if (count_ == 0 && l == 'd') hex_ = Hex::kD;
  if (count_ == 1 && hex_ == Hex::kD)
    hex_ = c < '8' && digit(c) ? Hex::kPlain : l >= 'c' && letter ? Hex::kLow : Hex::kHigh;
  if (count_ == 0 && want_low_ && hex_ != Hex::kD) return dead();
  if (count_ == 1 && want_low_ != (hex_ == Hex::kLow)) return dead();
  if (++count_ < 4) return true;
  const bool high = hex_ == Hex::kHigh;
  hex_ = Hex::kPlain;
  want_low_ = false;
  return go(high ? Mode::kLowEscape : Mode::kString);
}

bool JsonGrammar::number_byte(unsigned char c) {
  const auto digits = [&](Mode mode, int most) {
    if (mode_ != mode) go(mode);
    return ++count_ <= most ? true : dead();
  };
  switch (mode_) {
    case Mode::kMinus:
      return c == '0' ? go(Mode::kZero) : digit(c) ? digits(Mode::kInteger, kMaxDigits) : dead();
    case Mode::kInteger:
      if (digit(c)) return digits(Mode::kInteger, kMaxDigits);
      [[fallthrough]];
    case Mode::kZero:
      if (c == '.') return go(Mode::kPoint);
      break;
    case Mode::kPoint:
      return digit(c) ? digits(Mode::kFraction, kMaxDigits) : dead();
    case Mode::kFraction:
      if (digit(c)) return digits(Mode::kFraction, kMaxDigits);
      break;
    case Mode::kE:
      if (c == '+' || c == '-') return go(Mode::kSign);
      [[fallthrough]];
    case Mode::kSign:
      return digit(c) ? digits(Mode::kExponent, kMaxExponent) : dead();
    default:
      if (digit(c)) return digits(Mode::kExponent, kMaxExponent);
      break;
  }
  if (mode_ != Mode::kExponent && (c == 'e' || c == 'E')) return go(Mode::kE);
  go(Mode::kAfter);
  return push(c);  // a number ends where something else begins
}

}  // namespace kadence::server
