#include "server/choice_text.h"

#include <algorithm>
#include <utility>

namespace kadence::server {

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string StopScanner::push(std::string_view piece) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(piece);
  held_ += piece;
  size_t cut = std::string::npos;
  for (const std::string& s : stops_) cut = std::min(cut, held_.find(s));
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, cut);
    held_.clear();
    return out;
  }
  size_t keep = 0;  // the longest tail that a stop string begins with
  const std::string_view held = held_;
  for (const std::string& s : stops_) {
    for (size_t n = std::min(held.size(), s.size() - 1); n > keep; --n) {
      if (held.substr(held.size() - n) == std::string_view(s).substr(0, n)) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopScanner::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

std::optional<ToolTokens> find_tool_tokens(const model::Tokenizer& tokenizer) {
  const auto id = [&](const char* spelling) { return tokenizer.special_id(spelling).value_or(-1); };
  const ToolTokens t{id("<|tool_calls_section_begin|>"), id("<|tool_calls_section_end|>"), id("<|tool_call_begin|>"),
                     id("<|tool_call_argument_begin|>"), id("<|tool_call_end|>")};
  if (std::min({t.section_begin, t.section_end, t.call_begin, t.argument_begin, t.call_end}) < 0) return std::nullopt;
  return t;
}

std::string tool_name(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.substr(0, kPrefix.size()) == kPrefix) id.remove_prefix(kPrefix.size());
  const size_t colon = id.rfind(':');
  if (colon != std::string_view::npos && colon + 1 < id.size() &&
      id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos)
    id = id.substr(0, colon);
  return std::string(id);
}

ChoiceText::ChoiceText(const model::Tokenizer* tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)), stops_(options_.stop) {
  if (tokenizer_ != nullptr) decoder_.emplace(*tokenizer_);
  decoded_ = visible_ = options_.first_offset;
}

void ChoiceText::show(std::string text) {
  decoded_ += characters(text);
  std::string visible = stops_.push(text);
  visible_ += characters(visible);
  text_ += visible;
}

// Moves through the frame of tool calls; true if `token` belongs to the frame or to a call.
bool ChoiceText::control(int32_t token) {
  const ToolTokens& t = *options_.tools;
  const auto trim = [](std::string& s) {
    const size_t from = s.find_first_not_of(" \t\r\n"), to = s.find_last_not_of(" \t\r\n");
    s = from == std::string::npos ? std::string() : s.substr(from, to - from + 1);
  };
  const auto begin_call = [&] {
    trim(call_id_);
    tools_.push_back({calls_++, true, call_id_, tool_name(call_id_), {}});
  };
  if (token == t.section_begin) {
    show(decoder_->finish());
    state_ = State::kSection;
    return true;
  }
  if (state_ == State::kText) return false;
  if (token == t.section_end) {
    state_ = State::kText;
  } else if (token == t.call_begin) {
    state_ = State::kId;
    call_id_.clear();
    inner_.emplace(*tokenizer_);
  } else if (token == t.argument_begin && state_ == State::kId) {
    call_id_ += inner_->finish();
    begin_call();
    state_ = State::kArguments;
  } else if (token == t.call_end) {
    if (state_ == State::kId) begin_call();
    if (state_ == State::kArguments)
      if (std::string rest = inner_->finish(); !rest.empty()) tools_.push_back({calls_ - 1, false, {}, {}, rest});
    state_ = State::kSection;
  } else if (state_ == State::kId) {
    call_id_ += inner_->push(token);
  } else if (state_ == State::kArguments) {
    if (std::string piece = inner_->push(token); !piece.empty()) tools_.push_back({calls_ - 1, false, {}, {}, piece});
  }
  return true;
}

void ChoiceText::push(int32_t token, float logprob, engine::TopLogProbs top) {
  if (stopped() || finished_) return;
  ++tokens_;
  if (options_.tools && control(token)) return;
  if (options_.keep_entries) entries_.push_back({token, logprob, std::move(top), decoded_});
  if (decoder_) show(decoder_->push(token));
}

void ChoiceText::finish() {
  if (finished_) return;
  finished_ = true;
  if (stopped()) return;
  if (decoder_) show(decoder_->finish());
  std::string rest = stops_.finish();
  visible_ += characters(rest);
  text_ += rest;
}

std::vector<ChoiceText::Entry> ChoiceText::take_entries() {
  if (finished_ && !stopped()) return std::exchange(entries_, {});
  std::vector<Entry> out;
  size_t n = 0;
  while (n < entries_.size() && entries_[n].offset < visible_) out.push_back(std::move(entries_[n++]));
  entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(n));
  return out;
}

}  // namespace kadence::server
