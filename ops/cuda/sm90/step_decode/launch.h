// Every instance of the step kernel by template arguments; the definitions are in inst/*.cu.
#pragma once

#include <cuda_runtime.h>

namespace kadence::ops::cuda::sm90 {

struct StepParams;

template <int K, class EIn, class EOut, int ITS, bool FUSED>
void launch_step_instance(const StepParams& params, cudaStream_t stream);

}  // namespace kadence::ops::cuda::sm90
