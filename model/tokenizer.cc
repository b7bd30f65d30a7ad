#include "model/tokenizer.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "model/json.h"
#include "model/tokenizer_impl.h"
#include "model/utf8.h"

namespace kadence::model {

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool keep_special) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += token_bytes(id, keep_special);
  return utf8_lossy(bytes);
}

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_.token_bytes(id, keep_special_);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step s = utf8_step(rest);
    if (s.incomplete) break;
    out.append(s.valid ? rest.substr(0, s.bytes) : kReplacementCharacter);
    rest.remove_prefix(s.bytes);
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = utf8_lossy(pending_);
  pending_.clear();
  return out;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& dir) {
  std::error_code ec;
  const bool any =
      std::filesystem::exists(dir / "tokenizer.json", ec) || std::filesystem::exists(dir / "tiktoken.model", ec);
  if (const std::filesystem::path config = dir / "tokenizer_config.json"; any && std::filesystem::exists(config, ec)) {
    if (const Json doc = read_json(config); !doc.is_object())
      base::throw_error(base::ErrorCode::kIo, config.string() + ": wanted a JSON object, got " + brief(doc));
  }
  if (std::filesystem::exists(dir / "tokenizer.json", ec)) return load_tokenizer_json(dir / "tokenizer.json");
  if (std::filesystem::exists(dir / "tiktoken.model", ec))
    return load_tiktoken(dir / "tiktoken.model", dir / "tokenizer_config.json");
  return nullptr;
}

BpeTokenizer::BpeTokenizer(TokenizerParts parts, const std::string& origin) : parts_(std::move(parts)) {
  vocab_size_ = static_cast<int32_t>(parts_.bpe.tokens().size());
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& a = parts_.added[i];
    if (a.content.empty())
      base::throw_error(base::ErrorCode::kIo, origin + ": added token " + std::to_string(a.id) + " is empty");
    if (!added_by_id_.emplace(a.id, i).second || !added_by_text_.emplace(a.content, i).second)
      base::throw_error(base::ErrorCode::kIo,
                        origin + ": added token " + std::to_string(a.id) + " " + a.content + " appears twice");
    added_by_byte_[static_cast<uint8_t>(a.content[0])].push_back(i);
    vocab_size_ = std::max(vocab_size_, a.id + 1);
  }
  for (auto& list : added_by_byte_)
    std::sort(list.begin(), list.end(),
              [&](size_t x, size_t y) { return parts_.added[x].content.size() > parts_.added[y].content.size(); });
}

std::optional<int32_t> BpeTokenizer::special_id(std::string_view spelling) const {
  const auto it = added_by_text_.find(spelling);
  if (it == added_by_text_.end() || !parts_.added[it->second].special) return std::nullopt;
  return parts_.added[it->second].id;
}

std::string BpeTokenizer::token_bytes(int32_t id, bool keep_special) const {
  if (id < 0 || id >= vocab_size_)
    base::throw_error(base::ErrorCode::kOutOfRange, "token id " + std::to_string(id) +
                                                        " is outside the vocabulary of " + std::to_string(vocab_size_));
  if (const auto it = added_by_id_.find(id); it != added_by_id_.end()) {
    const AddedToken& a = parts_.added[it->second];
    return keep_special || !a.special ? a.content : std::string();
  }
  const auto& tokens = parts_.bpe.tokens();
  return static_cast<size_t>(id) < tokens.size() ? tokens[static_cast<size_t>(id)] : std::string();
}

const AddedToken* BpeTokenizer::match_added(std::string_view text, bool parse_special) const {
  for (const size_t i : added_by_byte_[static_cast<uint8_t>(text[0])]) {
    const AddedToken& a = parts_.added[i];
    if ((parse_special || !a.special) && text.substr(0, a.content.size()) == a.content) return &a;
  }
  return nullptr;
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, bool parse_special) const {
  std::string cleaned;
  if (!utf8_valid(text)) text = cleaned = utf8_lossy(text);
  std::vector<int32_t> ids;
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const AddedToken* a = match_added(text.substr(at), parse_special);
    if (!a) {
      ++at;
      continue;
    }
    size_t end = at;
    if (a->lstrip)
      while (end > begin && is_white_space(static_cast<uint8_t>(text[end - 1])) &&
             static_cast<uint8_t>(text[end - 1]) < 0x80)
        --end;
    encode_text(text.substr(begin, end - begin), ids);
    ids.push_back(a->id);
    at += a->content.size();
    if (a->rstrip) {
      while (at < text.size()) {
        const Utf8Step s = utf8_step(text.substr(at));
        if (!is_white_space(s.code)) break;
        at += s.bytes;
      }
    }
    begin = at;
  }
  encode_text(text.substr(begin), ids);
  return ids;
}

void BpeTokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string normal;
  for (const std::string& form : parts_.normalizers) {
    normal = normalize_unicode(text, form);
    text = normal;
  }
  if (!parts_.max_chars) {
    encode_segment(text, ids);
    return;
  }
  // Cuts bound the work of one expression run: after max_chars characters, and inside longer runs than max_run.
  size_t begin = 0, at = 0, chars = 0, run = 0;
  bool run_is_space = false;
  while (at < text.size()) {
    const Utf8Step s = utf8_step(text.substr(at));
    const bool space = is_white_space(s.code);
    if (chars == parts_.max_chars) {
      encode_segment(text.substr(begin, at - begin), ids);
      begin = at, chars = 0, run = 0;
    }
    run = run && space == run_is_space ? run + 1 : 1;
    run_is_space = space;
    if (run > parts_.max_run) {
      encode_segment(text.substr(begin, at - begin), ids);
      begin = at, run = 1;
    }
    ++chars;
    at += s.bytes;
  }
  encode_segment(text.substr(begin), ids);
}

void BpeTokenizer::encode_segment(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces{text}, next;
  std::vector<std::string> owned;  // pieces that got a space; reserved up front so that views stay good
  const auto add_spaces = [&] {
    owned.reserve(owned.size() + pieces.size());
    for (std::string_view& p : pieces)
      if (!p.empty() && p[0] != ' ') p = owned.emplace_back(' ' + std::string(p));
  };
  std::vector<std::vector<std::string>> keep_alive;
  for (const SplitStage& stage : parts_.stages) {
    if (stage.prefix_space) {
      add_spaces();
      keep_alive.push_back(std::move(owned));
      owned = {};
    }
    next.clear();
    for (const std::string_view p : pieces) stage.regex.split(p, stage.keep, next);
    pieces.swap(next);
  }
  if (parts_.prefix_space) add_spaces();
  for (const std::string_view p : pieces) parts_.bpe.encode(p, ids);
}

}  // namespace kadence::model
