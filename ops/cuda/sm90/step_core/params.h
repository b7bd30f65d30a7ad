// From the public argument structures to what the kernels read.
#pragma once

#include "ops/cuda/sm90/step_core/core.cuh"

namespace kadence::ops::cuda {

inline TokenInput token_input(const ConstTokenTensor& t, DType type) { return {t.data, t.pitch, type}; }

inline GateParams gate_params(const KdaPlan& plan, const float* A_log, const float* dt_bias) {
  const KdaProblem& p = plan.problem();
  GateParams g;
  g.A_log = A_log, g.dt_bias = dt_bias;
  g.lower_bound = p.lower_bound, g.scale = plan.scale(), g.gate = p.gate;
  g.beta_logits = p.beta_mode == KdaBeta::kLogits, g.beta_doubled = p.beta_doubled, g.l2norm = p.l2norm;
  return g;
}

}  // namespace kadence::ops::cuda
