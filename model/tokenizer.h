// Text <-> token ids: byte-level BPE from a Hugging Face tokenizer.json, or from a tiktoken file with the Kimi pattern.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kadence::model {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids of UTF-8 text. parse_special: control tokens spelled out in the text become their ids (as HF does); otherwise
  // they are ordinary text. Invalid UTF-8 becomes U+FFFD, as in HF.
  virtual std::vector<int32_t> encode(std::string_view text, bool parse_special) const = 0;
  // Bytes of one token (control tokens: their spelling if keep_special, else empty). Throws Error{kOutOfRange} outside
  // the vocabulary.
  virtual std::string token_bytes(int32_t id, bool keep_special) const = 0;
  std::string decode(const std::vector<int32_t>& ids, bool keep_special = true) const;  // invalid UTF-8 -> U+FFFD
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> special_id(std::string_view spelling) const = 0;
};

// DIR/tokenizer.json, else DIR/tiktoken.model; null when the folder has neither. Throws base::Error on a broken file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& dir);
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& file);
// The same from a text; `origin` names it in errors.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& origin);
// `config` is the tokenizer_config.json with added_tokens_decoder (may be absent). `pattern` cuts text into pieces;
// empty = kimi_pattern(). The 256 ids after the ranks are control tokens, <|reserved_token_ID|> where the config names
// none.
std::unique_ptr<Tokenizer> load_tiktoken(const std::filesystem::path& file, const std::filesystem::path& config,
                                         const std::string& pattern = {});
// The split expression of the Kimi K2 family.
std::string kimi_pattern();

// Decodes a stream of tokens into UTF-8 without ever cutting a character: incomplete tails wait.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false)
      : tokenizer_(tokenizer), keep_special_(keep_special) {}
  std::string push(int32_t id);  // complete characters that became available
  std::string finish();          // the rest, invalid bytes as U+FFFD
 private:
  const Tokenizer& tokenizer_;
  bool keep_special_;
  std::string pending_;
};

}  // namespace kadence::model
