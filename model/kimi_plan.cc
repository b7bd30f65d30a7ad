#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "model/kimi_linear.h"
#include "ops/attention.h"
#include "ops/moe.h"

namespace kadence::model {
namespace {

// Tokens of a slab: enough rows for every expert, few enough that the slab's activations stay near the cores.
constexpr int64_t kSlabTokens = 2048;
constexpr int64_t kLogitBytes = int64_t{64} << 20;

class Arena {
 public:
  size_t take(int64_t rows, int64_t columns, size_t element = sizeof(float)) {
    const size_t at = bytes_;
    bytes_ += base::round_up(static_cast<size_t>(rows * columns) * element, ops::kWorkspaceAlign);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

void check_limits(const ForwardLimits& l) {
  const auto want = [](const char* what, int64_t got, int64_t most) {
    if (got < 1 || got > most)
      base::throw_invalid(std::string("limits.") + what, "1 to " + std::to_string(most), std::to_string(got));
  };
  want("max_rows", l.max_rows, 1 << 16);
  want("max_tokens", l.max_tokens, int64_t{1} << 24);
  want("max_logit_rows", l.max_logit_rows, 1 << 30);
  if (l.max_checkpoints < 0)
    base::throw_invalid("limits.max_checkpoints", "0 or more", std::to_string(l.max_checkpoints));
}

}  // namespace

KimiPlan plan_kimi(const ModelConfig& c, const KimiWeights& weights, const ForwardOptions& options,
                   const device::DeviceInfo& device) {
  check_limits(options.limits);
  if (device.kind != device::DeviceKind::kCpu)
    base::throw_error(base::ErrorCode::kUnsupported, "model kimi_linear on " + device.name + "; implemented: cpu");
  KimiPlan p;
  const ForwardLimits& limits = options.limits;
  p.tokens = std::max<int64_t>(limits.max_tokens, limits.max_rows);
  p.slab = std::min(p.tokens, kSlabTokens);
  size_t scratch = 0;
  const auto need = [&](size_t bytes) { scratch = std::max(scratch, bytes); };
  const auto need_product = [&](const ops::Linear& l) { need(l.workspace_bytes(device.threads)); };

  if (c.kda_layers() > 0) {
    const KdaConfig& k = c.kda;
    ops::KdaProblem problem;
    problem.H = k.H, problem.HV = k.HV, problem.K = k.K, problem.V = k.V;
    problem.state_in = problem.state_out = problem.checkpoints = options.state_dtype;
    problem.gate = k.gate;
    if (k.gate == ops::KdaGate::kBounded) problem.lower_bound = k.lower_bound;
    problem.beta_doubled = k.beta_doubled;
    problem.phase = ops::KdaPhase::kExtend;
    problem.bounds = {limits.max_rows, limits.max_tokens, limits.max_checkpoints};
    ops::KdaOptions o;
    o.extend_block_tokens = options.extend_block_tokens;
    o.backend = options.prefill_backend;
    p.extend = ops::plan_kda(problem, device, o);
    problem.phase = ops::KdaPhase::kStep;
    problem.bounds = {limits.max_rows, limits.max_rows, 0};
    o.backend = options.decode_backend;
    p.step = ops::plan_kda(problem, device, o);
    const KdaColumns columns(k);
    p.in_pitch = pitch_of(columns.width);
    p.mixed_pitch = pitch_of(columns.channels);
    p.decay_pitch = k.full_rank_decay ? 0 : pitch_of(int64_t{k.HV} * k.K);
    p.out_pitch = pitch_of(int64_t{k.HV} * k.V);
    p.gate_pitch = k.full_rank_gate ? 0 : pitch_of(int64_t{k.HV} * k.V);
    need(p.extend.workspace_bytes());
    need(p.step.workspace_bytes());
  }
  if (c.attention_layers() > 0) {
    const MlaConfig& m = c.mla;
    const int64_t row = int64_t{m.kv_lora_rank} + m.rope_dim;
    p.in_pitch = std::max(p.in_pitch, pitch_of(MlaColumns(m).width));
    p.mixed_pitch = std::max(p.mixed_pitch, pitch_of(m.heads * row));
    p.out_pitch = std::max(p.out_pitch, pitch_of(int64_t{m.heads} * m.kv_lora_rank));
    p.gate_pitch = std::max(p.gate_pitch, pitch_of(int64_t{m.heads} * m.v_dim));
    if (m.q_lora_rank > 0)
      p.gate_pitch = std::max(p.gate_pitch, pitch_of(int64_t{m.heads} * (m.nope_dim + m.rope_dim)));
    need(ops::latent_attention_workspace({m.heads, m.kv_lora_rank, m.rope_dim, 1}, device.threads));
  }
  for (const LayerWeights& l : weights.layers) {
    for (const ops::Linear* w :
         {&l.kda.in, &l.kda.decay, &l.kda.gate, &l.kda.out, &l.mla.in, &l.mla.q_b, &l.mla.out, &l.ffn.in, &l.ffn.down})
      need_product(*w);
    for (const ops::Linear& w : l.mla.key_up) need_product(w);
    for (const ops::Linear& w : l.mla.value_up) need_product(w);
    if (l.ffn.in) p.ffn_pitch = std::max(p.ffn_pitch, pitch_of(l.ffn.in.out()));
    p.inner_pitch = std::max(p.inner_pitch, pitch_of(l.ffn.inner));
    if (!l.ffn.experts.down.empty()) {
      need(ops::moe_workspace(l.ffn.experts, c.moe.router, ops::GemmPhase::kPrefill, p.slab, device.threads));
      need(ops::moe_workspace(l.ffn.experts, c.moe.router, ops::GemmPhase::kDecode,
                              std::min<int64_t>(limits.max_rows, p.slab), device.threads));
    }
  }
  need_product(weights.head);
  const int64_t most = base::round_down<int64_t>(kLogitBytes / (int64_t{c.vocab} * 4), ops::kGemmRowsPrefill);
  p.logit_rows = std::min<int64_t>(std::clamp<int64_t>(most, ops::kGemmRowsPrefill, 1024), limits.max_logit_rows);
  p.logit_rows = std::min(p.logit_rows, p.slab);

  const int64_t D = c.hidden;
  Arena arena;
  p.hidden = arena.take(p.tokens, D);
  p.in = arena.take(p.tokens, p.in_pitch);
  p.mixed = arena.take(p.tokens, p.mixed_pitch);
  p.decay = arena.take(p.tokens, p.decay_pitch);
  p.out = arena.take(p.tokens, p.out_pitch);
  p.norm = arena.take(p.slab, D);
  p.result = arena.take(p.slab, D);
  p.gate = arena.take(p.slab, p.gate_pitch);
  p.ffn = arena.take(p.slab, p.ffn_pitch);
  p.inner = arena.take(p.slab, p.inner_pitch);
  p.expert_ids = arena.take(p.slab, c.moe.router.top_k);
  p.expert_weights = arena.take(p.slab, c.moe.router.top_k);
  p.positions = arena.take(c.mla.rotary ? p.tokens : 0, 1, sizeof(int64_t));
  p.logits = arena.take(p.logit_rows, c.vocab);
  p.metadata = arena.take(static_cast<int64_t>(p.extend.metadata_bytes()), 1, 1);
  p.scratch = arena.take(static_cast<int64_t>(scratch), 1, 1);
  p.bytes = arena.bytes();
  return p;
}

void KimiLinear::prepare(const ForwardOptions& options, device::Stream& stream) {
  const KimiPlan plan = plan_kimi(config_, weights_, options, stream.info());
  workspace_ = {};  // first, so that old and new never coexist
  workspace_ = device::Buffer::allocate(stream.info(), plan.bytes);
  plan_ = plan;
  options_ = options;
}

}  // namespace kadence::model
