#include "model/kimi_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "ops/attention.h"
#include "ops/conv1d.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace kadence::model {
namespace {

// Runs fn(begin, end) over [0, n) in blocks, spread over the workers when there is more than one block.
template <class F>
void for_blocks(device::Stream& stream, int64_t n, int64_t block, const F& fn) {
  if (n <= block || stream.info().threads == 1) {
    if (n > 0) fn(int64_t{0}, n);
    return;
  }
  stream.parallel_for(base::ceil_div(n, block), [&](int64_t i, int) { fn(i * block, std::min(n, (i + 1) * block)); });
}

// One small product a head, x and y of head h at h*x_head and h*y_head. Every tile has its phase's fixed height.
void run_heads(ops::GemmPhase phase, const std::vector<ops::Linear>& heads, const float* x, int64_t x_pitch,
               int64_t x_head, float* y, int64_t y_pitch, int64_t y_head, int64_t rows, std::byte* workspace,
               device::Stream& stream) {
  const int64_t m = ops::gemm_rows(phase), tiles = base::ceil_div(rows, m), count = static_cast<int64_t>(heads.size());
  const size_t worker_bytes = heads[0].tile_workspace_bytes();
  const auto task = [&](int64_t i, int worker) {
    const int64_t tile = i / count, h = i % count, row = tile * m;
    heads[static_cast<size_t>(h)].run_tile(phase, x + row * x_pitch + h * x_head, x_pitch,
                                           y + row * y_pitch + h * y_head, y_pitch, std::min(m, rows - row),
                                           workspace + static_cast<size_t>(worker) * worker_bytes);
  };
  // Waking the workers costs as much as some million multiply-adds.
  if (stream.info().threads == 1 || tiles * count * m * heads[0].in() * heads[0].out() < 4'000'000)
    for (int64_t i = 0; i < tiles * count; ++i) task(i, 0);
  else
    stream.parallel_for(tiles * count, task);
}

template <class View>
View layer_view(View v, int32_t layer) {
  v.base = static_cast<std::byte*>(v.base) + static_cast<size_t>(layer * v.layer_pitch) * base::size_of(v.dtype);
  v.layers = 1;
  return v;
}

std::string at_index(const char* what, int64_t i) { return std::string(what) + "[" + std::to_string(i) + "]"; }

}  // namespace

// What one forward needs to know everywhere.
struct KimiLinear::Call {
  const ForwardBatch& batch;
  const CacheViews& caches;
  device::Stream& stream;
  ops::GemmPhase phase;
  int64_t tokens;
  ops::KdaMetadata metadata;  // prefill
  ops::AttentionBatch attention;
};

