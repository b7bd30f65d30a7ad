// Verify without the promise of step's bits, for up to eight drafts: the same numbers by other sums.
//
// Along a node's path the decays are folded into the keys: with c_d the product of exp(g) from the root to node d, and
// w_dj the product over the path after its ancestor j,
//   u_d = beta_d (v_d - S (c_d k_d) - sum_j u_j <w_dj k_j, k_d>),   o_d = S (c_d q_d) + sum_j u_j <w_dj k_j, q_d>  (j =
//   d too)
// so the committed state S is never updated: two operations for each of its elements and node instead of four, no
// dependence between the nodes, and trees cost what chains cost. Factors are products of numbers <= 1; nothing is
// divided.
#pragma once

#include "ops/cuda/sm90/verify_commit/kernel.cuh"

namespace kadence::ops::cuda::sm90 {

template <int K, class E, int ITS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, ITS == 4 ? 16 / WARPS : 1)
    gram_kernel(const __grid_constant__ VerifyParams p) {
  using Shape = VerifyShape<K, E, ITS, WARPS>;
  using Sums = typename Shape::Sums;
  constexpr int V = Shape::V, W = Shape::W, LANES = Shape::LANES, GROUPS = Shape::GROUPS, C = Shape::C;
  constexpr int THREADS = Shape::THREADS, WARP_ROWS = Shape::WARP_ROWS, ROWS = Shape::ROWS, SPLITS = Shape::SPLITS;
  constexpr int D_MAX = kGramDrafts;
  static_assert(ROWS <= THREADS);
  __shared__ __align__(16) float sk[D_MAX][K], sq[D_MAX][K], sd[D_MAX][K];  // sq becomes c q
  __shared__ __align__(16) float skc[D_MAX][K];                             // c k
  __shared__ __align__(16) float sv[D_MAX][ROWS], dots[D_MAX][2][ROWS];
  __shared__ float gkk[D_MAX][D_MAX], gqk[D_MAX][D_MAX], sbeta[D_MAX];
  __shared__ int sparent[D_MAX];
  __shared__ unsigned ancestors[D_MAX];  // bit j: node j is on the path, the node itself included; 0 = no path

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int per_head = p.HV / p.H, h = hv / per_head, D = p.D;
  const int row0 = split * ROWS + warp * WARP_ROWS;
  const int64_t token0 = n * D;
  wait_for_previous();

  RawChannels<C> rk, rq, rd;
  const auto load_inputs = [&](int node) {
    const int64_t t = token0 + node;
    rk.load(p.k.data, t * p.k.pitch + static_cast<int64_t>(h) * K + lane * C, p.k.type);
    rq.load(p.q.data, t * p.q.pitch + static_cast<int64_t>(h) * K + lane * C, p.q.type);
    rd.load(p.decay.data, t * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
  };
  const int slot = p.slot_in[n], drafts = p.n_draft[n];
  int parent = -1;
  RawScalar beta_raw;
  if (tid < D) parent = p.parent[token0 + tid];
  if (warp < D) load_inputs(warp);
  if (tid < D) beta_raw.load(p.beta.data, (token0 + tid) * p.beta.pitch + hv, p.beta.type);
  GateChannels<C> gate;
  gate.load(p.gate, hv, K, lane * C);
  constexpr int V_EACH = (D_MAX * ROWS / 4 + THREADS - 1) / THREADS;  // four rows at a time
  RawChannels<4> v[V_EACH];
#pragma unroll
  for (int j = 0; j < V_EACH; ++j) {
    const int i = 4 * (tid + j * THREADS);
    if (i < D * ROWS)
      v[j].load(p.v.data, (token0 + i / ROWS) * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + i % ROWS,
                p.v.type);
  }
  const bool bad_slot = slot < -1 || slot >= p.slots, bad_count = drafts < 0 || drafts > D;
  const bool live = slot != -1 && !bad_slot && !bad_count;
  const int nodes = live ? drafts : 0;
  float s[ITS][16];
  StateLoad<Shape, E, ITS> load;
  if (live)
    load.issue(static_cast<const E*>(p.state) + slot * p.pitch + static_cast<int64_t>(hv) * V * K +
                   static_cast<int64_t>(row0 + group * ITS) * K,
               slice, s);
  let_next_launch();

  float* const scratch = p.scratch + token0 * p.layout.record;
#pragma unroll 1
  for (int d = warp; d < nodes; d += WARPS) {
    float xk[C], xq[C], xd[C];
    rk.convert(p.k.type, xk);
    rq.convert(p.q.type, xq);
    rd.convert(p.decay.type, xd);
    if (d + WARPS < nodes) load_inputs(d + WARPS);
    float* const record = scratch + d * p.layout.record;
    normalise_both(p.gate, xk, xq);
    gate.apply(p.gate, xd);
    write_channels(&sk[d][lane * C], xk);
    write_channels(&sq[d][lane * C], xq);
    write_channels(&sd[d][lane * C], xd);
    if (split == 0) {
      write_channels(record + p.layout.decay_at + static_cast<int64_t>(hv) * K + lane * C, xd);
      if (hv % per_head == 0) write_channels(record + static_cast<int64_t>(h) * K + lane * C, xk);
    }
  }
#pragma unroll
  for (int j = 0; j < V_EACH; ++j) {
    const int i = 4 * (tid + j * THREADS);
    if (i >= D * ROWS) continue;
    float x[4];
    v[j].convert(p.v.type, x);
    write_channels(&sv[0][0] + i, x);
  }
  if (tid < D) sparent[tid] = parent, sbeta[tid] = beta_value(p.gate, beta_raw.get(p.beta.type));
  const bool bad_parent = __syncthreads_or(tid < nodes && (parent < -1 || parent >= tid));
  if (tid == 0 && (bad_slot || (slot != -1 && bad_count) || bad_parent))
    report(p.status, n, bad_slot ? KdaRowStatus::kBadStateIn : KdaRowStatus::kBadNode);

    // Each warp walks the path of a node up to the root.
#pragma unroll 1
  for (int d = warp; d < nodes; d += WARPS) {
    if (bad_parent && path_length(sparent, nodes, d) == 0) {
      if (lane == 0) ancestors[d] = 0;
      continue;
    }
    float k[C], q[C], w[C];
#pragma unroll
    for (int c = 0; c < C; ++c) k[c] = sk[d][lane * C + c], q[c] = sq[d][lane * C + c], w[c] = 1.0f;
    unsigned mask = 0;
    for (int j = d; j >= 0; j = sparent[j]) {
      float kk = 0, qk = 0;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float x = sk[j][lane * C + c] * w[c];
        kk = fmaf(x, k[c], kk), qk = fmaf(x, q[c], qk);
        w[c] *= sd[j][lane * C + c];
      }
#pragma unroll
      for (int m = 1; m < 32; m *= 2) {
        const float ok = __shfl_xor_sync(kFullMask, kk, m), oq = __shfl_xor_sync(kFullMask, qk, m);
        kk += ok, qk += oq;
      }
      if (lane == 0) gkk[d][j] = kk, gqk[d][j] = qk;
      mask |= 1u << j;
    }
    if (lane == 0) ancestors[d] = mask;
#pragma unroll
    for (int c = 0; c < C; ++c) k[c] *= w[c], q[c] *= w[c];
    write_channels(&skc[d][lane * C], k);
    __syncwarp();
    write_channels(&sq[d][lane * C], q);  // nobody else reads q of node d
  }
  __syncthreads();

  if (live) load.arrive(s);
#pragma unroll 1
  for (int d = 0; d < nodes; ++d) {
    float pk[ITS] = {}, pq[ITS] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 k = read_quad<W, LANES>(skc[d], slice, i), q = read_quad<W, LANES>(sq[d], slice, i);
#pragma unroll
      for (int it = 0; it < ITS; ++it) {
        pk[it] = fmaf(s[it][4 * i], k.x, pk[it]), pq[it] = fmaf(s[it][4 * i], q.x, pq[it]);
        pk[it] = fmaf(s[it][4 * i + 1], k.y, pk[it]), pq[it] = fmaf(s[it][4 * i + 1], q.y, pq[it]);
        pk[it] = fmaf(s[it][4 * i + 2], k.z, pk[it]), pq[it] = fmaf(s[it][4 * i + 2], q.z, pq[it]);
        pk[it] = fmaf(s[it][4 * i + 3], k.w, pk[it]), pq[it] = fmaf(s[it][4 * i + 3], q.w, pq[it]);
      }
    }
    const float total = Sums::share(pk, pq, slice);
    if (slice >> (1 + Sums::kBits) == 0)
      dots[d][slice & 1][warp * WARP_ROWS + group * ITS + Sums::iteration(slice)] = total;
  }
  __syncthreads();

  // One thread per row: forward substitution over the nodes.
  if (tid >= ROWS) return;
  int64_t out_at = token0 * p.out_token_pitch + static_cast<int64_t>(hv) * V + split * ROWS + tid;
  float* u_out = scratch + p.layout.u_at + static_cast<int64_t>(hv) * V + split * ROWS + tid;
  float u[D_MAX];
#pragma unroll
  for (int d = 0; d < D_MAX; ++d) {
    if (d >= D) break;
    const unsigned mask = d < nodes ? ancestors[d] : 0;
    float o = 0;
    u[d] = 0;
    if (mask) {
      float prediction = dots[d][0][tid];
      o = dots[d][1][tid];
#pragma unroll
      for (int j = 0; j < d; ++j)
        if (mask >> j & 1) prediction = fmaf(gkk[d][j], u[j], prediction), o = fmaf(gqk[d][j], u[j], o);
      u[d] = sbeta[d] * (sv[d][tid] - prediction);
      o = fmaf(gqk[d][d], u[d], o);
      *u_out = u[d];
    }
    store_scalar(p.out, out_at, p.out_type, o);
    out_at += p.out_token_pitch, u_out += p.layout.record;
  }
}

}  // namespace kadence::ops::cuda::sm90
