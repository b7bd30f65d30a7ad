// One token per row. A CTA holds ROWS value channels of one state in registers: it is read once and written once, and
// everything else (gate, norms, beta; in the fused form the convolution and the gated norm too) hides behind that.
#pragma once

#include "ops/cuda/conv1d/core.cuh"
#include "ops/cuda/sm90/step_core/core.cuh"
#include "ops/cuda/sm90/step_decode/config.h"

namespace kadence::ops::cuda::sm90 {

struct StepParams {
  TokenInput q, k, v, decay, beta;
  GateParams gate;
  void* out = nullptr;
  int64_t out_token_pitch = 0;
  DType out_type = DType::kF32;
  int32_t H = 0, HV = 0, rows = 0;
  const int32_t* slot_in = nullptr;
  const int32_t* slot_out = nullptr;
  const void* state_in = nullptr;
  void* state_out = nullptr;
  int64_t in_pitch = 0, out_pitch = 0, in_slots = 0, out_slots = 0;
  int32_t* status = nullptr;
  int32_t ahead = 0;  // see cta_ahead()
  // Fused form.
  TokenInput x, z;
  const float* conv_weight = nullptr;
  const float* conv_bias = nullptr;
  void* windows = nullptr;
  int64_t window_pitch = 0, window_slots = 0;
  const float* norm_weight = nullptr;
  float eps = 0;
};

// C channels of the convolution for one row. The new window is the caller's to store, once nobody reads the old one.
template <int C>
struct ConvStep {
  RawChannels<C> w0, w1, w2, x;
  float4 taps[C];
  float bias[C];

  // What does not depend on the slot.
  __device__ __forceinline__ void load_input(const StepParams& p, int64_t n, int32_t channel) {
    x.load(p.x.data, n * p.x.pitch + channel, p.x.type);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      taps[c] = reinterpret_cast<const float4*>(p.conv_weight)[channel + c];
      bias[c] = p.conv_bias ? p.conv_bias[channel + c] : 0.0f;
    }
  }
  __device__ __forceinline__ void load_window(const StepParams& p, int64_t slot_in, int32_t channels, int32_t channel) {
    const int64_t at = slot_in * p.window_pitch + channel;
    w0.load(p.windows, at, p.x.type);
    w1.load(p.windows, at + channels, p.x.type);
    w2.load(p.windows, at + 2 * static_cast<int64_t>(channels), p.x.type);
  }
  __device__ __forceinline__ void activations(DType t, float (&y)[C]) const {
    float x0[C], x1[C], x2[C], x3[C];
    w0.convert(t, x0), w1.convert(t, x1), w2.convert(t, x2), x.convert(t, x3);
#pragma unroll
    for (int c = 0; c < C; ++c) y[c] = conv4_silu(taps[c], bias[c], x0[c], x1[c], x2[c], x3[c]);
  }
  __device__ __forceinline__ void store(const StepParams& p, int64_t slot_out, int32_t channels,
                                        int32_t channel) const {
    const int64_t at = slot_out * p.window_pitch + channel;
    store_one(p, at, w1);
    store_one(p, at + channels, w2);
    store_one(p, at + 2 * static_cast<int64_t>(channels), x);
  }

 private:
  __device__ __forceinline__ static void store_one(const StepParams& p, int64_t at, const RawChannels<C>& r) {
    if (p.x.type == DType::kF32) {
      uint32_t* d = static_cast<uint32_t*>(p.windows) + at;
#pragma unroll
      for (int c = 0; c < C; ++c) d[c] = r.w[c];
    } else {
      uint32_t* d = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.windows) + at);
#pragma unroll
      for (int c = 0; c < C / 2; ++c) d[c] = r.w[c];
    }
  }
};

