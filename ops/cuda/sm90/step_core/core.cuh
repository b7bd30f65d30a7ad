// Device code of the one-token recurrence, shared by step, verify and commit and by the portable extend.
//
// A warp works on GROUPS = 32 / LANES rows (value channels) of the state at once; LANES = K / 16 lanes share a row and
// each holds 16 of its K channels. The channels are dealt in chunks of W (16 bytes where in and out types allow), so
// that each load of the warp covers whole sectors. Every sum over K has one fixed order that depends on K and W
// alone: not on the rows per warp, not on the kernel. That is what makes verify and commit agree with step to the bit.
// For the same reason multiplications and additions are spelled with their rounding, so that no compiler fuses them
// in one kernel and not in another.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/common/element.cuh"
#include "ops/cuda/common/status.cuh"
#include "ops/kda.h"

namespace kadence::ops::cuda {

inline constexpr int kStepWarps = 4;
inline constexpr int kStepThreads = 32 * kStepWarps;
inline constexpr unsigned kFullMask = 0xffffffffu;

// -- element types
// ------------------------------------------------------------------------------------------------------

template <class E>
__device__ __forceinline__ float round_to(float x) {
  return to_float(from_float<E>(x));
}

__device__ __forceinline__ float load_scalar(const void* base, int64_t i, DType t) {
  if (t == DType::kF32) return static_cast<const float*>(base)[i];
  const uint16_t bits = static_cast<const uint16_t*>(base)[i];
  return t == DType::kBF16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ void store_scalar(void* base, int64_t i, DType t, float x) {
  if (t == DType::kF32) {
    static_cast<float*>(base)[i] = x;
  } else if (t == DType::kBF16) {
    static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16_rn(x);
  } else {
    static_cast<__half*>(base)[i] = __float2half_rn(x);
  }
}

// C consecutive elements of a run-time type, loaded early and converted late: the load does not wait for its use.
template <int C>
struct RawChannels {
  uint32_t w[C];
  __device__ __forceinline__ void load(const void* base, int64_t i, DType t) {
    if (t == DType::kF32) {
      const float* p = static_cast<const float*>(base) + i;
      load_words<C>(p);
    } else {
      const uint16_t* p = static_cast<const uint16_t*>(base) + i;
      load_words<C / 2>(p);
    }
  }
  __device__ __forceinline__ void convert(DType t, float (&x)[C]) const {
    if (t == DType::kF32) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[c] = __uint_as_float(w[c]);
    } else if (t == DType::kBF16) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[c] = __uint_as_float(c % 2 ? (w[c / 2] & 0xffff0000u) : (w[c / 2] << 16));
    } else {
#pragma unroll
      for (int c = 0; c < C; ++c)
        x[c] = __half2float(__ushort_as_half(static_cast<uint16_t>(c % 2 ? (w[c / 2] >> 16) : (w[c / 2] & 0xffffu))));
    }
  }

 private:
  template <int WORDS>
  __device__ __forceinline__ void load_words(const void* p) {
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
      for (int c = 0; c < WORDS; c += 4) {
        const uint4 v = reinterpret_cast<const uint4*>(p)[c / 4];
        w[c] = v.x, w[c + 1] = v.y, w[c + 2] = v.z, w[c + 3] = v.w;
      }
    } else if constexpr (WORDS == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      w[0] = v.x, w[1] = v.y;
    } else {
      static_assert(WORDS == 1);
      w[0] = *reinterpret_cast<const uint32_t*>(p);
    }
  }
};

// -- the state slice of one lane
// -----------------------------------------------------------------------------------------

// Chunk width for a pair of state types: 16-byte accesses on both sides if the sizes agree, 8 and 16 otherwise.
template <class EIn, class EOut>
inline constexpr int kChunkWidth = sizeof(EIn) == 2 && sizeof(EOut) == 2 ? 8 : 4;

template <int K>
struct Lanes {
  static constexpr int kLanes = K / 16;        // lanes of a row
  static constexpr int kGroups = 32 / kLanes;  // rows that a warp touches at once
  static constexpr int kPerLane = K / 32;      // channels per lane where a whole warp holds one vector of K
};

template <class E, int W, int LANES>
struct Slice {
  static constexpr int kChunks = 16 / W;
  using Word = std::conditional_t<W * sizeof(E) == 16, uint4, uint2>;
  static_assert(W * sizeof(E) == 16 || W * sizeof(E) == 8);
  Word w[kChunks];

  __device__ __forceinline__ void load(const E* row, int lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) w[c] = *reinterpret_cast<const Word*>(row + (c * LANES + lane) * W);
  }
  __device__ __forceinline__ void store(E* row, int lane) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) *reinterpret_cast<Word*>(row + (c * LANES + lane) * W) = w[c];
  }
  __device__ __forceinline__ float get(int e) const { return to_float(reinterpret_cast<const E*>(&w[e / W])[e % W]); }
  __device__ __forceinline__ void set(int e, float x) { reinterpret_cast<E*>(&w[e / W])[e % W] = from_float<E>(x); }
};

// The 16 values of a vector of K floats in shared memory that belong to `lane`, in the order of Slice.
template <int W, int LANES>
__device__ __forceinline__ void read_factor(const float* vec, int lane, float (&x)[16]) {
#pragma unroll
  for (int e = 0; e < 16; e += 4) {
    const float4 v = *reinterpret_cast<const float4*>(vec + ((e / W) * LANES + lane) * W + e % W);
    x[e] = v.x, x[e + 1] = v.y, x[e + 2] = v.z, x[e + 3] = v.w;
  }
}

