// Hugging Face tokenizer.json: byte-level BPE.
#include "base/error.h"
#include "model/json.h"
#include "model/tokenizer_impl.h"
#include "model/utf8.h"

namespace kadence::model {
namespace {

// GPT-2's expression, which a ByteLevel stage means by use_regex.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxStages = 16;

struct Reader {
  const std::string& origin;
  [[noreturn]] void fail(const std::string& what) const {
    base::throw_error(base::ErrorCode::kIo, origin + ": " + what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    base::throw_error(base::ErrorCode::kUnsupported, origin + ": " + what);
  }

  const Json* find(const Json& object, const char* name) const {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(name);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  std::string text(const Json& object, const char* name, const std::string& fallback) const {
    const Json* v = find(object, name);
    if (v && !v->is_string()) fail(std::string(name) + ": wanted a string, got " + brief(*v));
    return v ? v->get<std::string>() : fallback;
  }
  bool flag(const Json& object, const char* name, bool fallback) const {
    const Json* v = find(object, name);
    if (v && !v->is_boolean()) fail(std::string(name) + ": wanted true or false, got " + brief(*v));
    return v ? v->get<bool>() : fallback;
  }
  int32_t id(const Json& value, const std::string& token) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId))
      fail("token " + token + ": wanted an id in [0, " + std::to_string(kMaxTokenId) + "], got " + brief(value));
    return static_cast<int32_t>(value.get<uint64_t>());
  }

  void normalizer(const Json& n, std::vector<std::string>& forms, size_t depth = 0) const {
    const std::string type = text(n, "type", "");
    if (type == "Sequence") {
      const Json* list = find(n, "normalizers");
      if (!list || !list->is_array() || depth > 4 || list->size() > kMaxStages)
        fail("normalizer: wanted a list of normalizers");
      for (const Json& e : *list) normalizer(e, forms, depth + 1);
    } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      forms.push_back(type);
    } else {
      unsupported("normalizer " + type + " (implemented: NFC, NFD, NFKC, NFKD, Sequence)");
    }
  }