// One channel of the convolution; its window belongs to one thread alone and moves on at once.
struct ConvStepOne {
  RawScalar w0, w1, w2, x;
  float bias = 0;
  float4 taps;
  __device__ __forceinline__ void load_input(const StepParams& p, int64_t n, int32_t channel) {
    x.load(p.x.data, n * p.x.pitch + channel, p.x.type);
    taps = reinterpret_cast<const float4*>(p.conv_weight)[channel];
    bias = p.conv_bias ? p.conv_bias[channel] : 0.0f;
  }
  __device__ __forceinline__ void load_window(const StepParams& p, int64_t slot_in, int32_t channels, int32_t channel) {
    const int64_t c = channels, in = slot_in * p.window_pitch + channel;
    w0.load(p.windows, in, p.x.type);
    w1.load(p.windows, in + c, p.x.type);
    w2.load(p.windows, in + 2 * c, p.x.type);
  }
  __device__ __forceinline__ float run(const StepParams& p, int64_t slot_out, int32_t channels, int32_t channel) const {
    const DType t = p.x.type;
    if (slot_out >= 0) {
      const int64_t c = channels, to = slot_out * p.window_pitch + channel;
      w1.store(p.windows, to, t);
      w2.store(p.windows, to + c, t);
      x.store(p.windows, to + 2 * c, t);
    }
    return conv4_silu(taps, bias, w0.get(t), w1.get(t), w2.get(t), x.get(t));
  }
};

// Clusters; without them (before sm_90) no launch is `clustered`.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// *p of CTA `rank` of the cluster, p being an address of this CTA's shared memory.
__device__ __forceinline__ void store_remote(float* p, uint32_t rank, float x) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(ptx::shared_address(p)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(x) : "memory");
}
#else
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ uint32_t cluster_rank() { return 0; }
__device__ __forceinline__ void store_remote(float*, uint32_t, float) {}
#endif

