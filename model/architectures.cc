#include "model/architectures.h"

namespace kadence::model {
namespace {

constexpr ArchitectureInfo kTable[] = {
    {"kimi_linear", "kimi_linear", "KimiLinearForCausalLM", true, 1, "", "KDA + NoPE MLA, MoE (Kimi-Linear)"},
    {"glm5_next", "glm5_next glm5_next_text", "Glm5NextForConditionalGeneration Glm5NextForCausalLM", false, 0,
     "model.language_model.", "KDA + sparse MLA with an index, hyper-connections (GLM-5.3)"},
    {"kimi_k3", "kimi_k3", "KimiK3ForConditionalGeneration KimiK3ForCausalLM", false, 1, "language_model.",
     "KDA + gated MLA, attention residuals, latent MoE (Kimi K3)"},
    {"bailing", "bailing_hybrid", "BailingMoeV3ForCausalLM", false, 0, "", "KDA + RoPE MLA, grouped MoE (Ling 3)"},
    {"kda", "kda", "KDAForCausalLM", false, 0, "", "plain KDA stack of flash-linear-attention"},
};

bool contains_word(std::string_view words, std::string_view word) {
  if (word.empty()) return false;
  while (!words.empty()) {
    const size_t end = words.find(' ');
    if (words.substr(0, end) == word) return true;
    if (end == std::string_view::npos) break;
    words.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace

std::span<const ArchitectureInfo> architectures() { return kTable; }

const ArchitectureInfo* find_architecture(std::string_view name) {
  for (const ArchitectureInfo& a : kTable)
    if (a.name == name) return &a;
  return nullptr;
}

std::string implemented_architectures() {
  std::string s;
  for (const ArchitectureInfo& a : kTable) {
    if (!a.implemented) continue;
    if (!s.empty()) s += ", ";
    s += a.name;
  }
  return s;
}

const ArchitectureInfo* match_architecture(std::string_view model_type, std::span<const std::string> classes,
                                           bool is_k3, bool is_kda_bailing) {
  const ArchitectureInfo* found = nullptr;
  for (const ArchitectureInfo& a : kTable) {
    bool match = contains_word(a.model_types, model_type);
    if (model_type.empty())
      for (const std::string& c : classes) match = match || contains_word(a.classes, c);
    if (match) {
      found = &a;
      break;
    }
  }
  if (!found) return nullptr;
  // K3's text part calls itself kimi_linear; bailing_hybrid is also the type of an older model without KDA.
  if (found->name == "kimi_linear" && is_k3) return find_architecture("kimi_k3");
  if (found->name == "bailing" && !is_kda_bailing) {
    for (const std::string& c : classes)
      if (contains_word(found->classes, c)) return found;
    return nullptr;
  }
  return found;
}

}  // namespace kadence::model
