#include "ops/cuda/sm80/extend_chunked/kernel.cuh"
#include "ops/cuda/sm80/extend_chunked/plan.h"

namespace kadence::ops::cuda::sm80 {

WindowKernel bf16_kernel(bool decay_fp32) {
  return decay_fp32 ? window_kernel<__nv_bfloat16, true> : window_kernel<__nv_bfloat16, false>;
}

}  // namespace kadence::ops::cuda::sm80
