#include "ops/cuda/sm90/extend_ring/kernel.cuh"
#include "ops/cuda/sm90/extend_ring/launch.h"

namespace kadence::ops::cuda::sm90::extend {

RingKernel given_kernel(bool decay_fp32) {
  return decay_fp32 ? ring_kernel<KdaGate::kGivenLogDecay, true, true>
                    : ring_kernel<KdaGate::kGivenLogDecay, true, false>;
}

}  // namespace kadence::ops::cuda::sm90::extend
