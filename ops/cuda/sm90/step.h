// Decode: what kSm90Backend (backend.cc) points at for step, verify and commit; the portable backend uses it too. The
// functions have the meaning of the members of KdaBackend (ops/kda_backend.h) of the same name.
#pragma once

#include <string>
#include <vector>

#include "ops/kda.h"

namespace kadence::ops::cuda::sm90 {

// Features of a step or verify problem that these kernels lack on `device`; empty = they can run it.
std::vector<std::string> step_misses(const KdaProblem& problem, const device::DeviceInfo& device);
std::vector<std::string> verify_misses(const KdaProblem& problem, const device::DeviceInfo& device);

// The same without what depends on the architecture; for the portable backend.
std::vector<std::string> step_problem_misses(const KdaProblem& problem);
std::vector<std::string> verify_problem_misses(const KdaProblem& problem, const device::DeviceInfo& device);

void plan_step(KdaPlan& plan);
void plan_portable_step(KdaPlan& plan);  // without clusters
void plan_verify(KdaPlan& plan);

void run_step(const KdaPlan& plan, const KdaStepArgs& args, device::Stream& stream);
void run_verify(const KdaPlan& plan, const KdaVerifyArgs& args, device::Stream& stream);
void run_commit(const KdaPlan& plan, const KdaCommitArgs& args, device::Stream& stream);

}  // namespace kadence::ops::cuda::sm90
