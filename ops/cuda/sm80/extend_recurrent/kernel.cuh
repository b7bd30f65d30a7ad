// Extend, token by token: the portable path. A CTA holds ROWS value channels of one row's state in registers and walks
// the row's tokens with step's arithmetic, so its result has the bits of the step sequence (fp32 states). Factors of
// STAGE tokens lie in shared memory while the inputs of the next STAGE are on their way.
#pragma once

#include "ops/cuda/conv1d/rows.cuh"
#include "ops/cuda/sm90/step_core/core.cuh"

namespace kadence::ops::cuda::sm80 {

struct StateSlots {
  void* base = nullptr;
  DType type = DType::kF32;
  int64_t pitch = 0;
};

struct RecurrentParams {
  TokenInput q, k, v, decay, beta;
  GateParams gate;
  void* out = nullptr;
  int64_t out_token_pitch = 0;
  DType out_type = DType::kF32;
  int32_t H = 0, HV = 0;
  RowTable table;
  StateSlots in, to, ckpt;
};

inline constexpr int kRecurrentWarps = 4;
inline constexpr int kRecurrentStage = 8;  // tokens

// Four consecutive elements of a run-time type.
__device__ __forceinline__ float4 load_four(const void* base, int64_t i, DType t) {
  RawChannels<4> raw;
  float x[4];
  raw.load(base, i, t);
  raw.convert(t, x);
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void store_four(void* base, int64_t i, DType t, float4 v) {
  if (t == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(base) + i) = v;
  } else {
    uint2 w;
    if (t == DType::kBF16) {
      w = make_uint2(ptx::pack_bf16(v.x, v.y), ptx::pack_bf16(v.z, v.w));
    } else {
      w = make_uint2(ptx::pack_f16(v.x, v.y), ptx::pack_f16(v.z, v.w));
    }
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(base) + i) = w;
  }
}

template <int K, int ITS>
__global__ void __launch_bounds__(32 * kRecurrentWarps) recurrent_kernel(const __grid_constant__ RecurrentParams p) {
  constexpr int V = K, W = 4, WARPS = kRecurrentWarps, THREADS = 32 * WARPS, STAGE = kRecurrentStage;
  constexpr int LANES = Lanes<K>::kLanes, GROUPS = Lanes<K>::kGroups, C = Lanes<K>::kPerLane;
  constexpr int WARP_ROWS = ITS * GROUPS, ROWS = WARPS * WARP_ROWS, SPLITS = V / ROWS;
  constexpr int EACH = STAGE / WARPS;  // tokens whose factors one warp makes
  constexpr int V_EACH = STAGE * ROWS / THREADS;
  static_assert(V % ROWS == 0 && STAGE % WARPS == 0 && STAGE * ROWS % THREADS == 0 && kChunkTokens % STAGE == 0);
  using Sums = RowSums<ITS, LANES>;
  __shared__ __align__(16) float sk[STAGE][K], sq[STAGE][K], sd[STAGE][K], sv[STAGE][ROWS];
  __shared__ float sbeta[STAGE], skq[STAGE];
  __shared__ int serial_status;

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int h = hv / (p.HV / p.H), row0 = split * ROWS + warp * WARP_ROWS;
  const int64_t rows = row_count(p.table);
  if (n >= rows) return;

  // Is the row right? Out of order offsets anywhere need the serial walk; they come from wrong input only.
  bool disorder = false;
  for (int64_t i = tid; i < rows; i += THREADS) {
    const int64_t b = seq_at(p.table, i), e = seq_at(p.table, i + 1);
    disorder |= b < 0 || e < b || e > p.table.tokens;
  }
  disorder = __syncthreads_or(disorder);
  if (tid == 0) {
    const int32_t checkpoints = checkpoint_count(p.table, rows);
    int64_t covered = 0;
    KdaRowStatus status = KdaRowStatus::kOk;
    for (int64_t i = disorder ? 0 : n; i <= n; ++i) {
      status = judge_row(p.table, i, checkpoints, covered);
      if (status == KdaRowStatus::kOk) covered = seq_at(p.table, i + 1);
    }
    serial_status = static_cast<int>(status);
    if (status != KdaRowStatus::kOk && blockIdx.x == 0) report(p.table.meta.status, n, status);
  }
  __syncthreads();
  if (serial_status != static_cast<int>(KdaRowStatus::kOk)) return;

  const int64_t begin = seq_at(p.table, n), length = seq_at(p.table, n + 1) - begin;
  const int32_t slot_in = p.table.meta.state_in[n], slot_out = p.table.meta.state_out[n];
  if (length == 0 && p.in.base == p.to.base && slot_in == slot_out) return;
  const int64_t head_at = static_cast<int64_t>(hv) * V * K + static_cast<int64_t>(row0 + group * ITS) * K;
  float s[ITS][16];
#pragma unroll
  for (int it = 0; it < ITS; ++it)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x =
          slot_in < 0
              ? make_float4(0, 0, 0, 0)
              : load_four(p.in.base, slot_in * p.in.pitch + head_at + it * K + (i * LANES + slice) * 4, p.in.type);
      s[it][4 * i] = x.x, s[it][4 * i + 1] = x.y, s[it][4 * i + 2] = x.z, s[it][4 * i + 3] = x.w;
    }
  const auto save = [&](const StateSlots& pool, int64_t slot) {
#pragma unroll
    for (int it = 0; it < ITS; ++it)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        store_four(pool.base, slot * pool.pitch + head_at + it * K + (i * LANES + slice) * 4, pool.type,
                   make_float4(s[it][4 * i], s[it][4 * i + 1], s[it][4 * i + 2], s[it][4 * i + 3]));
  };

  GateChannels<C> gate;
  gate.load(p.gate, hv, K, lane * C);
  RawChannels<C> rk[EACH], rq[EACH], rd[EACH];
  RawScalar rv[V_EACH], rb;
  const auto fetch = [&](int64_t t0) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int64_t t = t0 + warp + i * WARPS;
      if (t >= length) continue;
      const int64_t at = begin + t;
      rk[i].load(p.k.data, at * p.k.pitch + static_cast<int64_t>(h) * K + lane * C, p.k.type);
      rq[i].load(p.q.data, at * p.q.pitch + static_cast<int64_t>(h) * K + lane * C, p.q.type);
      rd[i].load(p.decay.data, at * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
    }