void KimiLinear::validate(const ForwardBatch& b, const CacheViews& caches) const {
  using base::throw_invalid;
  if (!workspace_.data()) throw_invalid("forward", "prepare() first", "an unprepared model");
  const auto want_size = [](const char* what, size_t wanted, size_t got) {
    if (wanted != got) throw_invalid(std::string("size of ") + what, std::to_string(wanted), std::to_string(got));
  };
  const size_t N = b.start.size();
  const auto T = static_cast<int64_t>(b.tokens.size());
  const bool prefill = b.phase == ops::GemmPhase::kPrefill;
  if (N > static_cast<size_t>(options_.limits.max_rows))
    throw_invalid("rows", "at most limits.max_rows " + std::to_string(options_.limits.max_rows), std::to_string(N));
  const int64_t most = prefill ? options_.limits.max_tokens : options_.limits.max_rows;
  if (T > most)
    throw_invalid("tokens", "at most " + std::to_string(most) + " of the prepared limits", std::to_string(T));
  want_size("seq_begin", N + 1, b.seq_begin.size());
  want_size("state_in", N, b.state_in.size());
  want_size("state_out", N, b.state_out.size());
  if (prefill) want_size("ckpt_slot", b.ckpt_depth.size(), b.ckpt_slot.size());
  if (b.ckpt_depth.size() > static_cast<size_t>(options_.limits.max_checkpoints))
    throw_invalid("checkpoints", "at most limits.max_checkpoints " + std::to_string(options_.limits.max_checkpoints),
                  std::to_string(b.ckpt_depth.size()));
  if (!b.ckpt_begin.empty() || !b.ckpt_depth.empty()) want_size("ckpt_begin", N + 1, b.ckpt_begin.size());
  if (!prefill && !b.ckpt_depth.empty())
    throw_invalid("checkpoints of decode", "none", std::to_string(b.ckpt_depth.size()));
  if (b.seq_begin[0] != 0 || b.seq_begin[N] != T)
    throw_invalid("seq_begin", "0 to the number of tokens " + std::to_string(T), std::to_string(b.seq_begin[N]));
  for (int64_t t = 0; t < T; ++t)
    if (b.tokens[static_cast<size_t>(t)] < 0 || b.tokens[static_cast<size_t>(t)] >= config_.vocab)
      throw_invalid(at_index("tokens", t), "an id in the vocabulary of " + std::to_string(config_.vocab),
                    std::to_string(b.tokens[static_cast<size_t>(t)]));

  const bool has_kda = config_.kda_layers() > 0, has_attention = config_.attention_layers() > 0;
  for (size_t i = 0; i < N; ++i) {
    const int64_t length = b.seq_begin[i + 1] - b.seq_begin[i];
    if (prefill ? length < 0 : length != 1)
      throw_invalid(at_index("seq_begin", static_cast<int64_t>(i + 1)),
                    prefill ? "offsets that do not decrease" : "one token a row in decode",
                    std::to_string(b.seq_begin[i + 1]));
    if (b.start[i] < 0 || (prefill && b.start[i] % ops::kChunkTokens != 0))
      throw_invalid(at_index("start", static_cast<int64_t>(i)), "a position on the 64-token grid",
                    std::to_string(b.start[i]));
    if (has_kda && b.state_in[i] == -1 && (!prefill || b.start[i] > 0))
      throw_invalid(at_index("state_in", static_cast<int64_t>(i)),
                    "a slot: the row continues at position " + std::to_string(b.start[i]), "-1");
    if (has_kda && !prefill &&
        (b.state_in[i] < 0 || b.state_in[i] >= caches.states.slots || b.state_out[i] < 0 ||
         b.state_out[i] >= caches.states.slots))
      throw_invalid(at_index("state_in and state_out", static_cast<int64_t>(i)),
                    "slots below " + std::to_string(caches.states.slots),
                    std::to_string(b.state_in[i]) + " and " + std::to_string(b.state_out[i]));
    if (has_attention && length > 0) {
      const int64_t pages = base::ceil_div<int64_t>(b.start[i] + length, std::max(1, caches.latents.page_size));
      if (pages > b.max_pages)
        throw_invalid("max_pages", "the " + std::to_string(pages) + " pages of row " + std::to_string(i),
                      std::to_string(b.max_pages));
    }
  }
  if (has_kda) {
    if (caches.states.dtype != options_.state_dtype)
      throw_invalid("states dtype", base::to_string(options_.state_dtype), base::to_string(caches.states.dtype));
    if (caches.windows.dtype != base::DType::kF32)
      throw_invalid("windows dtype", "float32", base::to_string(caches.windows.dtype));
    if (caches.states.layers != config_.kda_layers() || caches.windows.layers != config_.kda_layers())
      throw_invalid("layers of states and windows", std::to_string(config_.kda_layers()),
                    std::to_string(caches.states.layers) + " and " + std::to_string(caches.windows.layers));
    if (caches.states.slots != caches.windows.slots)
      throw_invalid("slots of windows", "those of the states, " + std::to_string(caches.states.slots),
                    std::to_string(caches.windows.slots));
  }
  if (has_attention) {
    if (caches.latents.page_size < 1) throw_invalid("page_size", "1 or more", std::to_string(caches.latents.page_size));
    want_size("page_table", N * static_cast<size_t>(b.max_pages), b.page_table.size());
    for (size_t i = 0; i < N; ++i) {
      const int64_t length = b.seq_begin[i + 1] - b.seq_begin[i];
      const int64_t pages = length > 0 ? base::ceil_div<int64_t>(b.start[i] + length, caches.latents.page_size) : 0;
      for (int64_t j = 0; j < pages; ++j) {
        const int32_t page = b.page_table[i * static_cast<size_t>(b.max_pages) + static_cast<size_t>(j)];
        if (page < 0 || page >= caches.latents.pages)
          throw_invalid("page " + std::to_string(j) + " of row " + std::to_string(i),
                        "a page below " + std::to_string(caches.latents.pages), std::to_string(page));
      }
    }
  }
  if (b.logit_tokens.size() > static_cast<size_t>(options_.limits.max_logit_rows))
    throw_invalid("logit_tokens", "at most limits.max_logit_rows " + std::to_string(options_.limits.max_logit_rows),
                  std::to_string(b.logit_tokens.size()));
  int64_t before = -1;
  for (size_t i = 0; i < b.logit_tokens.size(); before = b.logit_tokens[i++])
    if (b.logit_tokens[i] <= before || b.logit_tokens[i] >= T)
      throw_invalid(at_index("logit_tokens", static_cast<int64_t>(i)),
                    "ascending token indices below " + std::to_string(T), std::to_string(b.logit_tokens[i]));
}

