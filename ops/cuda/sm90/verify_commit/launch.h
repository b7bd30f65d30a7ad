// Every instance of the verify and commit kernels by template arguments; the definitions are in inst/*.cu.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"

namespace kadence::ops::cuda::sm90 {

struct VerifyParams;
struct CommitParams;

template <int K, class E, int ITS, int WARPS>
void launch_verify_instance(const VerifyParams& params, const LaunchScope& scope);
template <int K, class E, int ITS, int WARPS>
void launch_gram_instance(const VerifyParams& params, const LaunchScope& scope);
template <int K, class E, int ITS>
void launch_commit_instance(const CommitParams& params, const LaunchScope& scope);

}  // namespace kadence::ops::cuda::sm90
