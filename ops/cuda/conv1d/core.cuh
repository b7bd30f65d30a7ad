// The arithmetic of the short convolution, in one order for extend, step, verify and the fused step: bias, then taps
// oldest first.
#pragma once

#include <cstdint>

#include "ops/cuda/common/ptx.cuh"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda {

// ex2.approx and rcp.approx: relative error about 2^-22.
__device__ __forceinline__ float silu(float y) {
  return __fmul_rn(y, ptx::rcp_approx(__fadd_rn(1.0f, ptx::exp2_approx(__fmul_rn(y, -1.4426950408889634f)))));
}

// w = the four taps of the channel, x0 the oldest input, x3 the current token's.
__device__ __forceinline__ float conv4_silu(float4 w, float bias, float x0, float x1, float x2, float x3) {
  float y = __fmaf_rn(w.x, x0, bias);
  y = __fmaf_rn(w.y, x1, y);
  y = __fmaf_rn(w.z, x2, y);
  y = __fmaf_rn(w.w, x3, y);
  return silu(y);
}

}  // namespace kadence::ops::cuda
