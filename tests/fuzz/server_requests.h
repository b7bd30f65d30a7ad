// Fuzz entry points of the server: what a client can put into a body. Each returns whether the body was taken; anything
// but a return is a fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kadence::fuzz {

bool completion_body(const uint8_t* data, size_t size);
bool chat_body(const uint8_t* data, size_t size);
bool tokenize_body(const uint8_t* data, size_t size);
bool detokenize_body(const uint8_t* data, size_t size);
// Bytes as tokens of an answer with stop strings and tool calls: what is shown must be valid UTF-8 without a stop
// string, however the tokens came.
bool answer_tokens(const uint8_t* data, size_t size);

}  // namespace kadence::fuzz
