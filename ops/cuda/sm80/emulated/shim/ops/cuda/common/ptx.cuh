// Stands in for ops/cuda/common/ptx.cuh where kernels run on emulated warps: what the chunked extend uses of it.
#pragma once

#include "ops/cuda/sm80/emulated/warps.h"

namespace kadence::ops::cuda::ptx {

inline float exp2_approx(float x) {
  const float r = std::exp2(x);
  return r < 0x1p-126f ? 0.0f : r;
}
inline float log2_approx(float x) { return std::log2(x); }
inline float rcp_approx(float x) {
  const float r = 1.0f / x;
  return std::abs(r) < 0x1p-126f ? 0.0f : r;
}
inline float rsqrt_approx(float x) { return 1.0f / std::sqrt(x); }
inline uint32_t pack_bf16(float lo, float hi) {
  return base::f32_to_bf16(lo) | static_cast<uint32_t>(base::f32_to_bf16(hi)) << 16;
}
inline uint32_t pack_f16(float lo, float hi) {
  return base::f32_to_f16(lo) | static_cast<uint32_t>(base::f32_to_f16(hi)) << 16;
}
inline float bf16_lo(uint32_t x) { return __uint_as_float(x << 16); }
inline float bf16_hi(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

}  // namespace kadence::ops::cuda::ptx
