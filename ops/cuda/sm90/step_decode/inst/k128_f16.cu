#include "ops/cuda/sm90/step_decode/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_STEP_INSTANCE(128, __half, __half, 1)
KADENCE_STEP_INSTANCE(128, __half, __half, 2)
KADENCE_STEP_INSTANCE(128, __half, __half, 4)
KADENCE_STEP_WIDE_INSTANCE(128, __half, __half, 4)
}  // namespace kadence::ops::cuda::sm90
