// Launch shapes of the step kernel, and the pure function that picks one. Host only; tested without a GPU.
#pragma once

#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cuda::sm90 {

// Row iterations per warp: a CTA of 4 warps holds 4 * kIterations * (512 / K) rows of the state, 16 values of each per
// lane. K = V = 128: 64, 32 or 16 rows.
enum class StepShape : int32_t { kRows1 = 1, kRows2 = 2, kRows4 = 4 };

constexpr int step_rows_per_cta(int K, int iterations) { return 4 * iterations * (512 / K); }
constexpr int step_splits(int K, int V, int iterations) { return V / step_rows_per_cta(K, iterations); }

// How fused_step is run.
enum class StepFusion : int32_t { kNone = 0, kOneLaunch = 1, kThreeLaunches = 2 };

struct StepChoice {
  int iterations = 4;
  StepFusion fusion = StepFusion::kNone;
};

// Largest cluster that every Hopper device schedules.
inline constexpr int kMaxClusterCtas = 8;

// From host facts alone. README.md has the measurements behind the thresholds.
StepChoice choose_step(const KdaProblem& problem, int sm_count);
// KdaPlan::variant_ <-> choice.
int32_t encode(const StepChoice& choice);
StepChoice decode_step_choice(int32_t variant);

}  // namespace kadence::ops::cuda::sm90
