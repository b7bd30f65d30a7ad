#include "engine/testing/fake_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "base/rng.h"

namespace kadence::engine::testing {

namespace {

[[noreturn]] void wrong(const std::string& what) {
  base::throw_error(base::ErrorCode::kInternal, "fake model: " + what);
}
std::string text(int64_t v) { return std::to_string(v); }

// State of one layer, 8 floats that are exact integers: hash in four parts of 16 bits, depth in two, layer, a marker.
constexpr int kStateFloats = 8;
constexpr float kMarker = 77;

void store_state(float* s, const Hash& h, int64_t depth, int32_t layer) {
  for (int i = 0; i < 4; ++i) s[i] = static_cast<float>((h.value >> (16 * i)) & 0xffff);
  s[4] = static_cast<float>(depth & 0xffff), s[5] = static_cast<float>(depth >> 16);
  s[6] = static_cast<float>(layer), s[7] = kMarker;
}

Hash load_state(const float* s, int64_t depth, int32_t layer) {
  for (int i = 0; i < kStateFloats; ++i) {
    if (!std::isfinite(s[i]))
      wrong("a state that nobody wrote (layer " + text(layer) + ", wanted depth " + text(depth) + ")");
  }
  if (s[7] != kMarker || s[6] != static_cast<float>(layer)) wrong("a state of another layer");
  const int64_t found = static_cast<int64_t>(s[4]) + (static_cast<int64_t>(s[5]) << 16);
  if (found != depth) wrong("a state after " + text(found) + " tokens, wanted " + text(depth));
  Hash h;
  h.value = 0;
  for (int i = 0; i < 4; ++i) h.value |= static_cast<uint64_t>(s[i]) << (16 * i);
  return h;
}

}  // namespace

void Hash::extend(int32_t token) { value = base::mix64(value * 31 + static_cast<uint64_t>(token) + 1); }
void Hash::step(int32_t token) { value = base::mix64(value * 37 + static_cast<uint64_t>(token) + 5); }

std::vector<float> fake_logits(const Hash& hash) {
  std::vector<float> logits(kVocab);
  for (int32_t v = 0; v < kVocab; ++v) {
    logits[static_cast<size_t>(v)] =
        static_cast<float>(base::mix64(hash.value ^ (static_cast<uint64_t>(v) + 1) * 0x9e3779b97f4a7c15ull) % 1021) /
        128.0f;
  }
  return logits;
}

FakeModel::FakeModel(const FakeOptions& o) {
  config_.architecture = "fake";
  config_.vocab = kVocab;
  config_.layers = o.kda_layers + o.attention_layers;
  config_.max_context = 100000;
  config_.kda.H = config_.kda.HV = 1, config_.kda.K = kStateFloats, config_.kda.V = 1;
  config_.mla.kv_lora_rank = 2, config_.mla.rope_dim = 1;
  config_.layer_kinds.assign(static_cast<size_t>(o.kda_layers), model::LayerKind::kKda);
  config_.layer_kinds.resize(static_cast<size_t>(config_.layers), model::LayerKind::kFullAttention);
  config_.eos_ids = {kEos};
}

void FakeModel::prepare(const model::ForwardOptions& options, device::Stream&) { options_ = options; }

// The aliasing rules of the operators, over the whole call.
void FakeModel::check_aliasing(const model::ForwardBatch& b) const {
  std::set<int32_t> written;
  const auto write = [&](int32_t slot) {
    if (slot < 0) wrong("a row without a slot to write");
    if (!written.insert(slot).second) wrong("slot " + text(slot) + " has two writers");
  };
  for (const int32_t s : b.state_out) write(s);
  for (const int32_t s : b.ckpt_slot) write(s);
  for (size_t i = 0; i < b.start.size(); ++i) {
    if (b.state_in[i] != b.state_out[i] && written.contains(b.state_in[i]))
      wrong("slot " + text(b.state_in[i]) + " is read and written by different rows");
  }
}

void FakeModel::run_row(const model::ForwardBatch& b, int32_t row, const model::CacheViews& c,
                        std::vector<std::vector<float>>& logits) {
  const auto i = static_cast<size_t>(row);
  const bool prefill = b.phase == ops::GemmPhase::kPrefill;
  const int64_t start = b.start[i], len = b.seq_begin[i + 1] - b.seq_begin[i];
  if (len < 1) wrong("an empty row");
  if (prefill && start % 64 != 0) wrong("a prefill row that starts off the grid, at " + text(start));
  if (!prefill && len != 1) wrong("a decode row of " + text(len) + " tokens");
  const auto layers = c.states.layers;
  float* states = static_cast<float*>(c.states.base);
  float* windows = static_cast<float*>(c.windows.base);
  const auto state_at = [&](int32_t slot, int32_t layer) {
    return states + slot * c.states.slot_pitch + layer * c.states.layer_pitch;
  };
  const auto window_at = [&](int32_t slot, int32_t layer) {
    return windows + slot * c.windows.slot_pitch + layer * c.windows.layer_pitch;
  };
  const auto page_row = [&](int64_t position) {
    const int64_t p = position / c.latents.page_size;
    if (p >= b.max_pages) wrong("position " + text(position) + " is beyond the page table");
    const int32_t page = b.page_table[i * static_cast<size_t>(b.max_pages) + static_cast<size_t>(p)];
    if (page < 0 || page >= c.latents.pages) wrong("page " + text(page) + " at position " + text(position));
    return static_cast<float*>(c.latents.base) + page * c.latents.page_pitch + position % c.latents.page_size * 3;
  };

  // What came before, told by the pages; the state must agree.
  Hash h;
  std::vector<float> tokens_seen;
  for (int64_t t = 0; t < start; ++t) {
    const float* r = page_row(t);
    if (!(r[1] == static_cast<float>(t)))
      wrong("the page row of position " + text(t) + " holds " + std::to_string(r[1]));
    if (r[2] == 1)
      h.extend(static_cast<int32_t>(r[0]));
    else if (r[2] == 2)
      h.step(static_cast<int32_t>(r[0]));
    else
      wrong("the page row of position " + text(t) + " was written by nobody");
    tokens_seen.push_back(r[0]);
  }
  if (start > 0) {
    if (b.state_in[i] < 0) wrong("a row starts at " + text(start) + " without a state");
    for (int32_t l = 0; l < layers; ++l) {
      if (load_state(state_at(b.state_in[i], l), start, l).value != h.value)
        wrong("state and pages disagree about tokens [0, " + text(start) + ")");
      for (int64_t w = 0; w < 3; ++w) {
        const int64_t t = start - 3 + w;
        const float want = t >= 0 ? tokens_seen[static_cast<size_t>(t)] : -1;
        if (!(window_at(b.state_in[i], l)[w] == want)) wrong("window entry " + text(w) + " at depth " + text(start));
      }
    }
  } else if (b.state_in[i] != -1) {
    wrong("a fresh row reads slot " + text(b.state_in[i]));
  }

  const auto store = [&](int32_t slot, int64_t depth) {
    if (slot < 0 || slot >= c.states.slots) wrong("slot " + text(slot));
    for (int32_t l = 0; l < layers; ++l) {
      store_state(state_at(slot, l), h, depth, l);
      for (int64_t w = 0; w < 3; ++w) {
        const int64_t t = depth - 3 + w;
        window_at(slot, l)[w] = t >= 0 ? tokens_seen[static_cast<size_t>(t)] : -1;
      }
    }
  };
  int32_t next = b.ckpt_begin[i];
  for (int64_t t = 0; t < len; ++t) {
    const int64_t packed = b.seq_begin[i] + t;
    const int32_t token = b.tokens[static_cast<size_t>(packed)];
    prefill ? h.extend(token) : h.step(token);
    tokens_seen.push_back(static_cast<float>(token));
    float* r = page_row(start + t);
    r[0] = static_cast<float>(token), r[1] = static_cast<float>(start + t), r[2] = prefill ? 1 : 2;
    while (next < b.ckpt_begin[i + 1] && b.ckpt_depth[static_cast<size_t>(next)] == t + 1) {
      if ((t + 1) % 64 != 0) wrong("a checkpoint off the grid");
      store(b.ckpt_slot[static_cast<size_t>(next++)], start + t + 1);
    }
    if (std::binary_search(b.logit_tokens.begin(), b.logit_tokens.end(), packed)) {
      std::vector<float> l = fake_logits(h);
      if (nan_at && nan_at(start + t, token)) l[7] = std::numeric_limits<float>::quiet_NaN();
      logits.push_back(std::move(l));
    }
  }
  if (next != b.ckpt_begin[i + 1]) wrong("a checkpoint that no token reaches");
  store(b.state_out[i], start + len);
}

void FakeModel::forward(const model::ForwardBatch& b, const model::CacheViews& c, const model::LogitsSink& sink,
                        device::Stream&) {
  if (on_forward) on_forward(b);
  if (fail_in == 0) {
    fail_in = -1;
    base::throw_error(base::ErrorCode::kDevice, "planted failure");
  }
  if (fail_in > 0) --fail_in;
  if (b.rows() < 1) wrong("an empty batch");
  if (b.rows() > options_.limits.max_rows) wrong("more rows than prepared for");
  if (static_cast<int64_t>(b.tokens.size()) > options_.limits.max_tokens) wrong("more tokens than prepared for");
  if (static_cast<int64_t>(b.ckpt_slot.size()) > options_.limits.max_checkpoints)
    wrong("more checkpoints than prepared for");
  if (!std::is_sorted(b.logit_tokens.begin(), b.logit_tokens.end())) wrong("logit tokens out of order");
  check_aliasing(b);
  calls.push_back({b.phase, b.rows(), static_cast<int64_t>(b.tokens.size())});
  std::vector<std::vector<float>> logits;
  for (int32_t i = 0; i < b.rows(); ++i) run_row(b, i, c, logits);
  if (logits.size() != b.logit_tokens.size())
    wrong("logits of " + text(static_cast<int64_t>(logits.size())) + " tokens");
  constexpr size_t kSlab = 5;  // small and odd, so that slabs end inside rows
  for (size_t first = 0; first < logits.size(); first += kSlab) {
    const size_t count = std::min(kSlab, logits.size() - first);
    std::vector<float> slab;
    for (size_t j = 0; j < count; ++j) slab.insert(slab.end(), logits[first + j].begin(), logits[first + j].end());
    sink(static_cast<int64_t>(first), static_cast<int64_t>(count), slab.data());
  }
}

MemoryPlan fake_plan(const FakeModel& model, EngineOptions& options, int32_t slots, int64_t pages, int64_t context) {
  options.state_slots = slots;
  options.kv_tokens = pages * options.page_size;
  options.context_length = context;
  return size_pools({model::cache_shape(model.config()), model.config().max_context, 1000, 500}, options,
                    device::cpu_info(1));
}

RequestOutput naive_run(const RequestSpec& spec, int64_t max_new) {
  if (max_new < 0) max_new = spec.max_tokens;
  RequestOutput out;
  const auto n = static_cast<int64_t>(spec.ids.size());
  out.prompt_tokens = n;
  Hash h;
  for (int64_t t = 0; t < n; ++t) {
    if (spec.score_from >= 1 && t >= spec.score_from) {
      const std::vector<float> l = fake_logits(h);
      out.logprobs.push_back(ops::log_prob(l, spec.ids[static_cast<size_t>(t)]));
      if (spec.top_logprobs > 0) out.top_logprobs.push_back(ops::top_log_probs(l, spec.top_logprobs));
    }
    h.extend(spec.ids[static_cast<size_t>(t)]);
  }
  std::vector<float> scratch;
  for (int64_t i = 0; i < max_new; ++i) {
    const std::vector<float> l = fake_logits(h);
    const int32_t token = ops::sample(l, {spec.ids, out.output_ids}, spec.sampling, static_cast<uint64_t>(i), scratch);
    const bool stop = (!spec.ignore_eos && token == kEos) ||
                      std::find(spec.stop_ids.begin(), spec.stop_ids.end(), token) != spec.stop_ids.end();
    if (stop) {
      out.reason = FinishReason::kStop;
      return out;
    }
    out.output_ids.push_back(token);
    if (spec.output_logprobs) out.output_logprobs.push_back(ops::log_prob(l, token));
    if (spec.top_logprobs > 0) out.output_top_logprobs.push_back(ops::top_log_probs(l, spec.top_logprobs));
    h.step(token);
  }
  return out;
}

}  // namespace kadence::engine::testing
