// Fuzz entry points for the files of a model: any bytes must end in a value or in a base::Error, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kadence::fuzz {

// Each returns true if the bytes were accepted, and throws std::logic_error if an accepted value breaks its contract.
// Exceptions other than base::Error pass through, as crashes do.
bool safetensors_header(const uint8_t* data, size_t size);
bool config_json(const uint8_t* data, size_t size);
bool tokenizer_json(const uint8_t* data, size_t size);

}  // namespace kadence::fuzz
