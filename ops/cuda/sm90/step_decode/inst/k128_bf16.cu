#include "ops/cuda/sm90/step_decode/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_STEP_INSTANCE(128, __nv_bfloat16, __nv_bfloat16, 1)
KADENCE_STEP_INSTANCE(128, __nv_bfloat16, __nv_bfloat16, 2)
KADENCE_STEP_INSTANCE(128, __nv_bfloat16, __nv_bfloat16, 4)
KADENCE_STEP_WIDE_INSTANCE(128, __nv_bfloat16, __nv_bfloat16, 4)
}  // namespace kadence::ops::cuda::sm90