template <int WIDTH>
__device__ __forceinline__ float reduce_lanes(float x) {
#pragma unroll
  for (int d = 1; d < WIDTH; d *= 2) x = __fadd_rn(x, __shfl_xor_sync(kFullMask, x, d));
  return x;
}

// -- one token's factors
// -------------------------------------------------------------------------------------------------

struct TokenInput {
  const void* data = nullptr;
  int64_t pitch = 0;
  DType type = DType::kF32;
};

// What turns raw inputs into k, q, decay and beta.
struct GateParams {
  const float* A_log = nullptr;
  const float* dt_bias = nullptr;
  float lower_bound = 0, scale = 0;
  KdaGate gate = KdaGate::kBounded;
  bool beta_logits = true, beta_doubled = false, l2norm = true;
};

__device__ __forceinline__ float sigmoid_f32(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }

// exp(g) for one channel; a = exp(A_log).
__device__ __forceinline__ float gate_decay(const GateParams& p, float x, float a, float bias) {
  if (p.gate == KdaGate::kGivenLogDecay) return expf(x);
  x = __fadd_rn(x, bias);
  if (p.gate == KdaGate::kBounded) return expf(__fmul_rn(p.lower_bound, sigmoid_f32(__fmul_rn(a, x))));
  const float sp = x >= kSoftplusThreshold ? x : log1pf(expf(x));
  return expf(-__fmul_rn(a, sp));
}

__device__ __forceinline__ float beta_value(const GateParams& p, float x) {
  if (p.beta_logits) x = sigmoid_f32(x);
  return p.beta_doubled ? __fmul_rn(2.0f, x) : x;
}

// x (C channels of each lane, a whole warp per vector) -> x * rsqrt(sum x^2 + eps) * scale.
template <int C>
__device__ __forceinline__ void normalise(const GateParams& p, float scale, float (&x)[C]) {
  float f = scale;
  if (p.l2norm) {
    float s = 0;
#pragma unroll
    for (int c = 0; c < C; ++c) s = __fmaf_rn(x[c], x[c], s);
    s = reduce_lanes<32>(s);
    f = __fmul_rn(rsqrtf(__fadd_rn(s, kL2NormEps)), scale);
  }
#pragma unroll
  for (int c = 0; c < C; ++c) x[c] = __fmul_rn(x[c], f);
}

// decay for C channels from `channel` of value head hv.
template <int C, int K>
__device__ __forceinline__ void decay_channels(const GateParams& p, int hv, int channel, float (&x)[C]) {
  const float a = p.A_log && p.gate != KdaGate::kGivenLogDecay ? expf(p.A_log[hv]) : 1.0f;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float bias =
        p.dt_bias && p.gate != KdaGate::kGivenLogDecay ? p.dt_bias[static_cast<int64_t>(hv) * K + channel + c] : 0.0f;
    x[c] = gate_decay(p, x[c], a, bias);
  }
}

template <int C>
__device__ __forceinline__ void write_channels(float* dst, const float (&x)[C]) {
  if constexpr (C % 4 == 0) {
#pragma unroll
    for (int c = 0; c < C; c += 4)
      *reinterpret_cast<float4*>(dst + c) = make_float4(x[c], x[c + 1], x[c + 2], x[c + 3]);
  } else {
    static_assert(C == 2);
    *reinterpret_cast<float2*>(dst) = make_float2(x[0], x[1]);
  }
}

// -- the recurrence
// ------------------------------------------------------------------------------------------------------

// k.q, the same in each row's lanes.
template <int LANES>
__device__ __forceinline__ float dot_kq(const float (&k)[16], const float (&q)[16]) {
  float s = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) s = __fmaf_rn(k[e], q[e], s);
  return reduce_lanes<LANES>(s);
}

// s <- s * d, and this lane's part of (s k, s q).
__device__ __forceinline__ void decay_and_dot(float (&s)[16], const float (&d)[16], const float (&k)[16],
                                              const float (&q)[16], float& sk, float& sq) {
  sk = 0, sq = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    s[e] = __fmul_rn(s[e], d[e]);
    sk = __fmaf_rn(s[e], k[e], sk);
    sq = __fmaf_rn(s[e], q[e], sq);
  }
}
__device__ __forceinline__ float delta(float beta, float v, float sk) { return __fmul_rn(beta, __fsub_rn(v, sk)); }
// Both products are taken on the decayed old state: S q = S_dec q + (k.q) u.
__device__ __forceinline__ float output(float sq, float kq, float u) { return __fmaf_rn(kq, u, sq); }
__device__ __forceinline__ void rank_one(float (&s)[16], float u, const float (&k)[16]) {
#pragma unroll
  for (int e = 0; e < 16; ++e) s[e] = __fmaf_rn(u, k[e], s[e]);
}
__device__ __forceinline__ void replay(float (&s)[16], const float (&d)[16], float u, const float (&k)[16]) {
#pragma unroll
  for (int e = 0; e < 16; ++e) s[e] = __fmaf_rn(u, k[e], __fmul_rn(s[e], d[e]));
}

__device__ __forceinline__ void report(int32_t* status, int64_t row, KdaRowStatus reason) {
  report_row(status, static_cast<int32_t>(row), static_cast<int32_t>(reason));
}

}  // namespace kadence::ops::cuda
