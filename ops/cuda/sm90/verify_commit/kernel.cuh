// Verify: the drafts of a row, on a state that is read once and never written. Commit: the state after one node.
//
// Both hold ROWS value channels of a state in registers, as step does, and use step's arithmetic in step's order, so a
// node's output has the bits of the step sequence along its path. A chain runs straight through; a node whose parent is
// not the node before it starts over from the committed state and repeats the updates (not the outputs) of its path.
#pragma once

#include "ops/cuda/sm90/step_core/core.cuh"
#include "ops/cuda/sm90/verify_commit/config.h"

namespace kadence::ops::cuda::sm90 {

struct VerifyParams {
  TokenInput q, k, v, decay, beta;
  GateParams gate;
  void* out = nullptr;
  int64_t out_token_pitch = 0;
  DType out_type = DType::kF32;
  int32_t H = 0, HV = 0, rows = 0, D = 0;
  const int32_t* n_draft = nullptr;
  const int32_t* parent = nullptr;
  const int32_t* slot_in = nullptr;
  const void* state = nullptr;
  int64_t pitch = 0, slots = 0;
  float* scratch = nullptr;
  ScratchLayout layout;
  bool round_states = true;
  int32_t* status = nullptr;
};

template <int K, class E, int ITS, int WARPS>
struct VerifyShape {
  static constexpr int V = K, W = kChunkWidth<E, E>;
  static constexpr int LANES = Lanes<K>::kLanes, GROUPS = Lanes<K>::kGroups, C = Lanes<K>::kPerLane;
  static constexpr int THREADS = 32 * WARPS, WARP_ROWS = ITS * GROUPS, ROWS = WARPS * WARP_ROWS, SPLITS = V / ROWS;
  static_assert(V % ROWS == 0);
  using State = Slice<E, W, LANES>;
  using Sums = RowSums<ITS, LANES>;
};

// One warp's rows of a state on their way in. fp32 values go to the registers that they are used in; 16-bit ones wait
// as loaded, because their conversion would wait for them.
template <class Shape, class E, int ITS>
struct StateLoad {
  typename Shape::State raw[sizeof(E) == 2 ? ITS : 1];
  __device__ __forceinline__ void issue(const E* src, int slice, float (&s)[ITS][16]) {
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      if constexpr (sizeof(E) == 2) {
        raw[it].load(src + it * Shape::V, slice);
      } else {
        typename Shape::State direct;
        direct.load(src + it * Shape::V, slice);
        direct.unpack(s[it]);
      }
    }
  }
  __device__ __forceinline__ void arrive(float (&s)[ITS][16]) const {
    if constexpr (sizeof(E) == 2) {
#pragma unroll
      for (int it = 0; it < ITS; ++it) raw[it].unpack(s[it]);
    }
  }
};

// States of 16 bits: what a step would have stored and read again.
template <class E, int ITS>
__device__ __forceinline__ void round_states(float (&s)[ITS][16], bool on) {
  if constexpr (sizeof(E) == 2) {
    if (on) {
#pragma unroll
      for (int it = 0; it < ITS; ++it)
#pragma unroll
        for (int e = 0; e < 16; e += 2) round_two<E>(s[it][e], s[it][e + 1]);
    }
  }
}

// Nodes from the root to `node`, or 0 if the node or a parent on the way is out of range.
__device__ __forceinline__ int path_length(const int* parents, int drafts, int node) {
  if (node < 0 || node >= drafts) return 0;
  int depth = 0;
  for (int a = node; a >= 0; a = parents[a], ++depth)
    if (parents[a] >= a || parents[a] < -1) return 0;
  return depth;
}

