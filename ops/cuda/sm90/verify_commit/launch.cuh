// The launches of one instance; included by inst/*.cu only.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/verify_commit/gram.cuh"
#include "ops/cuda/sm90/verify_commit/launch.h"

namespace kadence::ops::cuda::sm90 {

template <int K, class E, int ITS, int WARPS>
void launch_verify_instance(const VerifyParams& p, const LaunchScope& scope) {
  using Shape = VerifyShape<K, E, ITS, WARPS>;
  const auto kernel = verify_kernel<K, E, ITS, WARPS>;
  const size_t shared = verify_shared_bytes(K, Shape::ROWS, p.D);
  if (shared > 40 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "verify kernel shared memory");
  Launch launch(rows_grid(static_cast<unsigned>(p.HV * Shape::SPLITS), p.rows), Shape::THREADS, shared, scope);
  launch(kernel, "verify kernel launch", p);
}

template <int K, class E, int ITS, int WARPS>
void launch_gram_instance(const VerifyParams& p, const LaunchScope& scope) {
  using Shape = VerifyShape<K, E, ITS, WARPS>;
  Launch launch(rows_grid(static_cast<unsigned>(p.HV * Shape::SPLITS), p.rows), Shape::THREADS, 0, scope);
  launch(gram_kernel<K, E, ITS, WARPS>, "verify kernel launch", p);
}

template <int K, class E, int ITS>
void launch_commit_instance(const CommitParams& params, const LaunchScope& scope) {
  using Shape = VerifyShape<K, E, ITS, 4>;
  CommitParams p = params;
  p.state_blocks = p.HV * Shape::SPLITS;
  p.ahead = scope.sm_count() * commit_ctas_per_sm(ITS, 4) / 2;
  const int window_blocks = p.windows ? (p.window_words + Shape::THREADS - 1) / Shape::THREADS : 0;
  dim3 grid = rows_grid(static_cast<unsigned>(p.state_blocks + window_blocks), p.rows);
  const int row_planes = static_cast<int>(grid.z);
  grid.z *= static_cast<unsigned>(p.layers);
  Launch launch(grid, Shape::THREADS, 0, scope);
  launch(commit_kernel<K, E, ITS, 4>, "commit kernel launch", p, row_planes);
}

#define KADENCE_VERIFY_INSTANCE(K, E, ITS)                                                     \
  template void launch_gram_instance<K, E, ITS, 4>(const VerifyParams&, const LaunchScope&);   \
  template void launch_verify_instance<K, E, ITS, 4>(const VerifyParams&, const LaunchScope&); \
  template void launch_commit_instance<K, E, ITS>(const CommitParams&, const LaunchScope&);
#define KADENCE_VERIFY_WIDE_INSTANCE(K, E, ITS)                                              \
  template void launch_gram_instance<K, E, ITS, 8>(const VerifyParams&, const LaunchScope&); \
  template void launch_verify_instance<K, E, ITS, 8>(const VerifyParams&, const LaunchScope&);

}  // namespace kadence::ops::cuda::sm90
