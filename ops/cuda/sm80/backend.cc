// The portable backends: every device since compute capability 8.0. sm80 has its own extend (extend_chunked); step,
// verify and commit are the kernels of sm90/, which use nothing newer but for clusters. sm80-recurrent is extend token
// by token in fp32 (extend_recurrent), for what extend_chunked lacks and to check against.
#include "base/error.h"
#include "ops/cuda/sm80/extend_chunked/plan.h"
#include "ops/cuda/sm80/extend_recurrent/launch.h"
#include "ops/cuda/sm90/step.h"
#include "ops/kda_backend.h"

namespace kadence::ops::cuda {
namespace {

void want_device(const device::DeviceInfo& device, std::vector<std::string>& misses) {
  if (device.sm_major < 8)
    misses.push_back("compute capability " + std::to_string(device.sm_major) + "." + std::to_string(device.sm_minor) +
                     " (has 8.0 and newer)");
}

std::vector<std::string> misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  std::vector<std::string> m = problem.phase == KdaPhase::kExtend   ? sm80::chunked_misses(problem, device)
                               : problem.phase == KdaPhase::kVerify ? sm90::verify_problem_misses(problem, device)
                                                                    : sm90::step_problem_misses(problem);
  want_device(device, m);
  return m;
}
std::vector<std::string> recurrent_misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  std::vector<std::string> m = sm90::step_problem_misses(problem);
  want_device(device, m);
  return m;
}

void plan(KdaPlan& p) {
  switch (p.problem_.phase) {
    case KdaPhase::kExtend:
      return sm80::plan_chunked(p);
    case KdaPhase::kStep:
      return sm90::plan_portable_step(p);
    case KdaPhase::kVerify:
      return sm90::plan_verify(p);
  }
  base::throw_error(base::ErrorCode::kInternal,
                    "no plan for phase " + std::to_string(static_cast<int>(p.problem_.phase)));
}
void plan_recurrent(KdaPlan& p) {
  p.block_tokens_ = kChunkTokens;
  p.workspace_bytes_ = 0;
}

// Phases that sm80-recurrent has not; the registry lets no problem of theirs through.
template <class Args>
void absent(const KdaPlan&, const Args&, device::Stream&) {
  base::throw_error(base::ErrorCode::kInternal, "backend sm80-recurrent has extend only");
}

}  // namespace

const KdaBackend kSm80Backend = {
    {"sm80", device::DeviceKind::kCuda, true, true, true, true,
     "portable CUDA (compute capability 8.0 and newer); extend: K = V = 128, bf16 or fp16 io, any gate and state "
     "dtype; "
     "step and verify: K = V = 64, 128, 256"},
    misses,
    plan,
    sm80::run_chunked,
    sm90::run_step,
    sm90::run_verify,
    sm90::run_commit,
};
const KdaBackend kSm80RecurrentBackend = {
    {"sm80-recurrent", device::DeviceKind::kCuda, true, false, false, true,
     "portable CUDA, extend token by token in fp32; K = V = 64, 128, 256, every dtype and gate"},
    recurrent_misses,
    plan_recurrent,
    sm80::run_recurrent,
    absent<KdaStepArgs>,
    absent<KdaVerifyArgs>,
    absent<KdaCommitArgs>,
};

}  // namespace kadence::ops::cuda