template <int K, class E, int ITS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, ITS == 4 ? 16 / WARPS : 1)
    verify_kernel(const __grid_constant__ VerifyParams p) {
  using Shape = VerifyShape<K, E, ITS, WARPS>;
  using Sums = typename Shape::Sums;
  constexpr int V = Shape::V, W = Shape::W, LANES = Shape::LANES, GROUPS = Shape::GROUPS, C = Shape::C;
  constexpr int THREADS = Shape::THREADS, WARP_ROWS = Shape::WARP_ROWS, ROWS = Shape::ROWS, SPLITS = Shape::SPLITS;
  extern __shared__ __align__(16) float shared[];
  __shared__ uint8_t paths[WARPS][kMaxDraftTokens];
  __shared__ bool rooted[kMaxDraftTokens];
  const int D = p.D;
  constexpr int FACTORS = 3 * K;            // of a node: k, q, decay
  float* const factors = shared;            // [D,3,K]
  float* const sv = factors + D * FACTORS;  // [D,ROWS]; a node's outputs once its v has been used
  float* const su = sv + D * ROWS;
  float2* const snode = reinterpret_cast<float2*>(su + D * ROWS);  // [D]: beta, k.q
  int* const sparent = reinterpret_cast<int*>(snode + D);          // [D]

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int per_head = p.HV / p.H, h = hv / per_head;
  const int row0 = split * ROWS + warp * WARP_ROWS;
  const int64_t token0 = n * D;
  wait_for_previous();

  // The first inputs go out before it is known how many of the nodes count; every token of the row may be read.
  RawChannels<C> rk, rq, rd;
  const auto load_inputs = [&](int node) {
    const int64_t t = token0 + node;
    rk.load(p.k.data, t * p.k.pitch + static_cast<int64_t>(h) * K + lane * C, p.k.type);
    rq.load(p.q.data, t * p.q.pitch + static_cast<int64_t>(h) * K + lane * C, p.q.type);
    rd.load(p.decay.data, t * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
  };
  const int slot = p.slot_in[n], drafts = p.n_draft[n];
  int parent = -1;
  if (tid < D) parent = p.parent[token0 + tid];
  if (warp < D) load_inputs(warp);
  GateChannels<C> gate;
  gate.load(p.gate, hv, K, lane * C);
  // v, four rows at a time: the first D * ROWS / 4 that the CTA has threads for now, more of them later.
  const auto load_v = [&](int i) {
    RawChannels<4> x;
    x.load(p.v.data, (token0 + 4 * i / ROWS) * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + 4 * i % ROWS,
           p.v.type);
    return x;
  };
  RawChannels<4> v;
  RawScalar beta_raw;
  if (4 * tid < D * ROWS) v = load_v(tid);
  if (tid < D) beta_raw.load(p.beta.data, (token0 + tid) * p.beta.pitch + hv, p.beta.type);
  const bool bad_slot = slot < -1 || slot >= p.slots, bad_count = drafts < 0 || drafts > D;
  const bool live = slot != -1 && !bad_slot && !bad_count;
  const int nodes = live ? drafts : 0;
  const E* const src = static_cast<const E*>(p.state) + (live ? slot : 0) * p.pitch + static_cast<int64_t>(hv) * V * K +
                       static_cast<int64_t>(row0 + group * ITS) * K;
  float s[ITS][16];
  StateLoad<Shape, E, ITS> load;
  if (live) load.issue(src, slice, s);

  // Factors of all nodes, one node per warp at a time.
  float* const scratch = p.scratch + token0 * p.layout.record;
#pragma unroll 1
  for (int d = warp; d < nodes; d += WARPS) {
    float xk[C], xq[C], xd[C];
    rk.convert(p.k.type, xk);
    rq.convert(p.q.type, xq);
    rd.convert(p.decay.type, xd);
    if (d + WARPS < nodes) load_inputs(d + WARPS);
    float* const record = scratch + d * p.layout.record;
    float* const to = factors + d * FACTORS;
    normalise_both(p.gate, xk, xq);
    write_channels(to + lane * C, xk);
    write_channels(to + K + lane * C, xq);
    gate.apply(p.gate, xd);
    write_channels(to + 2 * K + lane * C, xd);
    if (split == 0) {
      write_channels(record + p.layout.decay_at + static_cast<int64_t>(hv) * K + lane * C, xd);
      if (hv % per_head == 0) write_channels(record + static_cast<int64_t>(h) * K + lane * C, xk);
    }
    __syncwarp();
    const float kq = dot_kq<W, LANES>(to, to + K, slice);
    if (lane == 0) snode[d].y = kq;
  }
  const auto put_v = [&](int i, const RawChannels<4>& raw) {
    float x[4];
    raw.convert(p.v.type, x);
    write_channels(sv + 4 * i, x);
  };
  if (4 * tid < D * ROWS) put_v(tid, v);
  for (int i = tid + THREADS; 4 * i < nodes * ROWS; i += THREADS) put_v(i, load_v(i));
  if (tid < D) snode[tid].x = beta_value(p.gate, beta_raw.get(p.beta.type));
  if (tid < D) sparent[tid] = parent;
  let_next_launch();
  // A chain, which is the usual row, needs no question about where a node hangs.
  const bool chain = __syncthreads_and(tid >= nodes || parent == tid - 1);
  const bool bad_parent = !chain && __syncthreads_or(tid < nodes && (parent < -1 || parent >= tid));
  if (tid == 0 && (bad_slot || (slot != -1 && bad_count) || bad_parent))
    report(p.status, n, bad_slot ? KdaRowStatus::kBadStateIn : KdaRowStatus::kBadNode);
  if (bad_parent) {
    if (tid < nodes) rooted[tid] = path_length(sparent, nodes, tid) > 0;
    __syncthreads();
  }

  if (live) load.arrive(s);
  const int lane_row = warp * WARP_ROWS + group * ITS;  // of the CTA's rows
  const int own_row = Sums::iteration(slice);           // of this lane's, where it is an owner
  const bool owner = Sums::owns(slice);
  int current = -1;
  const float* f = factors;
  float *node_v = sv + lane_row, *node_u = su + lane_row;  // of this lane's rows
#pragma unroll 1
  for (int node = 0; node < nodes; ++node, f += FACTORS, node_v += ROWS, node_u += ROWS) {
    if (!chain) {
      if (bad_parent && !rooted[node]) {  // the node or an ancestor has a parent out of range
        if (owner) node_v[own_row] = node_u[own_row] = 0;
        continue;
      }
      if (sparent[node] != current) {
        int depth = 0;
        if (lane == 0)
          for (int a = sparent[node]; a >= 0; a = sparent[a]) paths[warp][depth++] = static_cast<uint8_t>(a);
        depth = __shfl_sync(kFullMask, depth, 0);
        __syncwarp();
        const E* from = src;
        asm volatile("" : "+l"(from));  // no addresses of this rare path in registers all along
        load.issue(from, slice, s);
        load.arrive(s);
#pragma unroll 1
        for (int i = depth - 1; i >= 0; --i) {
          const int a = paths[warp][i];
          float u[ITS];
          read_rows<ITS>(su + a * ROWS + lane_row, u);
          replay<W, LANES>(s, factors + a * FACTORS + 2 * K, u, factors + a * FACTORS, slice);
          round_states<E>(s, p.round_states);
        }
        __syncwarp();
      }
      current = node;
    }
    const float2 scalars = snode[node];
    float pk[ITS], pq[ITS], u[ITS], v_rows[ITS];
    read_rows<ITS>(node_v, v_rows);
    decay_and_dot<W, LANES>(s, f + 2 * K, f, f + K, slice, pk, pq);
    const float sq_own = Sums::reduce(pk, pq, slice);
#pragma unroll
    for (int it = 0; it < ITS; ++it) u[it] = delta(scalars.x, v_rows[it], pk[it]);
    rank_one<W, LANES>(s, u, f, slice);
    round_states<E>(s, p.round_states);
    __syncwarp();  // every lane has its v
    if (owner) {
      const float own_u = Sums::own(u, slice);
      node_u[own_row] = own_u;
      node_v[own_row] = output(sq_own, scalars.y, own_u);
    }
    __syncwarp();
  }
  __syncwarp();

  // This warp's rows of every node, four at a time.
  for (int i = lane; i < D * (WARP_ROWS / 4); i += 32) {
    const int node = i / (WARP_ROWS / 4), r = warp * WARP_ROWS + i % (WARP_ROWS / 4) * 4;
    const int64_t column = static_cast<int64_t>(hv) * V + split * ROWS + r;
    float o[4] = {};
    if (node < nodes) {
      read_rows<4>(sv + node * ROWS + r, o);
      *reinterpret_cast<float4*>(scratch + node * p.layout.record + p.layout.u_at + column) =
          *reinterpret_cast<const float4*>(su + node * ROWS + r);
    }
    store_four(p.out, (token0 + node) * p.out_token_pitch + column, p.out_type, o);
  }
}

struct CommitParams {
  int32_t H = 0, HV = 0, rows = 0, D = 0;
  const int32_t* n_draft = nullptr;
  const int32_t* parent = nullptr;
  const int32_t* slot_in = nullptr;
  const int32_t* node = nullptr;
  const int32_t* slot_out = nullptr;
  const int32_t* track_node = nullptr;
  const int32_t* track_slot = nullptr;
  const float* scratch = nullptr;
  int64_t scratch_layer = 0;  // floats
  ScratchLayout layout;
  void* states = nullptr;
  int64_t pitch = 0, slots = 0, layer_pitch = 0;
  int32_t layers = 0;
  bool round_states = true;
  // Windows, in words of word_bytes (16, or one element where something is not aligned). No windows: null.
  const void* conv_x = nullptr;
  int64_t x_pitch = 0, x_layer = 0;
  void* windows = nullptr;
  int64_t window_pitch = 0, window_slots = 0, window_layer = 0;
  int32_t window_words = 0;  // of one of the three inputs
  int32_t word_bytes = 16;
  int32_t state_blocks = 0;  // of grid x; the rest are windows
  int32_t ahead = 0;         // see cta_ahead()
  int32_t* status = nullptr;
};

// A node's path, oldest first, and where the state after it goes. depth 0 = nothing to do.
struct CommitTarget {
  int slot, depth;
  int path[kMaxDraftTokens];
};

// What one row wants, in shared memory.
struct CommitRow {
  int parents[kMaxDraftTokens];
  CommitTarget main, track;
  int snapshot;  // depth of the track node if it is on the committed path, else 0
};

// A row's entries, as every thread of the CTA reads them.
struct CommitEntries {
  int slot_in, drafts, node, slot_out, track_node = -1, track_slot = -1, parent = -1;
  __device__ __forceinline__ void load(const CommitParams& p, int64_t n) {
    if (threadIdx.x < p.D) parent = p.parent[n * p.D + threadIdx.x];
    slot_in = p.slot_in[n], drafts = p.n_draft[n], node = p.node[n], slot_out = p.slot_out[n];
    if (p.track_node) track_node = p.track_node[n], track_slot = p.track_slot[n];
  }
};

// By thread 0, after the row's parents are in. `chain`: every parent that matters is the node before.
__device__ __forceinline__ KdaRowStatus read_target(const CommitRow& r, bool chain, int drafts, int node, int slot,
                                                    int64_t slots, CommitTarget& t) {
  t.depth = 0, t.slot = slot;
  if (node == -1 || slot == -1) return KdaRowStatus::kOk;
  const int depth = node < -1 || node >= drafts ? 0 : chain ? node + 1 : path_length(r.parents, drafts, node);
  if (slot < -1 || slot >= slots) return KdaRowStatus::kBadStateOut;
  if (depth == 0) return KdaRowStatus::kBadNode;
  t.depth = depth;
  if (!chain) {
    int i = depth;
    for (int a = node; a >= 0; a = r.parents[a]) t.path[--i] = a;
  }
  return KdaRowStatus::kOk;
}

// Checks a row's entries. Ends with a barrier. `reporter`: one CTA of the row.
__device__ __forceinline__ void judge_commit_row(const CommitParams& p, int64_t n, const CommitEntries& e,
                                                 bool reporter, CommitRow& r) {
  const int tid = threadIdx.x, last = e.node > e.track_node ? e.node : e.track_node;
  if (tid < p.D) r.parents[tid] = e.parent, r.main.path[tid] = tid, r.track.path[tid] = tid;
  const bool chain = __syncthreads_and(tid > last || tid >= p.D || e.parent == tid - 1);
  if (tid == 0) {
    const int drafts = e.drafts < 0 || e.drafts > p.D ? 0 : e.drafts;
    r.main.depth = r.track.depth = r.snapshot = 0;
    KdaRowStatus status = KdaRowStatus::kOk;
    if (e.slot_in < -1 || e.slot_in >= p.slots) {
      status = KdaRowStatus::kBadStateIn;
    } else if (e.slot_in >= 0) {
      status = read_target(r, chain, drafts, e.node, e.slot_out, p.slots, r.main);
      const KdaRowStatus track = read_target(r, chain, drafts, e.track_node, e.track_slot, p.slots, r.track);
      if (track != KdaRowStatus::kOk) status = track;
      const int depth = r.track.depth;
      if (depth > 0 && depth <= r.main.depth && r.main.path[depth - 1] == e.track_node) r.snapshot = depth;
    }
    if (reporter && status != KdaRowStatus::kOk) report(p.status, n, status);
  }
  __syncthreads();
}

__device__ __forceinline__ void copy_async16(float* shared, const float* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global));
}
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The windows after `depth` nodes of `path`: the last three of the committed window followed by the path's inputs.
template <class Word>
__device__ __noinline__ void commit_window(const CommitParams& p, int64_t layer, int64_t n, int64_t slot_in,
                                           int64_t word, const CommitRow& r) {
  const Word* const x = static_cast<const Word*>(p.conv_x) + layer * p.x_layer + n * p.D * p.x_pitch + word;
  Word* const pool = static_cast<Word*>(p.windows) + layer * p.window_layer + word;
  Word w[kConvWindow], main[kConvWindow], track[kConvWindow];
#pragma unroll
  for (int i = 0; i < kConvWindow; ++i)
    w[i] = pool[slot_in * p.window_pitch + static_cast<int64_t>(i) * p.window_words];
  auto gather = [&](const CommitTarget& t, Word(&out)[kConvWindow]) {
#pragma unroll
    for (int i = 0; i < kConvWindow; ++i) {
      const int at = t.depth + i - kConvWindow;  // < 0: still the committed window
      out[i] = at >= 0 ? x[t.path[at] * p.x_pitch] : at == -1 ? w[2] : at == -2 ? w[1] : w[0];
    }
  };
  if (r.main.depth) gather(r.main, main);
  if (r.track.depth) gather(r.track, track);
#pragma unroll
  for (int i = 0; i < kConvWindow; ++i) {
    const int64_t at = static_cast<int64_t>(i) * p.window_words;
    if (r.track.depth) pool[r.track.slot * p.window_pitch + at] = track[i];
    if (r.main.depth) pool[r.main.slot * p.window_pitch + at] = main[i];
  }
}