void KimiLinear::embed(const Call& c) const {
  const WeightLoader::Table& table = weights_.embedding;
  const int64_t D = config_.hidden;
  float* hidden = at<float>(plan_.hidden);
  for_blocks(c.stream, c.tokens, 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = int64_t{c.batch.tokens[static_cast<size_t>(t)]} * D;
      float* dst = hidden + t * D;
      if (table.dtype == base::DType::kF32) {
        std::memcpy(dst, table.data.as<float>() + row, static_cast<size_t>(D) * sizeof(float));
      } else {
        const uint16_t* src = table.data.as<uint16_t>() + row;
        const bool bf16 = table.dtype == base::DType::kBF16;
        for (int64_t d = 0; d < D; ++d) dst[d] = bf16 ? base::bf16_to_f32(src[d]) : base::f16_to_f32(src[d]);
      }
    }
  });
}

// The norm and the first, stacked product of a layer.
void KimiLinear::open_layer(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const {
  const int64_t D = config_.hidden;
  float* norm = at<float>(plan_.norm);
  ops::rms_norm(at<float>(plan_.hidden) + first * D, D, w.attention_norm.data(), config_.rms_eps, norm, D, rows, D,
                c.stream);
  const ops::Linear& in = w.kind == LayerKind::kKda ? w.kda.in : w.mla.in;
  in.run(c.phase, norm, D, at<float>(plan_.in) + first * plan_.in_pitch, plan_.in_pitch, rows, at<void>(plan_.scratch),
         c.stream);
}

void KimiLinear::mix_kda(const Call& c, const LayerWeights& w) const {
  const KdaConfig& k = config_.kda;
  const KdaColumns columns(k);
  const int64_t qk = int64_t{k.H} * k.K;
  float *in = at<float>(plan_.in), *mixed = at<float>(plan_.mixed), *out = at<float>(plan_.out);
  const ops::StateView states = layer_view(c.caches.states, w.cache_layer);
  const ops::WindowView windows = layer_view(c.caches.windows, w.cache_layer);
  ops::Conv1dArgs conv;
  conv.x = {in, plan_.in_pitch};
  conv.y = {mixed, plan_.mixed_pitch};
  conv.channels = static_cast<int32_t>(columns.channels);
  conv.weight = w.kda.conv.data();
  ops::ConstTokenTensor decay{in + columns.decay, plan_.in_pitch};
  if (w.kda.decay) {
    float* full = at<float>(plan_.decay);
    w.kda.decay.run(c.phase, in + columns.decay, plan_.in_pitch, full, plan_.decay_pitch, c.tokens,
                    at<void>(plan_.scratch), c.stream);
    decay = {full, plan_.decay_pitch};
  }
  const auto fill = [&](auto& a) {
    a.q = {mixed, plan_.mixed_pitch};
    a.k = {mixed + qk, plan_.mixed_pitch};
    a.v = {mixed + 2 * qk, plan_.mixed_pitch};
    a.decay = decay;
    a.beta = {in + columns.beta, plan_.in_pitch};
    a.A_log = w.kda.A_log.data();
    a.dt_bias = w.kda.dt_bias.data();
    a.out = {out, plan_.out_pitch};
    a.state_in = a.state_out = states;
    a.workspace = at<void>(plan_.scratch);
  };
  if (c.phase == ops::GemmPhase::kPrefill) {
    ops::run_conv1d(plan_.extend, ops::Conv1dExtendArgs{conv, c.tokens, c.metadata, windows, windows, windows},
                    c.stream);
    ops::KdaExtendArgs a;
    fill(a);
    a.tokens = c.tokens;
    a.metadata = c.metadata;
    a.checkpoints = states;
    ops::run_kda(plan_.extend, a, c.stream);
  } else {
    const int32_t *slot_in = c.batch.state_in.data(), *slot_out = c.batch.state_out.data();
    ops::run_conv1d(ops::Conv1dStepArgs{conv, c.batch.rows(), slot_in, slot_out, windows, windows}, c.stream);
    ops::KdaStepArgs a;
    fill(a);
    a.rows = c.batch.rows();
    a.slot_in = slot_in, a.slot_out = slot_out;
    ops::run_kda(plan_.step, a, c.stream);
  }
}

void KimiLinear::close_kda(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const {
  const KdaConfig& k = config_.kda;
  const KdaColumns columns(k);
  const float* z = at<float>(plan_.in) + first * plan_.in_pitch + columns.gate;
  int64_t z_pitch = plan_.in_pitch;
  if (w.kda.gate) {
    float* full = at<float>(plan_.gate);
    w.kda.gate.run(c.phase, z, z_pitch, full, plan_.gate_pitch, rows, at<void>(plan_.scratch), c.stream);
    z = full, z_pitch = plan_.gate_pitch;
  }
  float* out = at<float>(plan_.out) + first * plan_.out_pitch;
  ops::gated_rms_norm(out, plan_.out_pitch, z, z_pitch, w.kda.norm.data(), config_.rms_eps, out, plan_.out_pitch, rows,
                      k.HV, k.V, c.stream);
  w.kda.out.run(c.phase, out, plan_.out_pitch, at<float>(plan_.result), config_.hidden, rows, at<void>(plan_.scratch),
                c.stream);
}

// Latent attention in its absorbed form: queries go through the key half of kv_b, so that keys and values are the
// cached latents themselves. Reads them from the pages only, the rows of this batch included.
void KimiLinear::mix_attention(const Call& c, const LayerWeights& w) const {
  const MlaConfig& m = config_.mla;
  const MlaColumns columns(m);
  const int64_t R = m.kv_lora_rank, P = m.rope_dim, row = R + P, q_head = int64_t{m.nope_dim} + P;
  float *in = at<float>(plan_.in), *latent = in + columns.latent, *absorbed = at<float>(plan_.mixed);
  auto* scratch = at<std::byte>(plan_.scratch);
  ops::rms_norm(latent, plan_.in_pitch, w.mla.latent_norm.data(), config_.latent_eps, latent, plan_.in_pitch, c.tokens,
                R, c.stream);
  const int64_t* positions = at<int64_t>(plan_.positions);
  if (m.rotary)
    ops::rope(latent + R, plan_.in_pitch, 1, m.rope_dim, positions, c.tokens, m.rope_theta, m.rope_interleaved,
              c.stream);

  ops::LatentPages pages = c.caches.latents;
  pages.base = static_cast<std::byte*>(pages.base) +
               static_cast<size_t>(w.cache_layer * c.caches.latent_layer_pitch) * base::size_of(pages.dtype);
  const ops::AttentionShape shape{m.heads, m.kv_lora_rank, m.rope_dim,
                                  static_cast<float>(1.0 / std::sqrt(static_cast<double>(q_head)))};
  ops::write_latents(shape, c.attention, latent, plan_.in_pitch, pages, c.stream);

  for (int64_t first = 0; first < c.tokens; first += plan_.slab) {
    const int64_t rows = std::min(plan_.slab, c.tokens - first);
    float* q = in + first * plan_.in_pitch;
    int64_t q_pitch = plan_.in_pitch;
    if (w.mla.q_b) {
      ops::rms_norm(q, q_pitch, w.mla.q_norm.data(), config_.latent_eps, q, q_pitch, rows, m.q_lora_rank, c.stream);
      float* full = at<float>(plan_.gate);
      w.mla.q_b.run(c.phase, q, q_pitch, full, plan_.gate_pitch, rows, scratch, c.stream);
      q = full, q_pitch = plan_.gate_pitch;
    }
    float* y = absorbed + first * plan_.mixed_pitch;
    run_heads(c.phase, w.mla.key_up, q, q_pitch, q_head, y, plan_.mixed_pitch, row, rows, scratch, c.stream);
    for_blocks(c.stream, rows, 512, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < m.heads; ++h)
          std::memcpy(y + t * plan_.mixed_pitch + h * row + R, q + t * q_pitch + h * q_head + m.nope_dim,
                      static_cast<size_t>(P) * sizeof(float));
    });
    if (m.rotary)
      for (int64_t h = 0; h < m.heads; ++h)
        ops::rope(y + h * row + R, plan_.mixed_pitch, 1, m.rope_dim, positions + first, rows, m.rope_theta,
                  m.rope_interleaved, c.stream);
  }
  ops::latent_attention(c.phase, shape, c.attention, absorbed, plan_.mixed_pitch, pages, at<float>(plan_.out),
                        plan_.out_pitch, scratch, c.stream);
}

