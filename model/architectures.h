// The table of model architectures: which checkpoints are recognised, which of them run, and the spellings of each.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kadence::model {

struct ArchitectureInfo {
  std::string_view name;         // ModelConfig::architecture
  std::string_view model_types;  // config.json's model_type, space separated
  std::string_view classes;      // config.json's architectures, space separated
  bool implemented;
  int layer_base;                  // first index in kda_layers and full_attn_layers
  std::string_view weight_prefix;  // before "model.layers.N." in checkpoints
  std::string_view summary;
};

std::span<const ArchitectureInfo> architectures();
// The row of that name or null.
const ArchitectureInfo* find_architecture(std::string_view name);
// "kimi_linear" or "a, b": the names that run.
std::string implemented_architectures();
// The row that a config's model_type and architectures entries mean; null when none does. `is_k3` and `is_kda_bailing`
// say whether the fields that only those families have are there: both share a model_type with another family.
const ArchitectureInfo* match_architecture(std::string_view model_type, std::span<const std::string> classes,
                                           bool is_k3, bool is_kda_bailing);

}  // namespace kadence::model
