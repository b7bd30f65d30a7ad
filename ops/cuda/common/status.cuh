// The status word of device metadata: {row, KdaRowStatus} of one bad row.
#pragma once

#include <cstdint>

namespace kadence::ops::cuda {

// Leaves (row, reason) unless another row did so before. `status` may be null.
__device__ __forceinline__ void report_row(int32_t* status, int32_t row, int32_t reason) {
  if (status && atomicCAS(&status[1], 0, reason) == 0) status[0] = row;
}

}  // namespace kadence::ops::cuda
