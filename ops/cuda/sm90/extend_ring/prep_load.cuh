// Preparation's inputs: where a chunk's tokens lie, how a thread holds them, and what the gate makes of them.
#pragma once

#include <type_traits>

#include "ops/cuda/common/async.cuh"
#include "ops/cuda/sm90/extend_ring/params.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

inline constexpr float kLog2E = 1.4426950408889634f;

// What a thread holds of a chunk and head before it is worked on: everything but keys and queries, which the copy
// engine brings to shared memory. Tokens past the row's end have gate inputs that make no decay.
template <bool kDecayF32>
struct RawChunk;
template <>
struct RawChunk<false> {
  uint2 g[8];
  uint32_t beta;  // bits as stored
  float a_log;
  float4 bias;
  __device__ float4 decay(int i) const {
    return make_float4(bf16_lo(g[i].x), bf16_hi(g[i].x), bf16_lo(g[i].y), bf16_hi(g[i].y));
  }
};
template <>
struct RawChunk<true> {
  const float4* g;  // this lane's channels of the warp's first token; fetched into L2 only, registers are short
  uint32_t step;
  int left;
  float none;
  uint32_t beta;  // bits as stored
  float a_log;
  float4 bias;
  __device__ float4 decay(int i) const {
    return i < left ? __ldg(g + static_cast<uint64_t>(i * step)) : make_float4(none, none, none, none);
  }
};

// Where a chunk's inputs begin: at its first token and its head.
struct ChunkInputs {
  const char *decay, *beta;
  int head, qk_column;  // value head; first channel of the key head
  int token, count;     // count 0 = no chunk
};
template <bool kDecayF32>
__device__ __forceinline__ ChunkInputs inputs_of(const RingParams& p, int head, int token, int count) {
  const int64_t first = token;
  ChunkInputs in;
  in.decay = static_cast<const char*>(p.decay) + (first * p.decay_pitch + head * kDim) * (kDecayF32 ? 4 : 2);
  in.beta = static_cast<const char*>(p.beta) + (first * p.beta_pitch + head) * (p.beta_fp32 ? 4 : 2);
  in.head = head, in.qk_column = (p.group == 1 ? head : head / p.group) * kDim;
  in.token = token, in.count = count;
  return in;
}

// By one thread: keys to rows 0-31 and queries to rows 32-63 of the tile at `tile`, counted on `bar`.
__device__ __forceinline__ void load_keys(const RingParams& p, const ChunkInputs& in, uint32_t tile, uint32_t bar) {
  mbarrier_arrive_expect_tx(bar, 4 * 4096);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    tensor_load_2d(tile + half * 8192, &p.keys, in.qk_column + half * 64, in.token, bar, policy_stream());
    tensor_load_2d(tile + half * 8192 + 4096, &p.queries, in.qk_column + half * 64, in.token, bar, policy_stream());
  }
}

template <KdaGate kGate, bool kDecayF32>
__device__ __forceinline__ void load_raw(RawChunk<kDecayF32>& raw, const RingParams& p, const ChunkInputs& in, int w,
                                         int l) {
  const int left = in.count - w * 8;
  using Decay = std::conditional_t<kDecayF32, float4, uint2>;
  const uint32_t step = static_cast<uint32_t>(p.decay_pitch) / 4;  // in groups of four channels
  const Decay* g = reinterpret_cast<const Decay*>(in.decay) + l + static_cast<uint64_t>(w * 8) * step;
  // A gate input that makes no decay: -inf for the two activations, 0 for a given log decay.
  constexpr uint32_t kNone = kGate == KdaGate::kGivenLogDecay ? 0u : 0xff80ff80u;
  if constexpr (kDecayF32) {
    raw.g = g, raw.step = step, raw.left = left, raw.none = bf16_hi(kNone);
    if (l % 8 == 0) {
#pragma unroll 1
      for (int i = 0; i < min(left, 8); ++i) prefetch_l2(g + static_cast<uint64_t>(i * step));
    }
  } else if (left >= 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) raw.g[i] = __ldg(g + static_cast<uint64_t>(i * step));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      raw.g[i] = i < left ? __ldg(g + static_cast<uint64_t>(i * step)) : make_uint2(kNone, kNone);
  }
  raw.beta = 0;
  if (w == 0 && l < in.count) {
    raw.beta = p.beta_fp32 ? __ldg(reinterpret_cast<const uint32_t*>(in.beta) + l * p.beta_pitch)
                           : __ldg(reinterpret_cast<const uint16_t*>(in.beta) + l * p.beta_pitch);
  }
  if constexpr (kGate != KdaGate::kGivenLogDecay) {
    raw.a_log = __ldg(p.a_log + in.head);
    raw.bias = p.dt_bias ? __ldg(reinterpret_cast<const float4*>(p.dt_bias + in.head * kDim + l * 4))
                         : make_float4(0, 0, 0, 0);
  }
}

// Decay of one token in log2 units.
template <KdaGate kGate>
struct GateFunction {
  float slope, factor, offset[4];
  template <class Raw>
  __device__ GateFunction(const Raw& raw, const RingParams& p) {
    if constexpr (kGate == KdaGate::kBounded) {
      // Kept above 0 so that a masked input of -inf gives no decay.
      slope = -kLog2E * fmaxf(exp2_approx(kLog2E * raw.a_log), 1e-30f), factor = p.lower_bound * kLog2E;
    } else if constexpr (kGate == KdaGate::kSoftplus) {
      slope = kLog2E, factor = -exp2_approx(kLog2E * raw.a_log);
    } else {
      slope = kLog2E, factor = 1.0f;
    }
    if constexpr (kGate != KdaGate::kGivenLogDecay)
      offset[0] = raw.bias.x * slope, offset[1] = raw.bias.y * slope, offset[2] = raw.bias.z * slope,
      offset[3] = raw.bias.w * slope;
  }
  __device__ __forceinline__ float operator()(float x, int c) const {
    if constexpr (kGate == KdaGate::kBounded) {
      return factor * rcp_approx(1.0f + exp2_approx(fmaf(x, slope, offset[c])));
    } else if constexpr (kGate == KdaGate::kSoftplus) {
      const float y = fmaf(x, slope, offset[c]), z = exp2_approx(y);
      // log2(1 + z): a short series where 1 + z would lose z's bits.
      const float s = z < 0.00390625f ? z * fmaf(z, -0.5f * kLog2E, kLog2E) : log2_approx(1.0f + z);
      return factor * (y >= kSoftplusThreshold * kLog2E ? y : s);
    } else {
      return x * slope;
    }
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
