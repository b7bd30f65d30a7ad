#include "ops/cuda/sm90/verify_commit/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_VERIFY_INSTANCE(64, __nv_bfloat16, 1)
KADENCE_VERIFY_INSTANCE(256, __nv_bfloat16, 4)
}  // namespace kadence::ops::cuda::sm90