// grid: x = (value head, split) of the states, then blocks of window channels; y = rows (and z beyond 65535 rows);
// layers are the slower part of z.
template <int K, class E, int ITS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, commit_ctas_per_sm(ITS, WARPS))
    commit_kernel(const __grid_constant__ CommitParams p, int row_planes) {
  using Shape = VerifyShape<K, E, ITS, WARPS>;
  constexpr int V = Shape::V, W = Shape::W, LANES = Shape::LANES, GROUPS = Shape::GROUPS, THREADS = Shape::THREADS;
  constexpr int WARP_ROWS = Shape::WARP_ROWS, ROWS = Shape::ROWS, SPLITS = Shape::SPLITS;
  constexpr int STAGE = 8;  // path nodes in shared memory at a time
  static_assert(THREADS >= kMaxDraftTokens);
  __shared__ __align__(16) float sk[STAGE][K], sd[STAGE][K], su[STAGE][ROWS];
  __shared__ CommitRow r;

  const int64_t layer = blockIdx.z / row_planes;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z % row_planes) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const bool is_window = blockIdx.x >= p.state_blocks;
  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t head_at = layer * p.layer_pitch + static_cast<int64_t>(hv) * V * K +
                          static_cast<int64_t>(split * ROWS + warp * WARP_ROWS + group * ITS) * K;
  E* const pool = static_cast<E*>(p.states) + head_at;
  wait_for_previous();

  CommitEntries entries;
  entries.load(p, n);
  const int slot_in = entries.slot_in;
  // The state's loads go out before the row is judged, if its slot is in range at all.
  float s[ITS][16];
  StateLoad<Shape, E, ITS> load;
  const bool early = !is_window && slot_in >= 0 && slot_in < p.slots && (entries.node >= 0 || entries.track_node >= 0);
  if (early) load.issue(pool + slot_in * p.pitch, slice, s);
  judge_commit_row(p, n, entries, tid == 0 && blockIdx.x == 0 && layer == 0, r);
  if (r.main.depth == 0 && r.track.depth == 0) return;
  if (is_window) {
    const int64_t word = static_cast<int64_t>(blockIdx.x - p.state_blocks) * THREADS + tid;
    if (word >= p.window_words) return;
    if (p.word_bytes == 16) {
      commit_window<uint4>(p, layer, n, slot_in, word, r);
    } else if (p.word_bytes == 4) {
      commit_window<uint32_t>(p, layer, n, slot_in, word, r);
    } else {
      commit_window<uint16_t>(p, layer, n, slot_in, word, r);
    }
    return;
  }

  let_next_launch();
  unsigned next_x;
  int next_row;
  if (warp == WARPS - 1 && cta_ahead(p.ahead, p.rows, next_x, next_row) && next_x < p.state_blocks) {
    const int slot = p.slot_in[next_row];
    if (lane == 0 && slot >= 0 && slot < p.slots && p.node[next_row] >= 0)
      prefetch_l2(static_cast<const E*>(p.states) + slot * p.pitch + static_cast<int64_t>(next_x) * ROWS * K,
                  ROWS * K * static_cast<int>(sizeof(E)));
  }
  const int h = hv / (p.HV / p.H);
  const float* const scratch = p.scratch + layer * p.scratch_layer + n * p.D * p.layout.record;
  const auto save = [&](int64_t slot) {
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      typename Shape::State out;
      out.pack(s[it]);
      out.store(pool + slot * p.pitch + it * K, slice);
    }
  };
  const auto fetch = [&](const CommitTarget& t, int base) {
    const int count = t.depth - base < STAGE ? t.depth - base : STAGE;
#pragma unroll 1
    for (int i = tid; i < count * (K / 4); i += THREADS) {
      const int j = i / (K / 4), c = i % (K / 4) * 4;
      const float* record = scratch + t.path[base + j] * p.layout.record;
      copy_async16(&sk[j][c], record + static_cast<int64_t>(h) * K + c);
      copy_async16(&sd[j][c], record + p.layout.decay_at + static_cast<int64_t>(hv) * K + c);
    }
#pragma unroll 1
    for (int i = tid; i < count * (ROWS / 4); i += THREADS) {
      const int j = i / (ROWS / 4), c = i % (ROWS / 4) * 4;
      copy_async16(&su[j][c], scratch + t.path[base + j] * p.layout.record + p.layout.u_at +
                                  static_cast<int64_t>(hv) * V + split * ROWS + c);
    }
    return count;
  };
  // Repeats the updates of the target's path; after the first `snapshot` of them (0 = never) the state goes to the
  // track slot.
  const auto run = [&](const CommitTarget& t, int snapshot) {
#pragma unroll 1
    for (int base = 0; base < t.depth; base += STAGE) {
      __syncthreads();  // the stage before has been read
      const int count = fetch(t, base);
      copy_async_wait();
      __syncthreads();
#pragma unroll 1
      for (int j = 0; j < count; ++j) {
        float u[ITS];
        read_rows<ITS>(&su[j][warp * WARP_ROWS + group * ITS], u);
        replay<W, LANES>(s, sd[j], u, sk[j], slice);
        round_states<E>(s, p.round_states);
        if (base + j + 1 == snapshot) save(r.track.slot);
      }
    }
  };

  // A snapshot off the committed path first: the commit may overwrite the slot that both start from.
  bool loaded = early;
#pragma unroll 1
  for (int pass = r.track.depth && !r.snapshot ? 0 : 1; pass < (r.main.depth ? 2 : 1); ++pass) {
    if (!loaded) load.issue(pool + slot_in * p.pitch, slice, s);
    loaded = false;
    load.arrive(s);
    const CommitTarget& t = pass ? r.main : r.track;
    run(t, pass ? r.snapshot : 0);
    save(t.slot);
  }
}

}  // namespace kadence::ops::cuda::sm90
