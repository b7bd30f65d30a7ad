// A tokenizer for tests: 256 bytes and the control tokens of the Kimi chat form, tool calls included. No merges.
#pragma once

#include <memory>

#include "model/chat.h"
#include "model/tokenizer.h"

namespace kadence::server::testing {

class ByteTokenizer final : public model::Tokenizer {
 public:
  static constexpr const char* kControl[] = {"<|im_user|>",
                                             "<|im_assistant|>",
                                             "<|im_system|>",
                                             "<|im_middle|>",
                                             "<|im_end|>",
                                             "<|tool_calls_section_begin|>",
                                             "<|tool_calls_section_end|>",
                                             "<|tool_call_begin|>",
                                             "<|tool_call_argument_begin|>",
                                             "<|tool_call_end|>"};
  static constexpr int32_t kVocab = 256 + static_cast<int32_t>(sizeof kControl / sizeof *kControl);

  // parse_special: control tokens spelled out become their ids.
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const override;
  std::string token_bytes(int32_t id, bool keep_special) const override;
  int32_t vocab_size() const override { return kVocab; }
  std::optional<int32_t> special_id(std::string_view spelling) const override;
};

std::unique_ptr<model::ChatTemplate> kimi_chat();

}  // namespace kadence::server::testing
