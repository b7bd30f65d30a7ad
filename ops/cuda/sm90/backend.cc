// The Hopper backend: extend by extend_rows and extend_ring, the other phases by step.h.
#include "base/error.h"
#include "ops/cuda/sm90/extend_ring/plan.h"
#include "ops/cuda/sm90/step.h"
#include "ops/kda_backend.h"

namespace kadence::ops::cuda {
namespace {

std::vector<std::string> misses(const KdaProblem& problem, const device::DeviceInfo& device) {
  switch (problem.phase) {
    case KdaPhase::kExtend:
      return sm90::extend::misses(problem, device);
    case KdaPhase::kStep:
      return sm90::step_misses(problem, device);
    case KdaPhase::kVerify:
      return sm90::verify_misses(problem, device);
  }
  return {"this phase"};
}

void plan(KdaPlan& p) {
  switch (p.problem_.phase) {
    case KdaPhase::kExtend:
      return sm90::extend::plan_extend(p);
    case KdaPhase::kStep:
      return sm90::plan_step(p);
    case KdaPhase::kVerify:
      return sm90::plan_verify(p);
  }
  base::throw_error(base::ErrorCode::kInternal,
                    "no plan for phase " + std::to_string(static_cast<int>(p.problem_.phase)));
}

}  // namespace

const KdaBackend kSm90Backend = {
    {"sm90", device::DeviceKind::kCuda, true, true, true, true,
     "Hopper (compute capability 9.0); extend: K = V = 128, bf16 io, any gate, fp32/bf16/fp16 states"},
    misses,
    plan,
    sm90::extend::run_extend,
    sm90::run_step,
    sm90::run_verify,
    sm90::run_commit,
};

}  // namespace kadence::ops::cuda