void KimiLinear::close_attention(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const {
  const MlaConfig& m = config_.mla;
  float* values = at<float>(plan_.gate);
  run_heads(c.phase, w.mla.value_up, at<float>(plan_.out) + first * plan_.out_pitch, plan_.out_pitch, m.kv_lora_rank,
            values, plan_.gate_pitch, m.v_dim, rows, at<std::byte>(plan_.scratch), c.stream);
  if (m.output_gate) {
    const float* z = at<float>(plan_.in) + first * plan_.in_pitch + MlaColumns(m).gate;
    const int64_t width = int64_t{m.heads} * m.v_dim;
    for_blocks(c.stream, rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t i = 0; i < width; ++i)
          values[t * plan_.gate_pitch + i] /= 1.0f + std::exp(-z[t * plan_.in_pitch + i]);
    });
  }
  w.mla.out.run(c.phase, values, plan_.gate_pitch, at<float>(plan_.result), config_.hidden, rows,
                at<void>(plan_.scratch), c.stream);
}

void KimiLinear::feed_forward(const Call& c, const LayerWeights& w, int64_t first, int64_t rows) const {
  const int64_t D = config_.hidden, inner = w.ffn.inner;
  float *hidden = at<float>(plan_.hidden) + first * D, *norm = at<float>(plan_.norm), *result = at<float>(plan_.result);
  float *ffn = at<float>(plan_.ffn), *act = at<float>(plan_.inner);
  void* scratch = at<void>(plan_.scratch);
  ops::rms_norm(hidden, D, w.ffn_norm.data(), config_.rms_eps, norm, D, rows, D, c.stream);
  w.ffn.in.run(c.phase, norm, D, ffn, plan_.ffn_pitch, rows, scratch, c.stream);
  if (inner > 0) {
    ops::gated_activation(config_.activation, ffn, plan_.ffn_pitch, act, plan_.inner_pitch, rows, inner, c.stream);
    w.ffn.down.run(c.phase, act, plan_.inner_pitch, result, D, rows, scratch, c.stream);
  } else {
    std::memset(result, 0, static_cast<size_t>(rows * D) * sizeof(float));
  }
  if (!w.ffn.experts.down.empty()) {
    const ops::RouterShape& router = config_.moe.router;
    auto* ids = at<int32_t>(plan_.expert_ids);
    auto* weights = at<float>(plan_.expert_weights);
    ops::route(router, ffn + 2 * inner, plan_.ffn_pitch, w.ffn.router_bias.data(), ids, weights, rows, c.stream);
    ops::run_experts(c.phase, w.ffn.experts, router, norm, D, ids, weights, result, D, rows, scratch, c.stream);
  }
  ops::add_rows(hidden, D, result, D, rows, D, c.stream);
}

