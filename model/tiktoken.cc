// tiktoken files: lines of base64 token, space, rank; control tokens from tokenizer_config.json.
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "model/json.h"
#include "model/tokenizer_impl.h"

namespace kadence::model {
namespace {

constexpr int32_t kControlIds = 256;                     // after the ranks; unnamed ones are reserved
constexpr size_t kMaxChars = 400'000, kMaxRun = 25'000;  // cuts before the expression

// False on anything but padded base64.
bool decode_base64(std::string_view text, std::string* out) {
  const auto value = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  out->clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int v = value(c);
    if (v < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(v);
    if ((held += 6) >= 8) *out += static_cast<char>(bits >> (held -= 8) & 0xff);
  }
  return (bits & ((1u << held) - 1)) == 0;
}

}  // namespace

std::string kimi_pattern() {
  // Han runs; words with at most one leading mark, lower- or upper-case ended, Han subtracted, with English
  // contractions; numbers in threes; punctuation with its newlines; newlines; white space.
  const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])",
                    lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  const std::string lead = R"([^\r\n\p{L}\p{N}]?)", tail = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  return R"([\p{Han}]+|)" + lead + upper + "*" + lower + "+" + tail + "|" + lead + upper + "+" + lower + "*" + tail +
         R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::unique_ptr<Tokenizer> load_tiktoken(const std::filesystem::path& file, const std::filesystem::path& config,
                                         const std::string& pattern) {
  const std::string origin = file.string();
  const auto fail = [&](const std::string& what) { base::throw_error(base::ErrorCode::kIo, origin + ": " + what); };
  const std::string text = read_file(file, kMaxTokenizerBytes);
  std::vector<std::string> tokens;
  std::string bytes;
  size_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int64_t rank = -1;
    const std::string_view number = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (number.empty() || parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() ||
        !decode_base64(line.substr(0, space), &bytes) || bytes.empty())
      fail("line " + std::to_string(line_number) + ": wanted a base64 token and its rank, got " +
           brief(Json(std::string(line.substr(0, 60)))));
    // Ranks may come in any order but leave no holes at the end, so a rank far beyond the lines is an error.
    if (rank < 0 || rank > kMaxTokenId || static_cast<size_t>(rank) > text.size())
      fail("line " + std::to_string(line_number) + ": rank " + std::to_string(rank) + " is out of range");
    if (static_cast<size_t>(rank) >= tokens.size()) tokens.resize(static_cast<size_t>(rank) + 1);
    if (!tokens[static_cast<size_t>(rank)].empty())
      fail("line " + std::to_string(line_number) + ": rank " + std::to_string(rank) + " appears twice");
    tokens[static_cast<size_t>(rank)] = bytes;
  }
  if (tokens.empty()) fail("no tokens");
  const int32_t ranks = static_cast<int32_t>(tokens.size());
  TokenizerParts parts{Bpe(std::move(tokens), true), {}, {}, {}, false, kMaxChars, kMaxRun};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::string& token = parts.bpe.tokens()[static_cast<size_t>(rank)];
    if (const int32_t first = parts.bpe.id_of(token); !token.empty() && first != rank)
      fail("rank " + std::to_string(rank) + " has the token of rank " + std::to_string(first) + ", " +
           brief(Json(token)) + ": wanted each token once");
  }
  for (int b = 0; b < 256; ++b)
    if (parts.bpe.id_of(std::string(1, static_cast<char>(b))) < 0) fail("no token for byte " + std::to_string(b));
  parts.bpe.add_merges_by_rank();
  parts.stages.push_back(
      {SplitRegex(pattern.empty() ? kimi_pattern() : pattern, origin), SplitRegex::Keep::kAll, false});

  std::map<int32_t, AddedToken> control;
  std::error_code ec;
  if (!config.empty() && std::filesystem::exists(config, ec)) {
    const Json doc = read_json(config);
    const JsonObject top(&doc, config.string());
    if (const Json* added = top.find({"added_tokens_decoder"})) {
      if (!added->is_object()) top.fail("added_tokens_decoder", "an object from ids to tokens", brief(*added));
      for (const auto& [key, value] : added->items()) {
        int64_t id = -1;
        const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
        if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 || id > kMaxTokenId)
          top.fail("added_tokens_decoder", "ids as keys", key.substr(0, 60));
        const JsonObject entry(&value, config.string() + ": added_tokens_decoder " + key);
        AddedToken t;
        t.id = static_cast<int32_t>(id);
        t.content = entry.string_or({"content"}, "");
        t.special = entry.boolean_or({"special"}, true);
        t.lstrip = entry.boolean_or({"lstrip"}, false), t.rstrip = entry.boolean_or({"rstrip"}, false);
        control[t.id] = std::move(t);
      }
    }
  }
  for (int32_t id = ranks; id < ranks + kControlIds; ++id) {
    if (control.count(id)) continue;
    AddedToken t;
    t.id = id;
    t.content = "<|reserved_token_" + std::to_string(id) + "|>";
    control[id] = std::move(t);
  }
  for (auto& [id, t] : control) parts.added.push_back(std::move(t));
  return std::make_unique<BpeTokenizer>(std::move(parts), origin);
}

}  // namespace kadence::model
