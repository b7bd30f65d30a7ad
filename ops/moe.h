// Sigmoid-routed mixture of experts with groups and a correction bias (DeepSeek-V3 2024, section 2.1.2; Kimi Linear).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/gemm.h"
#include "ops/norm.h"

namespace kadence::ops {

struct RouterShape {
  int32_t experts = 0, top_k = 0;
  int32_t groups = 1, topk_groups = 1;  // experts % groups == 0
  bool renormalize = true;              // divide the chosen weights by (their sum + 1e-20)
  float scale = 1;                      // routed_scaling_factor, last
};

// s = sigmoid(logits); choose by s + bias: group score = sum of the two best biased scores in it, keep topk_groups
// groups, then top_k of the kept; weights are the unbiased s. Ties go to the lower index. ids, weights [T, top_k].
void route(const RouterShape& shape, const float* logits, int64_t logits_pitch, const float* bias, int32_t* ids,
           float* weights, int64_t tokens, device::Stream& stream);

// The experts of one layer. gate_up[e]: [2I, D] (gate rows first), down[e]: [D, I].
struct Experts {
  std::vector<Linear> gate_up, down;
  Activation activation;
};

// out[t,:] += sum_j weights[t,j] * E_{ids[t,j]}(x[t,:]), summed in the order j = 0..top_k-1. A token's bits do not
// depend on the other tokens. `workspace`: moe_workspace().
void run_experts(GemmPhase phase, const Experts& experts, const RouterShape& shape, const float* x, int64_t x_pitch,
                 const int32_t* ids, const float* weights, float* out, int64_t out_pitch, int64_t tokens,
                 void* workspace, device::Stream& stream);
size_t moe_workspace(const Experts& experts, const RouterShape& shape, GemmPhase phase, int64_t max_tokens,
                     int threads);

}  // namespace kadence::ops