void KimiLinear::emit_logits(const Call& c, const LogitsSink& sink) const {
  const int64_t D = config_.hidden, wanted = static_cast<int64_t>(c.batch.logit_tokens.size());
  float *hidden = at<float>(plan_.hidden), *norm = at<float>(plan_.norm), *logits = at<float>(plan_.logits);
  for (int64_t first = 0; first < wanted; first += plan_.logit_rows) {
    const int64_t rows = std::min(plan_.logit_rows, wanted - first);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(norm + r * D, hidden + c.batch.logit_tokens[static_cast<size_t>(first + r)] * D,
                  static_cast<size_t>(D) * sizeof(float));
    ops::rms_norm(norm, D, weights_.norm.data(), config_.rms_eps, norm, D, rows, D, c.stream);
    weights_.head.run(c.phase, norm, D, logits, config_.vocab, rows, at<void>(plan_.scratch), c.stream);
    if (sink) sink(first, rows, logits);
  }
}

void KimiLinear::forward(const ForwardBatch& batch, const CacheViews& caches, const LogitsSink& sink,
                         device::Stream& stream) {
  validate(batch, caches);
  Call c{batch, caches, stream, batch.phase, static_cast<int64_t>(batch.tokens.size()), {}, {}};
  if (c.tokens == 0 && batch.rows() == 0) return;
  c.attention = {batch.rows(), batch.seq_begin.data(), batch.start.data(), batch.page_table.data(), batch.max_pages};
  if (c.phase == ops::GemmPhase::kPrefill && config_.kda_layers() > 0) {
    ops::KdaHostMetadata m;
    m.seq_begin = batch.seq_begin;
    m.state_in = batch.state_in, m.state_out = batch.state_out;
    m.ckpt_begin = batch.ckpt_begin, m.ckpt_depth = batch.ckpt_depth, m.ckpt_slot = batch.ckpt_slot;
    m.tokens = c.tokens;
    m.state_in_slots = m.state_out_slots = m.ckpt_slots = caches.states.slots;
    c.metadata = ops::upload(plan_.extend, m, at<void>(plan_.metadata), stream);
  }
  if (config_.mla.rotary) {
    int64_t* positions = at<int64_t>(plan_.positions);
    for (int32_t i = 0; i < batch.rows(); ++i)
      for (int64_t t = batch.seq_begin[static_cast<size_t>(i)]; t < batch.seq_begin[static_cast<size_t>(i) + 1]; ++t)
        positions[t] = batch.start[static_cast<size_t>(i)] + t - batch.seq_begin[static_cast<size_t>(i)];
  }

  const int64_t D = config_.hidden;
  float* hidden = at<float>(plan_.hidden);
  embed(c);
  if (observer_) observer_(-1, c.tokens, D, hidden);
  for (int32_t l = 0; l < config_.layers; ++l) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
    const bool kda = w.kind == LayerKind::kKda;
    for (int64_t first = 0; first < c.tokens; first += plan_.slab)
      open_layer(c, w, first, std::min(plan_.slab, c.tokens - first));
    kda ? mix_kda(c, w) : mix_attention(c, w);
    for (int64_t first = 0; first < c.tokens; first += plan_.slab) {
      const int64_t rows = std::min(plan_.slab, c.tokens - first);
      kda ? close_kda(c, w, first, rows) : close_attention(c, w, first, rows);
      ops::add_rows(hidden + first * D, D, at<float>(plan_.result), D, rows, D, stream);
      feed_forward(c, w, first, rows);
    }
    if (observer_) observer_(l, c.tokens, D, hidden);
  }
  emit_logits(c, sink);
  if (observer_) {
    ops::rms_norm(hidden, D, weights_.norm.data(), config_.rms_eps, hidden, D, c.tokens, D, stream);
    observer_(config_.layers, c.tokens, D, hidden);
  }
}

}  // namespace kadence::model
