#include "ops/cuda/sm90/verify_commit/launch.cuh"

namespace kadence::ops::cuda::sm90 {
KADENCE_VERIFY_INSTANCE(128, __half, 1)
KADENCE_VERIFY_INSTANCE(128, __half, 2)
KADENCE_VERIFY_INSTANCE(128, __half, 4)
KADENCE_VERIFY_WIDE_INSTANCE(128, __half, 4)
}  // namespace kadence::ops::cuda::sm90
