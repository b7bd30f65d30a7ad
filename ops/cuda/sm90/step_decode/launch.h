// Every instance of the step kernel by template arguments; the definitions are in inst/*.cu.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"

namespace kadence::ops::cuda::sm90 {

struct StepParams;

template <int K, class EIn, class EOut, int ITS, int WARPS, bool FUSED>
void launch_step_instance(const StepParams& params, const LaunchScope& scope);

}  // namespace kadence::ops::cuda::sm90
