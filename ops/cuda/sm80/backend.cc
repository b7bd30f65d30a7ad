// The portable backend: every device since compute capability 8.0. Extend is its own (extend_recurrent); step, verify
// and commit are the kernels of sm90/, which use nothing newer but for clusters.
#include "base/error.h"
#include "ops/cuda/sm80/extend.h"
#include "ops/cuda/sm90/step.h"
#include "ops/kda_backend.h"

namespace kadence::ops::cuda {
namespace {

std::vector<std::string> misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  std::vector<std::string> m = problem.phase == KdaPhase::kVerify ? sm90::verify_problem_misses(problem, device)
                                                                  : sm90::step_problem_misses(problem);
  if (device.sm_major < 8)
    m.push_back("compute capability " + std::to_string(device.sm_major) + "." + std::to_string(device.sm_minor) +
                " (has 8.0 and newer)");
  return m;
}

void plan(KdaPlan& p) {
  switch (p.problem_.phase) {
    case KdaPhase::kExtend:
      p.block_tokens_ = kChunkTokens;
      p.workspace_bytes_ = 0;
      return;
    case KdaPhase::kStep:
      return sm90::plan_portable_step(p);
    case KdaPhase::kVerify:
      return sm90::plan_verify(p);
  }
  base::throw_error(base::ErrorCode::kInternal,
                    "no plan for phase " + std::to_string(static_cast<int>(p.problem_.phase)));
}

}  // namespace

const KdaBackend kSm80Backend = {
    {"sm80", device::DeviceKind::kCuda, true, true, true, true,
     "portable CUDA (compute capability 8.0 and newer); K = V = 64, 128, 256, every dtype and gate; extend token by "
     "token"},
    misses,
    plan,
    sm80::run_extend,
    sm90::run_step,
    sm90::run_verify,
    sm90::run_commit,
};

}  // namespace kadence::ops::cuda
