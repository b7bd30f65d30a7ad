#include "ops/cuda/sm90/step_decode/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_STEP_INSTANCE(64, __nv_bfloat16, __nv_bfloat16, 1)
KADENCE_STEP_INSTANCE(256, __nv_bfloat16, __nv_bfloat16, 4)
}  // namespace kadence::ops::cuda::sm90
