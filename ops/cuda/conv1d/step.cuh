// Convolution of one token per row, and of draft trees. One thread has VEC channels of one row.
#pragma once

#include "ops/cuda/conv1d/extend.cuh"
#include "ops/cuda/conv1d/launch.h"

namespace kadence::ops::cuda {

template <class E, int VEC>
__device__ __forceinline__ ConvVec<E, VEC> load_window(const void* base, int64_t pitch, int64_t slot, int i,
                                                       int32_t channels, int32_t channel) {
  return *reinterpret_cast<const ConvVec<E, VEC>*>(static_cast<const E*>(base) + slot * pitch +
                                                   static_cast<int64_t>(i) * channels + channel);
}

// In place or in -> out: a thread reads its own channels before it writes them.
template <class E, int VEC>
__global__ void __launch_bounds__(kConvThreads) conv_step_kernel(const __grid_constant__ ConvStepParams p) {
  using Vec = ConvVec<E, VEC>;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  const int32_t channel = (blockIdx.x * kConvThreads + threadIdx.x) * VEC;
  if (n >= p.rows || channel >= p.channels) return;
  const int32_t in = p.slot_in[n], out = p.slot_out[n];
  float y[VEC] = {};
  if (in >= 0 && in < p.in_slots && out >= -1 && out < p.out_slots) {
    const Vec w0 = load_window<E, VEC>(p.window_in, p.in_pitch, in, 0, p.channels, channel);
    const Vec w1 = load_window<E, VEC>(p.window_in, p.in_pitch, in, 1, p.channels, channel);
    const Vec w2 = load_window<E, VEC>(p.window_in, p.in_pitch, in, 2, p.channels, channel);
    const Vec x = *reinterpret_cast<const Vec*>(static_cast<const E*>(p.x) + n * p.x_pitch + channel);
#pragma unroll
    for (int c = 0; c < VEC; ++c)
      y[c] = conv4_silu(reinterpret_cast<const float4*>(p.weight)[channel + c], p.bias ? p.bias[channel + c] : 0.0f,
                        to_float(w0.e[c]), to_float(w1.e[c]), to_float(w2.e[c]), to_float(x.e[c]));
    if (out >= 0) {
      E* to = static_cast<E*>(p.window_out) + out * p.out_pitch + channel;
      *reinterpret_cast<Vec*>(to) = w1;
      *reinterpret_cast<Vec*>(to + p.channels) = w2;
      *reinterpret_cast<Vec*>(to + 2 * static_cast<int64_t>(p.channels)) = x;
    }
  }
  if (p.y_f32) {
    float* to = static_cast<float*>(p.y) + n * p.y_pitch + channel;
#pragma unroll
    for (int c = 0; c < VEC; ++c) to[c] = y[c];
  } else {
    Vec v;
    v.set(y);
    *reinterpret_cast<Vec*>(static_cast<E*>(p.y) + n * p.y_pitch + channel) = v;
  }
}

struct ConvVerifyParams {
  const void* x = nullptr;
  int64_t x_pitch = 0;
  void* y = nullptr;
  int64_t y_pitch = 0;
  int32_t channels = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int32_t rows = 0, D = 0;
  const int32_t* n_draft = nullptr;
  const int32_t* parent = nullptr;
  const int32_t* slot_in = nullptr;
  ConvWindows window;
};

template <class E, int VEC>
__global__ void __launch_bounds__(kConvThreads) conv_verify_kernel(const __grid_constant__ ConvVerifyParams p) {
  using Vec = ConvVec<E, VEC>;
  __shared__ int parent[kMaxDraftTokens];
  __shared__ int source[kMaxDraftTokens][kConvWindow];  // of taps 0..2: node, or -3..-1 = committed window 0..2
  __shared__ bool rooted[kMaxDraftTokens];
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x;
  const int32_t channel = (blockIdx.x * kConvThreads + tid) * VEC;
  const int32_t slot = p.slot_in[n], drafts = p.n_draft[n];
  if (tid < p.D) parent[tid] = p.parent[n * p.D + tid];
  __syncthreads();
  const bool live = slot >= 0 && slot < p.window.slots && drafts >= 0 && drafts <= p.D;
  if (live && tid < drafts) {
    bool ok = true;  // no parent on the way to the root is out of range
    for (int a = tid; ok && a >= 0; a = parent[a]) ok = parent[a] < a && parent[a] >= -1;
    rooted[tid] = ok;
    int node = parent[tid];
#pragma unroll
    for (int j = kConvWindow - 1; ok && j >= 0; --j) {
      source[tid][j] = node;
      node = node >= 0 ? parent[node] : node - 1;
    }
  }
  __syncthreads();
  if (channel >= p.channels) return;

  const int valid = live ? drafts : 0;
  const E* x = static_cast<const E*>(p.x) + n * p.D * p.x_pitch + channel;
  E* y = static_cast<E*>(p.y) + n * p.D * p.y_pitch + channel;
  Vec w[kConvWindow];
  float4 taps[VEC];
  float bias[VEC];
  if (valid) {
#pragma unroll
    for (int i = 0; i < kConvWindow; ++i)
      w[i] = load_window<E, VEC>(p.window.base, p.window.pitch, slot, i, p.channels, channel);
#pragma unroll
    for (int c = 0; c < VEC; ++c) {
      taps[c] = reinterpret_cast<const float4*>(p.weight)[channel + c];
      bias[c] = p.bias ? p.bias[channel + c] : 0.0f;
    }
  }
  for (int d = 0; d < p.D; ++d) {
    Vec out;
    if (d < valid && rooted[d]) {
      Vec in[kConvWindow];
#pragma unroll
      for (int j = 0; j < kConvWindow; ++j) {
        const int from = source[d][j];
        in[j] = from >= 0    ? *reinterpret_cast<const Vec*>(x + from * p.x_pitch)
                : from == -1 ? w[2]
                : from == -2 ? w[1]
                             : w[0];
      }
      const Vec cur = *reinterpret_cast<const Vec*>(x + d * p.x_pitch);
      float r[VEC];
#pragma unroll
      for (int c = 0; c < VEC; ++c)
        r[c] = conv4_silu(taps[c], bias[c], to_float(in[0].e[c]), to_float(in[1].e[c]), to_float(in[2].e[c]),
                          to_float(cur.e[c]));
      out.set(r);
    } else {
#pragma unroll
      for (int c = 0; c < VEC; ++c) out.e[c] = from_float<E>(0.0f);
    }
    *reinterpret_cast<Vec*>(y + d * p.y_pitch) = out;
  }
}

}  // namespace kadence::ops::cuda
