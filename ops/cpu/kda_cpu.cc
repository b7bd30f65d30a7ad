// The cpu backend: what it can run, and its entry points.
#include "ops/cpu/kda_cpu.h"

#include <cmath>

namespace kadence::ops::cpu {
namespace {

std::vector<std::string> misses(const KdaProblem& p, const device::DeviceInfo&) {
  std::vector<std::string> m;
  const std::string sizes = " (multiples of 16 up to " + std::to_string(kMaxHeadDim) + ")";
  if (p.K % 16 != 0 || p.K > kMaxHeadDim) m.push_back("K=" + std::to_string(p.K) + sizes);
  if (p.V % 16 != 0 || p.V > kMaxHeadDim) m.push_back("V=" + std::to_string(p.V) + sizes);
  if (p.fused_step) m.push_back("the fused step (fused_step = false runs it as convolution, step and norm)");
  return m;
}

void plan(KdaPlan& plan) {
  plan.isa_ = plan.device_.isa;
  switch (plan.problem().phase) {
    case KdaPhase::kExtend:
      return plan_extend(plan);
    case KdaPhase::kStep:
      return plan_step(plan);
    case KdaPhase::kVerify:
      return plan_verify(plan);
  }
}

}  // namespace

HeadParams head_params(const KdaPlan& plan, int hv, const float* A_log, const float* dt_bias) {
  const KdaProblem& p = plan.problem();
  constexpr double kLog2E = 1.4426950408889634074;
  HeadParams h;
  h.K = p.K;
  h.gate = p.gate;
  h.l2norm = p.l2norm;
  h.beta_logits = p.beta_mode == KdaBeta::kLogits;
  h.beta_doubled = p.beta_doubled;
  h.q_scale = plan.scale();
  const double rate = p.gate == KdaGate::kGivenLogDecay ? 1.0 : std::exp(static_cast<double>(A_log[hv]));
  h.gate_rate = static_cast<float>(rate);
  if (p.gate == KdaGate::kBounded) h.gate_scale = static_cast<float>(p.lower_bound * kLog2E);
  if (p.gate == KdaGate::kSoftplus) h.gate_scale = static_cast<float>(-rate * kLog2E);
  if (p.gate == KdaGate::kGivenLogDecay) h.gate_scale = static_cast<float>(kLog2E);
  h.dt_bias = dt_bias ? dt_bias + int64_t{hv} * p.K : nullptr;
  return h;
}

const KdaBackend kBackend = {{"cpu", device::DeviceKind::kCpu, true, true, true, true,
                              "SIMD kernels for baseline, AVX2 and AVX-512; K and V multiples of 16 up to 512, every "
                              "gate exactly, fp32 arithmetic"},
                             misses,
                             plan,
                             extend,
                             step,
                             verify,
                             commit};

}  // namespace kadence::ops::cpu
