// Private to model/: the tokenizer behind both file formats, added tokens over split regexes over byte-pair merging.
#pragma once

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"

namespace kadence::model {

inline constexpr int64_t kMaxTokenId = (1 << 24) - 1;
inline constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = true;
  bool lstrip = false, rstrip = false;  // white space before or after it belongs to it
};

struct SplitStage {
  SplitRegex regex;
  SplitRegex::Keep keep = SplitRegex::Keep::kAll;
  bool prefix_space = false;  // a piece that does not begin with a space gets one
};

struct TokenizerParts {
  Bpe bpe;
  std::vector<AddedToken> added;
  std::vector<std::string> normalizers;
  std::vector<SplitStage> stages;
  bool prefix_space = false;  // of a byte-level stage without an expression
  // Cuts before the stages, in characters (0 = none): the whole text, then runs of white space or of anything else.
  size_t max_chars = 0, max_run = 0;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // Throws Error{kIo} naming `origin` when two added tokens clash.
  BpeTokenizer(TokenizerParts parts, const std::string& origin);
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const override;
  std::string token_bytes(int32_t id, bool keep_special) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> special_id(std::string_view spelling) const override;

 private:
  const AddedToken* match_added(std::string_view text, bool parse_special) const;
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_segment(std::string_view text, std::vector<int32_t>& ids) const;

  TokenizerParts parts_;
  int32_t vocab_size_ = 0;
  std::unordered_map<int32_t, size_t> added_by_id_;
  std::map<std::string, size_t, std::less<>> added_by_text_;
  std::array<std::vector<size_t>, 256> added_by_byte_;  // longest first
};

}  // namespace kadence::model
