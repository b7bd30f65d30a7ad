// The launch of one instance; included by inst/*.cu only.
#pragma once

#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/step_decode/kernel.cuh"
#include "ops/cuda/sm90/step_decode/launch.h"

namespace kadence::ops::cuda::sm90 {

template <int K, class EIn, class EOut, int ITS, int WARPS, bool FUSED>
void launch_step_instance(const StepParams& params, const LaunchScope& scope) {
  StepParams p = params;
  p.ahead = scope.sm_count() * step_ctas_per_sm(ITS, WARPS, FUSED) / 2;
  constexpr int splits = step_splits(K, K, ITS, WARPS);
  Launch launch(rows_grid(static_cast<unsigned>(p.HV * splits), p.rows), 32 * WARPS, 0, scope);
  const int cluster = splits * (p.HV / p.H);
  if (FUSED && cluster > 1) launch.cluster(static_cast<unsigned>(cluster));
  launch(step_kernel<K, EIn, EOut, ITS, WARPS, FUSED>, "step kernel launch", p);
}

#define KADENCE_STEP_INSTANCE(K, EIN, EOUT, ITS)                                                          \
  template void launch_step_instance<K, EIN, EOUT, ITS, 4, false>(const StepParams&, const LaunchScope&); \
  template void launch_step_instance<K, EIN, EOUT, ITS, 4, true>(const StepParams&, const LaunchScope&);
#define KADENCE_STEP_WIDE_INSTANCE(K, EIN, EOUT, ITS) \
  template void launch_step_instance<K, EIN, EOUT, ITS, 8, true>(const StepParams&, const LaunchScope&);

}  // namespace kadence::ops::cuda::sm90
