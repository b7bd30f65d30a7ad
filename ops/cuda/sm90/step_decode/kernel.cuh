// One token per row. A CTA holds ROWS value channels of one state in registers: it is read once and written once, and
// everything else (gate, norms, beta; in the fused form the convolution and the gated norm too) hides behind that.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/conv1d/core.cuh"
#include "ops/cuda/sm90/step_core/core.cuh"

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
  // Fused form.
  TokenInput x, z;
  const float* conv_weight = nullptr;
  const float* conv_bias = nullptr;
  void* windows = nullptr;
  int64_t window_pitch = 0, window_slots = 0;
  const float* norm_weight = nullptr;
  float eps = 0;
};

// C channels of the convolution for one row: reads the window, gives the activations and keeps the raw window that the
// caller stores once nobody reads it any more.
template <int C>
struct ConvStep {
  RawChannels<C> w1, w2, x;

  __device__ __forceinline__ void run(const StepParams& p, int64_t n, int64_t slot_in, int32_t channels,
                                      int32_t channel, float (&y)[C]) {
    RawChannels<C> w0;
    const DType t = p.x.type;
    const int64_t at = slot_in * p.window_pitch + channel;
    w0.load(p.windows, at, t);
    w1.load(p.windows, at + channels, t);
    w2.load(p.windows, at + 2 * static_cast<int64_t>(channels), t);
    x.load(p.x.data, n * p.x.pitch + channel, t);
    float x0[C], x1[C], x2[C], x3[C];
    w0.convert(t, x0), w1.convert(t, x1), w2.convert(t, x2), x.convert(t, x3);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float4 w = reinterpret_cast<const float4*>(p.conv_weight)[channel + c];
      y[c] = conv4_silu(w, p.conv_bias ? p.conv_bias[channel + c] : 0.0f, x0[c], x1[c], x2[c], x3[c]);
    }
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

template <int K, class EIn, class EOut, int ITS, bool FUSED>
__global__ void __launch_bounds__(kStepThreads) step_kernel(const __grid_constant__ StepParams p) {
  constexpr int V = K;
  constexpr int W = kChunkWidth<EIn, EOut>;
  constexpr int LANES = Lanes<K>::kLanes, GROUPS = Lanes<K>::kGroups, C = Lanes<K>::kPerLane;
  constexpr int WARP_ROWS = ITS * GROUPS, ROWS = kStepWarps * WARP_ROWS, SPLITS = V / ROWS;
  static_assert(V % ROWS == 0);
  static_assert(ITS <= LANES);  // lane i keeps the output of iteration i

  __shared__ __align__(16) float sk[K], sq[K], sd[K], sv[ROWS];
  __shared__ float warp_sums[kStepWarps];
  __shared__ float cluster_sums[FUSED ? SPLITS : 1];

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int slot_in = p.slot_in[n], slot_out = p.slot_out[n];
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int per_head = p.HV / p.H, h = hv / per_head;
  const int row0 = split * ROWS + warp * WARP_ROWS;  // this warp's first value channel

  // One vector per warp: k, q, decay, v. Inputs that do not depend on the slot go out first.
  RawChannels<C> raw;
  float vraw[(ROWS + 31) / 32] = {};
  if (!FUSED && warp == 0) raw.load(p.k.data, n * p.k.pitch + static_cast<int64_t>(h) * K + lane * C, p.k.type);
  if (!FUSED && warp == 1) raw.load(p.q.data, n * p.q.pitch + static_cast<int64_t>(h) * K + lane * C, p.q.type);
  if (warp == 2) raw.load(p.decay.data, n * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
  if (!FUSED && warp == 3) {
#pragma unroll
    for (int i = 0; i < (ROWS + 31) / 32; ++i)
      if (i * 32 + lane < ROWS)
        vraw[i] = load_scalar(p.v.data, n * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + i * 32 + lane,
                              p.v.type);
  }
  const float beta_raw = load_scalar(p.beta.data, n * p.beta.pitch + hv, p.beta.type);

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

  const int64_t head_at = static_cast<int64_t>(hv) * V * K + static_cast<int64_t>(row0 + group) * K;
  const EIn* src = static_cast<const EIn*>(p.state_in) + slot_in * p.in_pitch + head_at;
  Slice<EIn, W, LANES> state[ITS];
#pragma unroll
  for (int it = 0; it < ITS; ++it) state[it].load(src + it * GROUPS * K, slice);

  [[maybe_unused]] const int channels = 2 * p.H * K + p.HV * V;
  [[maybe_unused]] ConvStep<C> conv;
  [[maybe_unused]] float z_raw = 0;
  if (FUSED && slice < ITS)
    z_raw =
        load_scalar(p.z.data, n * p.z.pitch + static_cast<int64_t>(hv) * V + row0 + slice * GROUPS + group, p.z.type);
  if (warp < 2) {
    float x[C];
    if constexpr (FUSED) {
      conv.run(p, n, slot_in, channels, (warp == 0 ? p.H * K : 0) + h * K + lane * C, x);
    } else {
      raw.convert(warp == 0 ? p.k.type : p.q.type, x);
    }
    normalise(p.gate, warp == 0 ? 1.0f : p.gate.scale, x);
    write_channels((warp == 0 ? sk : sq) + lane * C, x);
  } else if (warp == 2) {
    float x[C];
    raw.convert(p.decay.type, x);
    decay_channels<C, K>(p.gate, hv, lane * C, x);
    write_channels(sd + lane * C, x);
  } else {
#pragma unroll
    for (int i = 0; i < (ROWS + 31) / 32; ++i) {
      const int r = i * 32 + lane;
      if (r >= ROWS) continue;
      if constexpr (FUSED) {
        // The value channels belong to this CTA alone, so their window moves on at once.
        const int channel = 2 * p.H * K + hv * V + split * ROWS + r;
        const DType t = p.x.type;
        const int64_t in = slot_in * p.window_pitch + channel;
        const float w0 = load_scalar(p.windows, in, t), w1 = load_scalar(p.windows, in + channels, t),
                    w2 = load_scalar(p.windows, in + 2 * static_cast<int64_t>(channels), t),
                    x = load_scalar(p.x.data, n * p.x.pitch + channel, t);
        vraw[i] = conv4_silu(reinterpret_cast<const float4*>(p.conv_weight)[channel],
                             p.conv_bias ? p.conv_bias[channel] : 0.0f, w0, w1, w2, x);
        if (slot_out >= 0) {
          const int64_t to = slot_out * p.window_pitch + channel;
          store_scalar(p.windows, to, t, w1);
          store_scalar(p.windows, to + channels, t, w2);
          store_scalar(p.windows, to + 2 * static_cast<int64_t>(channels), t, x);
        }
      }
      sv[r] = vraw[i];
    }
  }
  const float beta = beta_value(p.gate, beta_raw);
  __syncthreads();

  float k[16], q[16], d[16], sq_part[ITS], sk_part[ITS], s[ITS][16];
  read_factor<W, LANES>(sk, slice, k);
  read_factor<W, LANES>(sq, slice, q);
  read_factor<W, LANES>(sd, slice, d);
  const float kq = dot_kq<LANES>(k, q);
#pragma unroll
  for (int it = 0; it < ITS; ++it) {
#pragma unroll
    for (int e = 0; e < 16; ++e) s[it][e] = state[it].get(e);
    decay_and_dot(s[it], d, k, q, sk_part[it], sq_part[it]);
  }
#pragma unroll
  for (int it = 0; it < ITS; ++it) {
    sk_part[it] = reduce_lanes<LANES>(sk_part[it]);
    sq_part[it] = reduce_lanes<LANES>(sq_part[it]);
  }
  EOut* dst = static_cast<EOut*>(p.state_out) + slot_out * p.out_pitch + head_at;
  float o = 0;
#pragma unroll
  for (int it = 0; it < ITS; ++it) {
    const float u = delta(beta, sv[warp * WARP_ROWS + it * GROUPS + group], sk_part[it]);
    const float oi = output(sq_part[it], kq, u);
    if (slice == it) o = oi;
    rank_one(s[it], u, k);
    Slice<EOut, W, LANES> w;
#pragma unroll
    for (int e = 0; e < 16; ++e) w.set(e, s[it][e]);
    if (slot_out >= 0) w.store(dst + it * GROUPS * K, slice);
  }

  const int row = row0 + slice * GROUPS + group;  // of `o`, where slice < ITS
  if constexpr (FUSED) {
    // The norm needs the head's whole sum of squares. The same cluster barrier says that every CTA has read the
    // windows of q and k, which its other CTAs and value heads share.
    namespace cg = cooperative_groups;
    auto cluster = cg::this_cluster();
    // A binary tree over the bits of the row number, lowest first: the same sum whatever ITS is.
    float sum = slice < ITS ? __fmul_rn(o, o) : 0.0f;
#pragma unroll
    for (int m = LANES; m < 32; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kFullMask, sum, m));
    sum = reduce_lanes<LANES>(sum);
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();
    const int rank = static_cast<int>(cluster.block_rank()), first = rank - rank % SPLITS;
    if (tid < SPLITS) {
      const float cta_sum = __fadd_rn(__fadd_rn(warp_sums[0], warp_sums[1]), __fadd_rn(warp_sums[2], warp_sums[3]));
      *cluster.map_shared_rank(&cluster_sums[split], first + tid) = cta_sum;
    }
    cluster.sync();
    float tree[SPLITS];
#pragma unroll
    for (int i = 0; i < SPLITS; ++i) tree[i] = cluster_sums[i];
#pragma unroll
    for (int m = 1; m < SPLITS; m *= 2)
#pragma unroll
      for (int i = 0; i < SPLITS; i += 2 * m) tree[i] = __fadd_rn(tree[i], tree[i + m]);
    const float total = tree[0];
    const float norm = rsqrtf(__fadd_rn(__fmul_rn(total, 1.0f / V), p.eps));
    if (slice < ITS) {
      const float y = __fmul_rn(__fmul_rn(__fmul_rn(o, norm), p.norm_weight[row]), sigmoid_f32(z_raw));
      store_scalar(p.out, out_at + row, p.out_type, y);
    }
    if (rank == 0 && warp < 2 && slot_out >= 0)
      conv.store(p, slot_out, channels, (warp == 0 ? p.H * K : 0) + h * K + lane * C);
  } else {
    if (slice < ITS) store_scalar(p.out, out_at + row, p.out_type, o);
  }
}

}  // namespace kadence::ops::cuda::sm90