#pragma unroll
    for (int i = 0; i < V_EACH; ++i) {
      const int at = tid + i * THREADS;
      if (t0 + at / ROWS < length)
        rv[i].load(p.v.data,
                   (begin + t0 + at / ROWS) * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + at % ROWS,
                   p.v.type);
    }
    if (tid < STAGE && t0 + tid < length) rb.load(p.beta.data, (begin + t0 + tid) * p.beta.pitch + hv, p.beta.type);
  };

  const int32_t* const ckpt_begin = p.table.meta.ckpt_begin;
  int32_t m = ckpt_begin ? ckpt_begin[n] : 0;
  const int32_t last = ckpt_begin ? ckpt_begin[n + 1] : 0;
  const int my_row = group * ITS + Sums::iteration(slice);
  const bool owner = Sums::owns(slice);
  const int64_t out_at = begin * p.out_token_pitch + static_cast<int64_t>(hv) * V + row0 + my_row;
  fetch(0);
#pragma unroll 1
  for (int64_t t0 = 0; t0 < length; t0 += STAGE) {
    __syncthreads();  // the stage before has been read
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int j = warp + i * WARPS;
      if (t0 + j >= length) continue;
      float xk[C], xq[C], xd[C];
      rk[i].convert(p.k.type, xk);
      rq[i].convert(p.q.type, xq);
      rd[i].convert(p.decay.type, xd);
      normalise_both(p.gate, xk, xq);
      gate.apply(p.gate, xd);
      write_channels(&sk[j][lane * C], xk);
      write_channels(&sq[j][lane * C], xq);
      write_channels(&sd[j][lane * C], xd);
      __syncwarp();
      const float kq = dot_kq<W, LANES>(sk[j], sq[j], slice);
      if (lane == 0) skq[j] = kq;
    }
#pragma unroll
    for (int i = 0; i < V_EACH; ++i) (&sv[0][0])[tid + i * THREADS] = rv[i].get(p.v.type);
    if (tid < STAGE) sbeta[tid] = beta_value(p.gate, rb.get(p.beta.type));
    __syncthreads();
    fetch(t0 + STAGE);
    const int count = static_cast<int>(length - t0 < STAGE ? length - t0 : STAGE);
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      float pk[ITS], pq[ITS], u[ITS], v_rows[ITS];
      decay_and_dot<W, LANES>(s, sd[j], sk[j], sq[j], slice, pk, pq);
      const float sq_own = Sums::reduce(pk, pq, slice);
      read_rows<ITS>(&sv[j][warp * WARP_ROWS + group * ITS], v_rows);
#pragma unroll
      for (int it = 0; it < ITS; ++it) u[it] = delta(sbeta[j], v_rows[it], pk[it]);
      rank_one<W, LANES>(s, u, sk[j], slice);
      if (owner)
        store_scalar(p.out, out_at + (t0 + j) * p.out_token_pitch, p.out_type,
                     output(sq_own, skq[j], Sums::own(u, slice)));
    }
    if (m < last && t0 + count == p.table.meta.ckpt_depth[m]) {
      const int32_t slot = p.table.meta.ckpt_slot[m++];
      if (slot >= 0) save(p.ckpt, slot);
    }
  }
  if (slot_out >= 0) save(p.to, slot_out);
}

}  // namespace kadence::ops::cuda::sm80
