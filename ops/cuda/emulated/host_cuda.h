// What both emulations need before a kernel's source compiles on the host: CUDA's qualifiers defined away, and the
// intrinsics and wrappers of ops/cuda/common/ptx.cuh that are arithmetic on one thread's own values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"

#undef __shared__
#define __shared__ static
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }

namespace kadence::ops::cuda::ptx {

// As the hardware's: subnormal results are zeros.
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
