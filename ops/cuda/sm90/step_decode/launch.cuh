// The launch of one instance; included by inst/*.cu only.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/step_decode/kernel.cuh"
#include "ops/cuda/sm90/step_decode/launch.h"

namespace kadence::ops::cuda::sm90 {

template <int K, class EIn, class EOut, int ITS, bool FUSED>
void launch_step_instance(const StepParams& p, cudaStream_t stream) {
  constexpr int splits = step_splits(K, K, ITS);
  cudaLaunchConfig_t config = {};
  config.gridDim = rows_grid(static_cast<unsigned>(p.HV * splits), p.rows);
  config.blockDim = dim3(kStepThreads);
  config.stream = stream;
  cudaLaunchAttribute cluster[1];
  if constexpr (FUSED) {
    cluster[0].id = cudaLaunchAttributeClusterDimension;
    cluster[0].val.clusterDim = {static_cast<unsigned>(splits * (p.HV / p.H)), 1, 1};
    config.attrs = cluster;
    config.numAttrs = 1;
  }
  check(cudaLaunchKernelEx(&config, step_kernel<K, EIn, EOut, ITS, FUSED>, p), "step kernel launch");
}

#define KADENCE_STEP_INSTANCE(K, EIN, EOUT, ITS)                                                 \
  template void launch_step_instance<K, EIN, EOUT, ITS, false>(const StepParams&, cudaStream_t); \
  template void launch_step_instance<K, EIN, EOUT, ITS, true>(const StepParams&, cudaStream_t);

}  // namespace kadence::ops::cuda::sm90
