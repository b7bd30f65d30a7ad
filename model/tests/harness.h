// Small pools around a model for tests: sequences with their slot and pages, prefill and decode calls. All cache memory
// starts as NaN, so that reading what nothing wrote shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "model/json.h"
#include "model/model.h"
#include "model/tests/temp_dir.h"

namespace kadence::model {

struct Sequence {
  int32_t slot = -1;
  std::vector<int32_t> pages;
  int64_t done = 0;
  int32_t restored = -1;  // slot to read the state from at the next prefill instead of `slot`
};

struct Checkpoint64 {
  int32_t depth, slot;  // tokens since the row's start
};

struct PrefillRow {
  Sequence* sequence;
  std::vector<int32_t> tokens;
  std::vector<Checkpoint64> checkpoints = {};
};

// The instruction set that KADENCE_TEST_ISA names, for matrix products too; the machine's best one without it.
inline device::Isa test_isa() {
  static const device::Isa isa = [] {
    const char* name = std::getenv("KADENCE_TEST_ISA");
    const device::Isa wanted = device::resolve_isa(device::parse_isa(name ? name : "auto"));
    ops::set_gemm_isa(wanted);
    return wanted;
  }();
  return isa;
}

class Harness {
 public:
  static constexpr int kSlots = 12, kPageSize = 64;

  Harness(const std::filesystem::path& dir, int threads, ForwardOptions options = small_options(), int64_t pages = 64)
      : stream_(device::Stream::cpu(threads, test_isa())),
        model_(load_model(dir, {}, stream_)),
        shape_(cache_shape(model_->config())) {
    model_->prepare(options, stream_);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    state_size_ = int64_t{shape_.HV} * shape_.V * shape_.K, window_size_ = int64_t{3} * shape_.conv_channels;
    states_.assign(static_cast<size_t>(kSlots * shape_.kda_layers * state_size_), nan);
    windows_.assign(static_cast<size_t>(kSlots * shape_.kda_layers * window_size_), nan);
    latents_.assign(static_cast<size_t>(shape_.attention_layers * pages * kPageSize * shape_.latent_width), nan);
    pages_ = pages;
    caches_.states = {states_.data(),    base::DType::kF32, kSlots, shape_.kda_layers * state_size_,
                      shape_.kda_layers, state_size_};
    caches_.windows = {windows_.data(),   base::DType::kF32, kSlots, shape_.kda_layers * window_size_,
                       shape_.kda_layers, window_size_};
    caches_.latents = {latents_.data(), base::DType::kF32, pages, int64_t{kPageSize} * shape_.latent_width, kPageSize};
    caches_.latent_layer_pitch = pages * kPageSize * shape_.latent_width;
  }

  static ForwardOptions small_options() {
    ForwardOptions o;
    o.limits = {16, 1024, 16, 1024};
    return o;
  }

  Model& model() { return *model_; }
  device::Stream& stream() { return stream_; }
  CacheViews& caches() { return caches_; }
  int32_t vocab() const { return model_->config().vocab; }

  int32_t new_slot() { return next_slot_++; }
  Sequence open(int64_t max_tokens) {
    Sequence s;
    s.slot = new_slot();
    for (int64_t i = 0; i * kPageSize < max_tokens; ++i) s.pages.push_back(next_page_++);
    EXPECT_LE(next_slot_, kSlots);
    EXPECT_LE(next_page_, pages_);
    return s;
  }

  ForwardBatch batch(const std::vector<PrefillRow>& rows, ops::GemmPhase phase) const {
    ForwardBatch b;
    b.phase = phase;
    b.seq_begin = {0};
    b.ckpt_begin = {0};
    for (const PrefillRow& r : rows)
      b.max_pages = std::max<int64_t>(b.max_pages, static_cast<int64_t>(r.sequence->pages.size()));
    for (const PrefillRow& r : rows) {
      const Sequence& s = *r.sequence;
      b.tokens.insert(b.tokens.end(), r.tokens.begin(), r.tokens.end());
      b.seq_begin.push_back(static_cast<int64_t>(b.tokens.size()));
      b.start.push_back(s.done);
      b.state_in.push_back(s.restored >= 0 ? s.restored : s.done == 0 ? -1 : s.slot);
      b.state_out.push_back(s.slot);
      for (const Checkpoint64& c : r.checkpoints) b.ckpt_depth.push_back(c.depth), b.ckpt_slot.push_back(c.slot);
      b.ckpt_begin.push_back(static_cast<int32_t>(b.ckpt_depth.size()));
      std::vector<int32_t> pages = s.pages;
      pages.resize(static_cast<size_t>(b.max_pages), -1);
      b.page_table.insert(b.page_table.end(), pages.begin(), pages.end());
    }
    b.logit_tokens.resize(b.tokens.size());
    std::iota(b.logit_tokens.begin(), b.logit_tokens.end(), 0);
    return b;
  }

  // Logits of every token, row by row: [tokens of the row, vocab].
  std::vector<std::vector<float>> run(const std::vector<PrefillRow>& rows, ops::GemmPhase phase) {
    const ForwardBatch b = batch(rows, phase);
    const std::vector<float> all = forward(b);
    std::vector<std::vector<float>> out;
    for (size_t i = 0; i < rows.size(); ++i) {
      out.emplace_back(all.begin() + b.seq_begin[i] * vocab(), all.begin() + b.seq_begin[i + 1] * vocab());
      rows[i].sequence->done += static_cast<int64_t>(rows[i].tokens.size());
      rows[i].sequence->restored = -1;
    }
    return out;
  }
  std::vector<std::vector<float>> prefill(const std::vector<PrefillRow>& rows) {
    return run(rows, ops::GemmPhase::kPrefill);
  }
  std::vector<float> prefill(Sequence& s, const std::vector<int32_t>& tokens) { return prefill({{&s, tokens}})[0]; }
  std::vector<float> step(Sequence& s, int32_t token) { return run({{&s, {token}}}, ops::GemmPhase::kDecode)[0]; }

  std::vector<float> forward(const ForwardBatch& b) {
    std::vector<float> all(b.logit_tokens.size() * static_cast<size_t>(vocab()),
                           std::numeric_limits<float>::quiet_NaN());
    int64_t next = 0;
    model_->forward(
        b, caches_,
        [&](int64_t first, int64_t rows, const float* logits) {
          EXPECT_EQ(first, next);
          next += rows;
          std::copy(logits, logits + rows * vocab(), all.begin() + first * vocab());
        },
        stream_);
    EXPECT_EQ(next, static_cast<int64_t>(b.logit_tokens.size()));
    return all;
  }

  // State and window of a slot, all layers.
  std::vector<float> cache_of(int32_t slot) const {
    std::vector<float> v(states_.begin() + slot * shape_.kda_layers * state_size_,
                         states_.begin() + (slot + 1) * shape_.kda_layers * state_size_);
    v.insert(v.end(), windows_.begin() + slot * shape_.kda_layers * window_size_,
             windows_.begin() + (slot + 1) * shape_.kda_layers * window_size_);
    return v;
  }

 private:
  device::Stream stream_;
  std::unique_ptr<Model> model_;
  CacheShape shape_;
  std::vector<float> states_, windows_, latents_;
  CacheViews caches_;
  int64_t state_size_ = 0, window_size_ = 0, pages_ = 0;
  int32_t next_slot_ = 0, next_page_ = 0;
};

inline double log_prob_of(const float* logits, int32_t vocab, int32_t token) {
  const double top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int32_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return static_cast<double>(logits[token]) - top - std::log(sum);
}
inline int32_t argmax(const float* logits, int32_t vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
}

}  // namespace kadence::model
