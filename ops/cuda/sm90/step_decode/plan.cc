#include <algorithm>

#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_decode/config.h"

namespace kadence::ops::cuda::sm90 {
namespace {

size_t align_up(size_t bytes) { return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign; }

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

}  // namespace

std::vector<std::string> step_problem_misses(const KdaProblem& p) {
  std::vector<std::string> misses;
  if (p.K != p.V) misses.push_back("K != V");
  if (p.K != 64 && p.K != 128 && p.K != 256) misses.push_back("K = " + std::to_string(p.K) + " (has 64, 128, 256)");
  for (DType t : {p.io, p.decay, p.beta, p.state_in, p.state_out})
    if (!is_float(t)) misses.push_back(std::string("element type ") + base::to_string(t));
  if (p.phase == KdaPhase::kStep && p.state_in != p.state_out && p.K != 128)
    misses.push_back("state_in and state_out of different types with K != 128");
  if (p.fused_step && !is_float(p.conv))
    misses.push_back(std::string("conv windows of type ") + base::to_string(p.conv));
  return misses;
}

std::vector<std::string> step_misses(const KdaProblem& p, const device::DeviceInfo& device) {
  std::vector<std::string> misses = step_problem_misses(p);
  if (device.sm_major != 9)
    misses.push_back("compute capability " + std::to_string(device.sm_major) + "." + std::to_string(device.sm_minor) +
                     " (has 9.0)");
  return misses;
}

StepChoice choose_step(const KdaProblem& p, int sm_count, int max_cluster) {
  StepChoice choice;
  const int64_t heads = static_cast<int64_t>(std::max(1, p.bounds.max_rows)) * p.HV;
  if (p.K == 64) {
    choice.iterations = 1;
  } else if (p.K == 256) {
    choice.iterations = 4;
  } else if (p.state_in != p.state_out) {
    choice.iterations = 2;
  } else {
    // Two iterations are best or within 1 % of it everywhere but at the ends.
    const bool wide = base::size_of(p.state_in) == 2;
    choice.iterations = heads <= sm_count / 8 ? 1 : wide && heads > 4 * sm_count ? 4 : 2;
  }
  if (!p.fused_step) return choice;
  const int per_head = p.HV / std::max(1, p.H);
  const auto ctas = [&] { return per_head * step_splits(p.K, p.V, choice.iterations, choice.warps); };
  choice.fusion = StepFusion::kOneLaunch;
  if (p.K == 128 && p.state_in == p.state_out) {
    if (heads > sm_count / 3) choice.iterations = 4, choice.warps = 8;  // a whole head in one CTA: no cluster
    while (choice.iterations < 4 && ctas() > max_cluster) choice.iterations *= 2;
    if (ctas() > max_cluster) choice.warps = 8;
  }
  if (ctas() > max_cluster) choice.fusion = StepFusion::kThreeLaunches;
  if (choice.fusion == StepFusion::kThreeLaunches) {
    choice.warps = 4;
    if (p.K == 128) choice.iterations = 2;
  }
  return choice;
}

int32_t encode(const StepChoice& c) { return c.iterations | c.warps << 8 | static_cast<int32_t>(c.fusion) << 16; }
StepChoice decode_step_choice(int32_t v) { return {v & 0xff, v >> 8 & 0xff, static_cast<StepFusion>(v >> 16 & 0xff)}; }

namespace {
void plan_with_clusters(KdaPlan& plan, int max_cluster) {
  const KdaProblem& p = plan.problem_;
  const StepChoice choice = choose_step(p, plan.device_.sm_count, max_cluster);
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
}  // namespace

void plan_step(KdaPlan& plan) { plan_with_clusters(plan, kMaxClusterCtas); }
void plan_portable_step(KdaPlan& plan) { plan_with_clusters(plan, 1); }

}  // namespace kadence::ops::cuda::sm90
