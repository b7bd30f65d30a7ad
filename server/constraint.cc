#include "server/constraint.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace kadence::server {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// The mask of one grammar state; asked again for the same state (long texts in a string) it is not made again.
class JsonMask {
 public:
  explicit JsonMask(std::shared_ptr<const TokenTexts> texts) : texts_(std::move(texts)) {}

  bool mask(const JsonGrammar& state, std::span<float> logits) {
    if (!made_ || state_ != state || allowed_.size() != logits.size()) {
      allowed_.assign(logits.size(), 0);
      texts_->walk(state, allowed_);
      state_ = state;
      made_ = true;
    }
    bool any = false;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (allowed_[i] != 0)
        any = true;
      else
        logits[i] = kMinusInf;
    }
    return any;
  }

 private:
  const std::shared_ptr<const TokenTexts> texts_;
  std::vector<uint8_t> allowed_;
  JsonGrammar state_;
  bool made_ = false;
};

class JsonConstraint final : public engine::TokenConstraint {
 public:
  explicit JsonConstraint(std::shared_ptr<const TokenTexts> texts) : texts_(texts), mask_(std::move(texts)) {}
  bool mask(std::span<float> logits) override { return mask_.mask(state_, logits); }
  bool advance(int32_t token) override {
    state_.push(texts_->bytes(token));
    return state_.complete();
  }

 private:
  const std::shared_ptr<const TokenTexts> texts_;
  JsonMask mask_;
  JsonGrammar state_;
};

// One of several texts.
struct OneOf {
  std::vector<std::string_view> rest;
  bool push(unsigned char c) {
    std::erase_if(rest, [c](std::string_view r) { return r.empty() || static_cast<unsigned char>(r[0]) != c; });
    for (std::string_view& r : rest) r.remove_prefix(1);
    return !rest.empty();
  }
  bool complete() const {
    return std::any_of(rest.begin(), rest.end(), [](std::string_view r) { return r.empty(); });
  }
};

class ToolConstraint final : public engine::TokenConstraint {
 public:
  ToolConstraint(std::shared_ptr<const TokenTexts> texts, ToolConstraintOptions options)
      : texts_(texts), options_(std::move(options)), mask_(std::move(texts)) {
    if (!options_.at_once) at_ = At::kText;
  }

  bool mask(std::span<float> logits) override {
    const ToolTokens& t = options_.tokens;
    switch (at_) {
      case At::kText:
        return true;
      case At::kSection:
        return only({t.section_begin}, logits);
      case At::kCall:
        return only({t.call_begin}, logits);
      case At::kId: {
        std::vector<uint8_t> allowed(logits.size(), 0);
        texts_->walk(id_, allowed);
        if (id_.complete()) allowed[static_cast<size_t>(t.argument_begin)] = 1;
        for (size_t i = 0; i < logits.size(); ++i)
          if (allowed[i] == 0) logits[i] = kMinusInf;
        return std::find(allowed.begin(), allowed.end(), 1) != allowed.end();
      }
      case At::kArguments:
        return arguments_.complete() ? only({t.call_end}, logits) : mask_.mask(arguments_, logits);
      case At::kNext:
        return options_.single ? only({t.section_end}, logits) : only({t.call_begin, t.section_end}, logits);
    }
    return true;
  }

  bool advance(int32_t token) override {
    const ToolTokens& t = options_.tokens;
    switch (at_) {
      case At::kText:
        if (token == t.section_begin) at_ = At::kCall;
        return false;
      case At::kSection:
        at_ = At::kCall;
        return false;
      case At::kNext:
        if (token == t.section_end) return true;
        [[fallthrough]];
      case At::kCall:
        begin_call();
        return false;
      case At::kId:
        if (token == t.argument_begin) {
          at_ = At::kArguments;
          arguments_ = JsonGrammar();
        } else {
          for (const char c : texts_->bytes(token)) id_.push(static_cast<unsigned char>(c));
        }
        return false;
      case At::kArguments:
        if (token == t.call_end)
          at_ = At::kNext;
        else
          arguments_.push(texts_->bytes(token));
        return false;
    }
    return false;
  }

 private:
  enum class At { kText, kSection, kCall, kId, kArguments, kNext };

  static bool only(std::initializer_list<int32_t> tokens, std::span<float> logits) {
    for (size_t i = 0; i < logits.size(); ++i)
      if (std::find(tokens.begin(), tokens.end(), static_cast<int32_t>(i)) == tokens.end()) logits[i] = kMinusInf;
    return true;
  }
  void begin_call() {
    at_ = At::kId;
    ids_.clear();
    const std::string index = ":" + std::to_string(options_.first_index + calls_++);
    for (const std::string& name : options_.names) ids_.push_back("functions." + name + index);
    id_.rest.assign(ids_.begin(), ids_.end());
  }

  const std::shared_ptr<const TokenTexts> texts_;
  const ToolConstraintOptions options_;
  At at_ = At::kSection;
  std::vector<std::string> ids_;
  OneOf id_;  // views of ids_
  JsonMask mask_;
  JsonGrammar arguments_;
  int32_t calls_ = 0;
};

}  // namespace

TokenTexts::TokenTexts(const model::Tokenizer& tokenizer) {
  const int32_t vocab = tokenizer.vocab_size();
  position_.assign(static_cast<size_t>(vocab), -1);
  for (int32_t id = 0; id < vocab; ++id) {
    std::string bytes = tokenizer.token_bytes(id, false);
    if (!bytes.empty()) texts_.push_back({std::move(bytes), id, 0});
  }
  std::sort(texts_.begin(), texts_.end(),
            [](const Text& a, const Text& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.id < b.id; });
  for (size_t i = 0; i < texts_.size(); ++i) {
    position_[static_cast<size_t>(texts_[i].id)] = static_cast<int32_t>(i);
    if (i == 0) continue;
    const std::string &a = texts_[i - 1].bytes, &b = texts_[i].bytes;
    texts_[i].shared = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }
}

std::string_view TokenTexts::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= position_.size()) return {};
  const int32_t at = position_[static_cast<size_t>(id)];
  return at < 0 ? std::string_view() : std::string_view(texts_[static_cast<size_t>(at)].bytes);
}

std::unique_ptr<engine::TokenConstraint> json_constraint(std::shared_ptr<const TokenTexts> texts) {
  return std::make_unique<JsonConstraint>(std::move(texts));
}

std::unique_ptr<engine::TokenConstraint> tool_constraint(std::shared_ptr<const TokenTexts> texts,
                                                         ToolConstraintOptions options) {
  return std::make_unique<ToolConstraint>(std::move(texts), std::move(options));
}

}  // namespace kadence::server
