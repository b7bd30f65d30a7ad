// Launches of the two extend kernels; see plan.cc for how they follow each other.
#pragma once

#include "device/device.h"
#include "ops/cuda/sm90/extend_ring/params.h"
#include "ops/cuda/sm90/extend_ring/plan.h"

namespace kadence::ops::cuda::sm90::extend {

using RingKernel = void (*)(RingParams);
// Instances, one file of inst/ each.
RingKernel bounded_kernel(bool decay_fp32);
RingKernel bounded_exact_kernel(bool decay_fp32);
RingKernel softplus_kernel(bool decay_fp32);
RingKernel given_kernel(bool decay_fp32);

void launch_rows(const RowsParams& params, device::Stream& stream);
void launch_ring(Variant variant, const RingParams& params, int ctas, device::Stream& stream);

}  // namespace kadence::ops::cuda::sm90::extend
