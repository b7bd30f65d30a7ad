#include "ops/cuda/sm90/step_decode/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_STEP_INSTANCE(128, float, __nv_bfloat16, 2)
KADENCE_STEP_INSTANCE(128, float, __half, 2)
KADENCE_STEP_INSTANCE(128, __nv_bfloat16, float, 2)
KADENCE_STEP_INSTANCE(128, __nv_bfloat16, __half, 2)
KADENCE_STEP_INSTANCE(128, __half, float, 2)
KADENCE_STEP_INSTANCE(128, __half, __nv_bfloat16, 2)
}  // namespace kadence::ops::cuda::sm90
