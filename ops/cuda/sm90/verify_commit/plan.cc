#include <algorithm>

#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/verify_commit/config.h"

namespace kadence::ops::cuda::sm90 {
namespace {
bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }
}  // namespace

std::vector<std::string> verify_problem_misses(const KdaProblem& p, const device::DeviceInfo& device) {
  std::vector<std::string> misses;
  if (p.K != p.V) misses.push_back("K != V");
  if (p.K != 64 && p.K != 128 && p.K != 256) misses.push_back("K = " + std::to_string(p.K) + " (has 64, 128, 256)");
  for (DType t : {p.io, p.decay, p.beta, p.state_in})
    if (!is_float(t)) misses.push_back(std::string("element type ") + base::to_string(t));
  if (p.state_in != p.state_out) misses.push_back("state_in and state_out of different types");
  if (p.D < 1 || p.D > kMaxDraftTokens) misses.push_back("D = " + std::to_string(p.D));
  const int64_t shared = device.shared_bytes_per_block;
  if (misses.empty() && shared > 0) {
    const VerifyChoice choice = choose_verify(p, {}, device.sm_count);
    const size_t need =
        verify_shared_bytes(p.K, step_rows_per_cta(p.K, choice.verify_iterations, choice.verify_warps), p.D) + 1024;
    if (need > static_cast<size_t>(shared))
      misses.push_back("D = " + std::to_string(p.D) + " at K = " + std::to_string(p.K) + " (" + std::to_string(need) +
                       " bytes of shared memory per block, has " + std::to_string(shared) + ")");
  }
  return misses;
}

std::vector<std::string> verify_misses(const KdaProblem& p, const device::DeviceInfo& device) {
  std::vector<std::string> misses = verify_problem_misses(p, device);
  if (device.sm_major != 9)
    misses.push_back("compute capability " + std::to_string(device.sm_major) + "." + std::to_string(device.sm_minor) +
                     " (has 9.0)");
  return misses;
}

VerifyChoice choose_verify(const KdaProblem& p, const KdaOptions& options, int sm_count) {
  VerifyChoice choice;
  choice.round_states = options.verify_matches_step;
  choice.gram = !options.verify_matches_step && p.D <= kGramDrafts;
  if (p.K == 64 || p.K == 256) {
    choice.verify_iterations = choice.commit_iterations = p.K == 64 ? 1 : 4;
    return choice;
  }
  const int64_t heads = static_cast<int64_t>(std::max(1, p.bounds.max_rows)) * p.HV;
  choice.verify_iterations = heads <= sm_count / 8 ? 1 : heads <= sm_count ? 2 : 4;
  if (choice.verify_iterations == 4) choice.verify_warps = 8;  // a head's factors are computed once
  choice.commit_iterations = 4;                                // all layers in one launch: never short of blocks
  return choice;
}

int32_t encode(const VerifyChoice& c) {
  return c.verify_iterations | c.verify_warps << 8 | c.commit_iterations << 16 | (c.round_states ? 1 : 0) << 24 |
         (c.gram ? 1 : 0) << 25;
}
VerifyChoice decode_verify_choice(int32_t v) {
  return {v & 0xff, v >> 8 & 0xff, v >> 16 & 0xff, (v >> 24 & 1) != 0, (v >> 25 & 1) != 0};
}

void plan_verify(KdaPlan& plan) {
  const KdaProblem& p = plan.problem_;
  plan.variant_ = encode(choose_verify(p, plan.options_, plan.device_.sm_count));
  plan.block_tokens_ = 0;
  plan.workspace_bytes_ = 0;
  const size_t nodes = static_cast<size_t>(std::max(0, p.bounds.max_rows)) * static_cast<size_t>(std::max(0, p.D));
  const size_t bytes = nodes * static_cast<size_t>(ScratchLayout::of(p.H, p.HV, p.K, p.V).record) * sizeof(float);
  plan.scratch_bytes_ = (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

}  // namespace kadence::ops::cuda::sm90