// The launch bounds leave room for enough CTAs that their loads cover the memory's latency.
template <int K, class EIn, class EOut, int ITS, int WARPS, bool FUSED>
__global__ void __launch_bounds__(32 * WARPS, step_ctas_per_sm(ITS, WARPS, FUSED))
    step_kernel(const __grid_constant__ StepParams p) {
  constexpr int V = K, THREADS = 32 * WARPS;
  constexpr int W = kChunkWidth<EIn, EOut>;
  constexpr int LANES = Lanes<K>::kLanes, GROUPS = Lanes<K>::kGroups, C = Lanes<K>::kPerLane;
  constexpr int WARP_ROWS = ITS * GROUPS, ROWS = WARPS * WARP_ROWS, SPLITS = V / ROWS;
  constexpr int V_WARPS = WARPS - 3;  // that fetch v
  constexpr int V_EACH = (ROWS + 32 * V_WARPS - 1) / (32 * V_WARPS);
  static_assert(V % ROWS == 0 && ROWS <= THREADS);
  using Sums = RowSums<ITS, LANES>;

  __shared__ __align__(16) float sk[K], sq[K], sd[K], sv[ROWS];
  __shared__ float warp_sums[WARPS];
  __shared__ float cluster_sums[FUSED ? SPLITS : 1];

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int per_head = p.HV / p.H, h = hv / per_head;
  const int row0 = split * ROWS + warp * WARP_ROWS;  // this warp's first value channel
  const int my_row = row0 + group * ITS + Sums::iteration(slice);
  const bool owner = Sums::owns(slice);
  // A head's norm, and the windows of q and k, span a cluster unless one CTA has the whole head to itself.
  [[maybe_unused]] const bool clustered = FUSED && (SPLITS > 1 || per_head > 1);
  if (clustered) cluster_arrive();  // this CTA runs: its shared memory may be written
  wait_for_previous();

  // One vector per warp: k, q, decay, v. What does not depend on the slot goes out first.
  const int slot_in = p.slot_in[n], slot_out = p.slot_out[n];
  [[maybe_unused]] const int channels = 2 * p.H * K + p.HV * V;
  [[maybe_unused]] const int conv_channel = (warp == 0 ? p.H * K : 0) + h * K + lane * C;
  [[maybe_unused]] ConvStep<C> conv;
  [[maybe_unused]] ConvStepOne conv_v[V_EACH];
  RawChannels<C> raw;
  GateChannels<C> gate;
  RawScalar v[V_EACH], beta_raw;
  beta_raw.load(p.beta.data, n * p.beta.pitch + hv, p.beta.type);
  if (warp < 2) {
    const TokenInput& t = warp == 0 ? p.k : p.q;
    if constexpr (FUSED) {
      conv.load_input(p, n, conv_channel);
    } else {
      raw.load(t.data, n * t.pitch + static_cast<int64_t>(h) * K + lane * C, t.type);
    }
  } else if (warp == 2) {
    raw.load(p.decay.data, n * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
    gate.load(p.gate, hv, K, lane * C);
  } else {
#pragma unroll
    for (int i = 0; i < V_EACH; ++i) {
      const int r = i * 32 * V_WARPS + tid - 96;
      if (r >= ROWS) continue;
      if constexpr (FUSED) {
        conv_v[i].load_input(p, n, 2 * p.H * K + hv * V + split * ROWS + r);
      } else {
        v[i].load(p.v.data, n * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + r, p.v.type);
      }
    }
  }
  [[maybe_unused]] RawScalar z_raw;
  if (FUSED && owner) z_raw.load(p.z.data, n * p.z.pitch + static_cast<int64_t>(hv) * V + my_row, p.z.type);

  const bool bad_in = slot_in < -1 || slot_in >= p.in_slots || (FUSED && slot_in >= p.window_slots);
  const bool bad_out =
      slot_in != -1 && (slot_out < -1 || slot_out >= p.out_slots || (FUSED && slot_out >= p.window_slots));
  const int64_t out_at = n * p.out_token_pitch + static_cast<int64_t>(hv) * V;
  if (slot_in == -1 || bad_in || bad_out) {
    if (tid < ROWS) store_scalar(p.out, out_at + split * ROWS + tid, p.out_type, 0.0f);
    if (tid == 0 && (bad_in || bad_out))
      report(p.status, n, bad_in ? KdaRowStatus::kBadStateIn : KdaRowStatus::kBadStateOut);
    return;
  }

  const int64_t head_at = static_cast<int64_t>(hv) * V * K + static_cast<int64_t>(row0 + group * ITS) * K;
  const EIn* src = static_cast<const EIn*>(p.state_in) + slot_in * p.in_pitch + head_at;
  if constexpr (FUSED) {
    if (warp < 2) {
      conv.load_window(p, slot_in, channels, conv_channel);
    } else if (warp > 2) {
#pragma unroll
      for (int i = 0; i < V_EACH; ++i) {
        const int r = i * 32 * V_WARPS + tid - 96;
        if (r < ROWS) conv_v[i].load_window(p, slot_in, channels, 2 * p.H * K + hv * V + split * ROWS + r);
      }
    }
  }
  Slice<EIn, W, LANES> state[ITS];
#pragma unroll
  for (int it = 0; it < ITS; ++it) state[it].load(src + it * K, slice);

  let_next_launch();
  unsigned next_x;
  int next_row;
  if (warp == WARPS - 1 && cta_ahead(p.ahead, p.rows, next_x, next_row)) {
    const int slot = p.slot_in[next_row];
    if (lane == 0 && slot >= 0 && slot < p.in_slots)
      prefetch_l2(static_cast<const EIn*>(p.state_in) + slot * p.in_pitch + static_cast<int64_t>(next_x) * ROWS * K,
                  ROWS * K * static_cast<int>(sizeof(EIn)));
  }
  if (warp < 2) {
    float x[C];
    if constexpr (FUSED) {
      conv.activations(p.x.type, x);
      if (!clustered && slot_out >= 0) conv.store(p, slot_out, channels, conv_channel);
    } else {
      raw.convert(warp == 0 ? p.k.type : p.q.type, x);
    }
    normalise(p.gate, warp == 0 ? 1.0f : p.gate.scale, x);
    write_channels((warp == 0 ? sk : sq) + lane * C, x);
  } else if (warp == 2) {
    float x[C];
    raw.convert(p.decay.type, x);
    gate.apply(p.gate, x);
    write_channels(sd + lane * C, x);
  } else {
#pragma unroll
    for (int i = 0; i < V_EACH; ++i) {
      const int r = i * 32 * V_WARPS + tid - 96;
      if (r >= ROWS) continue;
      if constexpr (FUSED) {
        sv[r] = conv_v[i].run(p, slot_out, channels, 2 * p.H * K + hv * V + split * ROWS + r);
      } else {
        sv[r] = v[i].get(p.v.type);
      }
    }
  }
  const float beta = beta_value(p.gate, beta_raw.get(p.beta.type));
  __syncthreads();

  const float kq = dot_kq<W, LANES>(sk, sq, slice);
  float s[ITS][16], pk[ITS], pq[ITS], u[ITS], v_rows[ITS];
#pragma unroll
  for (int it = 0; it < ITS; ++it) state[it].unpack(s[it]);
  decay_and_dot<W, LANES>(s, sd, sk, sq, slice, pk, pq);
  const float sq_own = Sums::reduce(pk, pq, slice);
  read_rows<ITS>(&sv[warp * WARP_ROWS + group * ITS], v_rows);
#pragma unroll
  for (int it = 0; it < ITS; ++it) u[it] = delta(beta, v_rows[it], pk[it]);
  rank_one<W, LANES>(s, u, sk, slice);
  const float o = output(sq_own, kq, Sums::own(u, slice));
  if (slot_out >= 0) {
    EOut* dst = static_cast<EOut*>(p.state_out) + slot_out * p.out_pitch + head_at;
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      Slice<EOut, W, LANES> w;
      w.pack(s[it]);
      w.store(dst + it * K, slice);
    }
  }
  if constexpr (!FUSED) {
    if (owner) store_scalar(p.out, out_at + my_row, p.out_type, o);
    return;
  }

  // The norm needs the head's whole sum of squares: a binary tree over the bits of the row number, lowest first, so
  // that the sum does not depend on the launch shape.
  float sum = owner ? __fmul_rn(o, o) : 0.0f;
#pragma unroll
  for (int m = ITS; m > 1; m /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullMask, sum, m));  // bit 0 of the row is lane bit log2(ITS)
