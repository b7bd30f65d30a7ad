#include "ops/cuda/sm90/step_decode/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_STEP_INSTANCE(64, float, float, 1)
KADENCE_STEP_INSTANCE(256, float, float, 4)
}  // namespace kadence::ops::cuda::sm90
