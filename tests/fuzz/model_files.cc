#include "model_files.h"

#include <stdexcept>
#include <string_view>

#include "base/error.h"
#include "model/config.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"

namespace kadence::fuzz {
namespace {

std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }
void require(bool ok, const char* what) {
  if (!ok) throw std::logic_error(what);
}

}  // namespace

bool safetensors_header(const uint8_t* data, size_t size) {
  try {
    const model::TensorMap tensors = model::parse_safetensors_header(text_of(data, size), size, "fuzz");
    uint64_t header = 0;
    for (int i = 0; i < 8; ++i) header |= static_cast<uint64_t>(data[i]) << (8 * i);
    uint64_t bytes = 0;
    for (const auto& [name, t] : tensors) {
      require(t.begin <= t.end && t.end <= size - 8 - header, "tensor outside the file");
      require(t.elements >= 0, "negative size");
      if (t.type)
        require(static_cast<uint64_t>(t.elements) * base::size_of(*t.type) == t.end - t.begin,
                "bytes do not fit the shape");
      bytes += t.end - t.begin;
    }
    require(bytes == size - 8 - header, "data not covered");
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

bool config_json(const uint8_t* data, size_t size) {
  try {
    const model::ModelConfig c = model::parse_config(text_of(data, size), "", "fuzz");
    require(c.layers > 0 && c.layer_kinds.size() == static_cast<size_t>(c.layers), "layers");
    require(c.kda_layers() + c.attention_layers() == c.layers, "kinds");
    require(c.kda_layers() == 0 || (c.kda.H > 0 && c.kda.HV % c.kda.H == 0 && c.kda.K > 0 && c.kda.V > 0), "kda sizes");
    require(c.moe.router.experts == 0 || c.moe.router.top_k <= c.moe.router.experts, "top_k");
    for (const int32_t id : c.eos_ids) require(id >= 0 && id < c.vocab, "eos");
    require(model::cache_shape(c).conv_channels >= 0, "channels");
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

bool tokenizer_json(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = model::parse_tokenizer_json(text_of(data, size), "fuzz");
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->encode("Hello, w\xc3\xb6rld! 123  <|im_end|>\n\xff\xf0\x9f\x98", special);
      for (const int32_t id : ids) require(id >= 0 && id < tokenizer->vocab_size(), "id outside the vocabulary");
      tokenizer->decode(ids);
    }
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

}  // namespace kadence::fuzz
