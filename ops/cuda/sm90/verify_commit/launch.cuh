// The launches of one instance; included by inst/*.cu only.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/verify_commit/kernel.cuh"
#include "ops/cuda/sm90/verify_commit/launch.h"

namespace kadence::ops::cuda::sm90 {

template <int K, class E, int ITS>
void launch_verify_instance(const VerifyParams& p, cudaStream_t stream) {
  using Shape = VerifyShape<K, E, ITS>;
  const size_t shared = verify_shared_bytes(K, Shape::ROWS, p.D);
  if (shared > 40 * 1024)
    check(cudaFuncSetAttribute(verify_kernel<K, E, ITS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "verify kernel shared memory");
  verify_kernel<K, E, ITS>
      <<<rows_grid(static_cast<unsigned>(p.HV * Shape::SPLITS), p.rows), kStepThreads, shared, stream>>>(p);
  check_launch("verify kernel launch");
}

template <int K, class E, int ITS>
void launch_commit_instance(const CommitParams& params, cudaStream_t stream) {
  CommitParams p = params;
  p.state_blocks = p.HV * VerifyShape<K, E, ITS>::SPLITS;
  const int window_blocks = p.windows ? (p.window_words + kStepThreads - 1) / kStepThreads : 0;
  dim3 grid = rows_grid(static_cast<unsigned>(p.state_blocks + window_blocks), p.rows);
  const int row_planes = static_cast<int>(grid.z);
  grid.z *= static_cast<unsigned>(p.layers);
  commit_kernel<K, E, ITS><<<grid, kStepThreads, 0, stream>>>(p, row_planes);
  check_launch("commit kernel launch");
}

#define KADENCE_VERIFY_INSTANCE(K, E, ITS)                                            \
  template void launch_verify_instance<K, E, ITS>(const VerifyParams&, cudaStream_t); \
  template void launch_commit_instance<K, E, ITS>(const CommitParams&, cudaStream_t);

}  // namespace kadence::ops::cuda::sm90
