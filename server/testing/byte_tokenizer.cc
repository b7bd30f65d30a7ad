#include "server/testing/byte_tokenizer.h"

#include <iterator>

#include "base/error.h"

namespace kadence::server::testing {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t used = 0;
    for (size_t i = 0; parse_special && text[0] == '<' && i < std::size(kControl); ++i) {
      const std::string_view control = kControl[i];
      if (text.substr(0, control.size()) != control) continue;
      ids.push_back(256 + static_cast<int32_t>(i));
      used = control.size();
      break;
    }
    if (used == 0) {
      ids.push_back(static_cast<unsigned char>(text[0]));
      used = 1;
    }
    text.remove_prefix(used);
  }
  return ids;
}

std::string ByteTokenizer::token_bytes(int32_t id, bool keep_special) const {
  if (id < 0 || id >= kVocab)
    base::throw_error(base::ErrorCode::kOutOfRange, "token id " + std::to_string(id) + " is outside the vocabulary");
  if (id < 256) return std::string(1, static_cast<char>(id));
  return keep_special ? kControl[id - 256] : "";
}

std::optional<int32_t> ByteTokenizer::special_id(std::string_view spelling) const {
  for (size_t i = 0; i < std::size(kControl); ++i)
    if (spelling == kControl[i]) return 256 + static_cast<int32_t>(i);
  return std::nullopt;
}

std::unique_ptr<model::ChatTemplate> kimi_chat() {
  model::ModelConfig config;
  config.architecture = "kimi_linear";
  return model::make_chat_template(config);
}

}  // namespace kadence::server::testing