  void pre_tokenizer(const Json& p, TokenizerParts& parts, size_t depth = 0) const {
    if (parts.stages.size() > kMaxStages) fail("more than " + std::to_string(kMaxStages) + " pre-tokenizers");
    const std::string type = text(p, "type", "");
    if (type == "Sequence") {
      const Json* list = find(p, "pretokenizers");
      if (!list || !list->is_array() || depth > 4 || list->size() > kMaxStages)
        fail("pre_tokenizer: wanted a list of pretokenizers");
      for (const Json& e : *list) pre_tokenizer(e, parts, depth + 1);
    } else if (type == "ByteLevel") {
      const bool space = flag(p, "add_prefix_space", true);
      if (flag(p, "use_regex", true))
        parts.stages.push_back({SplitRegex(kByteLevelPattern, origin), SplitRegex::Keep::kAll, space});
      else
        parts.prefix_space = space;
    } else if (type == "Digits") {
      parts.stages.push_back({SplitRegex(flag(p, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", origin),
                              SplitRegex::Keep::kAll, false});
    } else if (type == "Split") {
      const Json* pattern = find(p, "pattern");
      if (!pattern || !pattern->is_object()) fail("Split: wanted a pattern with Regex or String");
      std::string regex = text(*pattern, "Regex", "");
      if (regex.empty()) regex = regex_quote(text(*pattern, "String", ""));
      const std::string behavior = text(p, "behavior", "");
      SplitRegex::Keep keep = SplitRegex::Keep::kAll;
      if (behavior == "Removed")
        keep = flag(p, "invert", false) ? SplitRegex::Keep::kMatches : SplitRegex::Keep::kGaps;
      else if (behavior != "Isolated")
        unsupported("Split behavior " + behavior + " (implemented: Isolated, Removed)");
      parts.stages.push_back({SplitRegex(regex, origin), keep, false});
    } else {
      unsupported("pre_tokenizer " + type + " (implemented: Split, ByteLevel, Digits, Sequence)");
    }
  }
};

// The characters that stand for the 256 bytes in byte-level files: printable ones are themselves, the others follow
// U+0100.
const std::array<int, 0x144>& byte_of_character() {
  static const auto table = [] {
    std::array<int, 0x144> t;
    t.fill(-1);
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      t[static_cast<size_t>(itself ? b : next++)] = b;
    }
    return t;
  }();
  return table;
}

std::string bytes_of_token(std::string_view token) {
  std::string out;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Step s = utf8_step(rest);
    const int b = s.valid && s.code < byte_of_character().size() ? byte_of_character()[s.code] : -1;
    if (b < 0) return std::string(token);  // a control token outside the alphabet, spelled as it is
    out += static_cast<char>(b);
    rest.remove_prefix(s.bytes);
  }
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& origin) {
  const Json doc = parse_json(text, origin, {kMaxTokenizerBytes, 16});
  const Reader r{origin};
  const Json* model = r.find(doc, "model");
  if (!model || !model->is_object()) r.fail("model: wanted an object, got nothing");
  if (const std::string type = r.text(*model, "type", "BPE"); type != "BPE")
    r.unsupported("model type " + type + " (implemented: BPE)");
  if (r.flag(*model, "byte_fallback", false)) r.unsupported("byte_fallback");
  if (const Json* d = r.find(*model, "dropout"); d && *d != 0) r.unsupported("dropout " + brief(*d));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!r.text(*model, affix, "").empty()) r.unsupported(affix);

  const Json* vocab = r.find(*model, "vocab");
  if (!vocab || !vocab->is_object() || vocab->empty()) r.fail("model.vocab: wanted an object from tokens to ids");
  std::unordered_map<std::string_view, int32_t> ids;
  int32_t last = -1;
  for (const auto& entry : vocab->get_ref<const Json::object_t&>()) {
    const int32_t id = r.id(entry.second, entry.first);
    ids.emplace(entry.first, id);
    last = std::max(last, id);
  }
  // Ids are dense but for a few reserved ones; a sparse list would be a huge table of holes.
  if (static_cast<size_t>(last) > 2 * ids.size() + 65536)
    r.fail("model.vocab: id " + std::to_string(last) + " with only " + std::to_string(ids.size()) + " tokens");
  std::vector<std::string> tokens(static_cast<size_t>(last) + 1);
  for (const auto& [token, id] : ids) {
    std::string& slot = tokens[static_cast<size_t>(id)];
    if (!slot.empty()) r.fail("model.vocab: id " + std::to_string(id) + " has two tokens");
    slot = bytes_of_token(token);
  }

  TokenizerParts parts{Bpe(std::move(tokens), r.flag(*model, "ignore_merges", false)), {}, {}, {}, false, 0, 0};
  const Json* merges = r.find(*model, "merges");
  if (!merges || !merges->is_array()) r.fail("model.merges: wanted a list");
  int32_t rank = 0;
  std::string joined;
  for (const Json& m : *merges) {
    std::string_view left, right;
    if (m.is_string()) {
      const std::string_view line = m.get_ref<const std::string&>();
      const size_t space = line.find(' ');
      if (space == std::string_view::npos)
        r.fail("merge " + std::to_string(rank) + ": wanted two tokens, got " + brief(m));
      left = line.substr(0, space), right = line.substr(space + 1);
    } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      left = m[0].get_ref<const std::string&>(), right = m[1].get_ref<const std::string&>();
    } else {
      r.fail("merge " + std::to_string(rank) + ": wanted \"a b\" or [\"a\", \"b\"], got " + brief(m));
    }
    joined.assign(left).append(right);
    const auto a = ids.find(left), b = ids.find(right), c = ids.find(joined);
    if (a == ids.end() || b == ids.end() || c == ids.end())
      r.fail("merge " + std::to_string(rank) + " " + brief(m) +
             ": one of the two or their join is not in the vocabulary");
    if (!parts.bpe.add_merge(a->second, b->second, {rank, c->second}))
      r.fail("merge " + std::to_string(rank) + " " + brief(m) + " appears twice");
    ++rank;
  }

  if (const Json* n = r.find(doc, "normalizer")) r.normalizer(*n, parts.normalizers);
  if (const Json* p = r.find(doc, "pre_tokenizer"))
    r.pre_tokenizer(*p, parts);
  else
    r.unsupported("no pre_tokenizer (implemented: byte-level BPE)");
  if (const Json* added = r.find(doc, "added_tokens")) {
    if (!added->is_array() || added->size() > 1 << 20) r.fail("added_tokens: wanted a list");
    for (const Json& a : *added) {
      const Json* id = r.find(a, "id");
      if (!id) r.fail("added token " + brief(a) + " has no id");
      AddedToken t;
      t.content = r.text(a, "content", "");
      t.id = r.id(*id, t.content);
      t.special = r.flag(a, "special", false);
      t.lstrip = r.flag(a, "lstrip", false), t.rstrip = r.flag(a, "rstrip", false);
      if (r.flag(a, "single_word", false)) r.unsupported("added token " + t.content + " with single_word");
      parts.added.push_back(std::move(t));
    }
  }
  return std::make_unique<BpeTokenizer>(std::move(parts), origin);
}

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& file) {
  return parse_tokenizer_json(read_file(file, kMaxTokenizerBytes), file.string());
}

}  // namespace kadence::model
