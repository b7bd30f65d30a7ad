#include "ops/cuda/common/check.h"
#include "ops/cuda/sm90/extend_ring/launch.h"
#include "ops/cuda/sm90/extend_rows/kernel.cuh"

namespace kadence::ops::cuda::sm90::extend {

void launch_rows(const RowsParams& params, device::Stream& stream) {
  rows_kernel<<<1, kRowThreads, 0, static_cast<cudaStream_t>(stream.native())>>>(params);
  check_launch("extend rows kernel");
}

}  // namespace kadence::ops::cuda::sm90::extend
