// Launch shapes of the step kernel, and the pure function that picks one. Host only; tested without a GPU.
#pragma once

#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cuda::sm90 {

// A CTA of `warps` warps holds warps * iterations * (512 / K) rows of the state, 16 values of a row per lane.
// K = 128, four warps: 64, 32 or 16 rows.
constexpr int step_rows_per_cta(int K, int iterations, int warps = 4) { return warps * iterations * (512 / K); }
constexpr int step_splits(int K, int V, int iterations, int warps = 4) {
  return V / step_rows_per_cta(K, iterations, warps);
}

// CTAs that share a multiprocessor, by the launch bounds of the kernel.
constexpr int step_ctas_per_sm(int iterations, int warps, bool fused) {
  return fused ? 16 / warps : iterations == 4 ? 4 : iterations == 2 ? 6 : 8;
}

// How fused_step is run.
enum class StepFusion : int32_t { kNone = 0, kOneLaunch = 1, kThreeLaunches = 2 };

struct StepChoice {
  int iterations = 4;
  int warps = 4;
  StepFusion fusion = StepFusion::kNone;
};

// Largest cluster that every Hopper device schedules.
inline constexpr int kMaxClusterCtas = 8;

// From host facts alone. README.md has the measurements behind the thresholds.
// `max_cluster`: CTAs of a cluster, 1 where there are none.
StepChoice choose_step(const KdaProblem& problem, int sm_count, int max_cluster = kMaxClusterCtas);
// KdaPlan::variant_ <-> choice.
int32_t encode(const StepChoice& choice);
StepChoice decode_step_choice(int32_t variant);

}  // namespace kadence::ops::cuda::sm90
