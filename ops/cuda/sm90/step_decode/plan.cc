#include <algorithm>

#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_decode/config.h"

namespace kadence::ops::cuda::sm90 {
namespace {

size_t align_up(size_t bytes) { return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign; }

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

}  // namespace

std::vector<std::string> step_misses(const KdaProblem& p, const device::DeviceInfo& device) {
  std::vector<std::string> misses;
  if (device.sm_major != 9)
    misses.push_back("compute capability " + std::to_string(device.sm_major) + "." + std::to_string(device.sm_minor) +
                     " (has 9.0)");
  if (p.K != p.V) misses.push_back("K != V");
  if (p.K != 64 && p.K != 128 && p.K != 256) misses.push_back("K = " + std::to_string(p.K) + " (has 64, 128, 256)");
  for (DType t : {p.io, p.decay, p.beta, p.state_in, p.state_out})
    if (!is_float(t)) misses.push_back(std::string("element type ") + base::to_string(t));
  if (p.state_in != p.state_out && p.K != 128)
    misses.push_back("state_in and state_out of different types with K != 128");
  if (p.fused_step && !is_float(p.conv))
    misses.push_back(std::string("conv windows of type ") + base::to_string(p.conv));
  return misses;
}

StepChoice choose_step(const KdaProblem& p, int sm_count) {
  StepChoice choice;
  const int64_t heads = static_cast<int64_t>(std::max(1, p.bounds.max_rows)) * p.HV;
  if (p.K == 64) {
    choice.iterations = 1;
  } else if (p.K == 256) {
    choice.iterations = 4;
  } else if (p.state_in != p.state_out) {
    choice.iterations = 2;
  } else {
    // Small batches need every SM; large ones want the fewest CTAs.
    choice.iterations = heads * 8 <= 4 * sm_count ? 1 : heads * 4 <= 8 * sm_count ? 2 : 4;
  }
  if (p.fused_step) {
    const int per_head = p.HV / std::max(1, p.H);
    auto ctas = [&](int iterations) { return per_head * step_splits(p.K, p.V, iterations); };
    const bool many_shapes = p.K == 128 && p.state_in == p.state_out;
    while (many_shapes && choice.iterations < 4 && ctas(choice.iterations) > kMaxClusterCtas) choice.iterations *= 2;
    choice.fusion = ctas(choice.iterations) <= kMaxClusterCtas ? StepFusion::kOneLaunch : StepFusion::kThreeLaunches;
  }
  return choice;
}

int32_t encode(const StepChoice& choice) { return choice.iterations | static_cast<int32_t>(choice.fusion) << 8; }
StepChoice decode_step_choice(int32_t variant) {
  return {variant & 0xff, static_cast<StepFusion>(variant >> 8 & 0xff)};
}

void plan_step(KdaPlan& plan) {
  const KdaProblem& p = plan.problem_;
  const StepChoice choice = choose_step(p, plan.device_.sm_count);
  plan.variant_ = encode(choice);
  plan.block_tokens_ = 0;
  plan.scratch_bytes_ = 0;
  plan.workspace_bytes_ = 0;
  if (choice.fusion == StepFusion::kThreeLaunches) {
    const size_t rows = static_cast<size_t>(std::max(0, p.bounds.max_rows));
    const size_t channels = 2 * static_cast<size_t>(p.H) * p.K + static_cast<size_t>(p.HV) * p.V;
    plan.workspace_bytes_ = align_up(rows * channels * 4) + align_up(rows * p.HV * p.V * 4);
  }
}

}  // namespace kadence::ops::cuda::sm90