#pragma unroll
  for (int m = LANES; m < 32; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kFullMask, sum, m));
  if (lane == 1) warp_sums[warp] = sum;
  __syncthreads();
  float tree[WARPS];
#pragma unroll
  for (int i = 0; i < WARPS; ++i) tree[i] = warp_sums[i];
#pragma unroll
  for (int m = 1; m < WARPS; m *= 2)
#pragma unroll
    for (int i = 0; i < WARPS; i += 2 * m) tree[i] = __fadd_rn(tree[i], tree[i + m]);
  float total = tree[0];
  if (clustered) {
    cluster_wait();  // every CTA of the cluster runs
    const uint32_t rank = cluster_rank(), first = rank - rank % SPLITS;
    if (tid < SPLITS) store_remote(&cluster_sums[split], first + tid, total);
    // The same barrier says that every CTA has read the windows of q and k.
    cluster_arrive();
    cluster_wait();
    float all[SPLITS];
#pragma unroll
    for (int i = 0; i < SPLITS; ++i) all[i] = cluster_sums[i];
#pragma unroll
    for (int m = 1; m < SPLITS; m *= 2)
#pragma unroll
      for (int i = 0; i < SPLITS; i += 2 * m) all[i] = __fadd_rn(all[i], all[i + m]);
    total = all[0];
    if (rank == 0 && warp < 2 && slot_out >= 0) conv.store(p, slot_out, channels, conv_channel);
  }
  const float norm = rsqrtf(__fadd_rn(__fmul_rn(total, 1.0f / V), p.eps));
  if (owner) {
    const float y = __fmul_rn(__fmul_rn(__fmul_rn(o, norm), p.norm_weight[my_row]), sigmoid_f32(z_raw.get(p.z.type)));
    store_scalar(p.out, out_at + my_row, p.out_type, y);
  }
}

}  // namespace kadence::ops::cuda::sm90
