#include "ops/cuda/sm90/verify_commit/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_VERIFY_INSTANCE(128, __nv_bfloat16, 1)
KADENCE_VERIFY_INSTANCE(128, __nv_bfloat16, 2)
KADENCE_VERIFY_INSTANCE(128, __nv_bfloat16, 4)
KADENCE_VERIFY_WIDE_INSTANCE(128, __nv_bfloat16, 4)
}  // namespace kadence::ops::cuda::sm90
