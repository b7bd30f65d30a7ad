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

template <int K, class E, int ITS>
struct VerifyShape {
  static constexpr int V = K, W = kChunkWidth<E, E>;
  static constexpr int LANES = Lanes<K>::kLanes, GROUPS = Lanes<K>::kGroups, C = Lanes<K>::kPerLane;
  static constexpr int WARP_ROWS = ITS * GROUPS, ROWS = kStepWarps * WARP_ROWS, SPLITS = V / ROWS;
  static_assert(V % ROWS == 0 && ITS <= LANES && ROWS <= kStepThreads);
  using State = Slice<E, W, LANES>;
};

template <class E>
__device__ __forceinline__ void round_state(float (&s)[16], bool on) {
  if constexpr (sizeof(E) == 2) {
    if (on) {
#pragma unroll
      for (int e = 0; e < 16; ++e) s[e] = round_to<E>(s[e]);
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

template <int K, class E, int ITS>
__global__ void __launch_bounds__(kStepThreads) verify_kernel(const __grid_constant__ VerifyParams p) {
  using Shape = VerifyShape<K, E, ITS>;
  constexpr int V = Shape::V, W = Shape::W, LANES = Shape::LANES, GROUPS = Shape::GROUPS, C = Shape::C;
  constexpr int WARP_ROWS = Shape::WARP_ROWS, ROWS = Shape::ROWS, SPLITS = Shape::SPLITS;
  extern __shared__ __align__(16) float shared[];
  __shared__ uint8_t paths[kStepWarps][kMaxDraftTokens];
  __shared__ bool rooted[kMaxDraftTokens];
  const int D = p.D;
  float* const sk = shared;  // [D,K]
  float* const sq = sk + D * K;
  float* const sd = sq + D * K;
  float* const sv = sd + D * K;  // [D,ROWS]
  float* const su = sv + D * ROWS;
  float* const sbeta = su + D * ROWS;  // [D]
  int* const sparent = reinterpret_cast<int*>(sbeta + D);

  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const int per_head = p.HV / p.H, h = hv / per_head;
  const int row0 = split * ROWS + warp * WARP_ROWS;
  const int64_t token0 = n * D;

  const int slot = p.slot_in[n], drafts = p.n_draft[n];
  const bool bad_slot = slot < -1 || slot >= p.slots, bad_count = drafts < 0 || drafts > D;
  const bool live = slot != -1 && !bad_slot && !bad_count;
  const E* const src = static_cast<const E*>(p.state) + (live ? slot : 0) * p.pitch + static_cast<int64_t>(hv) * V * K +
                       static_cast<int64_t>(row0 + group) * K;
  typename Shape::State first[ITS];
  if (live) {
#pragma unroll
    for (int it = 0; it < ITS; ++it) first[it].load(src + it * GROUPS * K, slice);
  }
  bool bad_parent = false;
  for (int d = tid; d < D; d += kStepThreads) {
    const int parent = p.parent[n * D + d];
    sparent[d] = parent;
    bad_parent |= live && d < drafts && (parent < -1 || parent >= d);
  }
  bad_parent = __syncthreads_or(bad_parent);
  const int nodes = live ? drafts : 0;
  if (bad_parent && tid < nodes) rooted[tid] = path_length(sparent, nodes, tid) > 0;
  if (tid == 0 && (bad_slot || (slot != -1 && bad_count) || bad_parent))
    report(p.status, n, bad_slot ? KdaRowStatus::kBadStateIn : KdaRowStatus::kBadNode);

  // Factors of all nodes, two nodes of a warp in flight.
  float* const scratch = p.scratch + token0 * p.layout.record;
  for (int base = warp; base < nodes; base += 2 * kStepWarps) {
    RawChannels<C> rk[2], rq[2], rd[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = token0 + base + i * kStepWarps;
      if (base + i * kStepWarps >= nodes) break;
      rk[i].load(p.k.data, t * p.k.pitch + static_cast<int64_t>(h) * K + lane * C, p.k.type);
      rq[i].load(p.q.data, t * p.q.pitch + static_cast<int64_t>(h) * K + lane * C, p.q.type);
      rd[i].load(p.decay.data, t * p.decay.pitch + static_cast<int64_t>(hv) * K + lane * C, p.decay.type);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int d = base + i * kStepWarps;
      if (d >= nodes) break;
      float* const record = scratch + d * p.layout.record;
      float x[C];
      rk[i].convert(p.k.type, x);
      normalise(p.gate, 1.0f, x);
      write_channels(sk + d * K + lane * C, x);
      if (split == 0 && hv % per_head == 0) write_channels(record + static_cast<int64_t>(h) * K + lane * C, x);
      rq[i].convert(p.q.type, x);
      normalise(p.gate, p.gate.scale, x);
      write_channels(sq + d * K + lane * C, x);
      rd[i].convert(p.decay.type, x);
      decay_channels<C, K>(p.gate, hv, lane * C, x);
      write_channels(sd + d * K + lane * C, x);
      if (split == 0) write_channels(record + p.layout.decay_at + static_cast<int64_t>(hv) * K + lane * C, x);
    }
  }
#pragma unroll 4
  for (int i = tid; i < nodes * ROWS; i += kStepThreads)
    sv[i] = load_scalar(
        p.v.data, (token0 + i / ROWS) * p.v.pitch + static_cast<int64_t>(hv) * V + split * ROWS + i % ROWS, p.v.type);
  for (int d = tid; d < nodes; d += kStepThreads)
    sbeta[d] = beta_value(p.gate, load_scalar(p.beta.data, (token0 + d) * p.beta.pitch + hv, p.beta.type));
  __syncthreads();

  float s[ITS][16];
  if (nodes) {
#pragma unroll
    for (int it = 0; it < ITS; ++it)
#pragma unroll
      for (int e = 0; e < 16; ++e) s[it][e] = first[it].get(e);
  }
  const int64_t out_at = token0 * p.out_token_pitch + static_cast<int64_t>(hv) * V + row0;
  const int my_row = slice * GROUPS + group;  // of the warp's rows, where slice < ITS
  int current = -1;
#pragma unroll 1
  for (int node = 0; node < nodes; ++node) {
    if (bad_parent && !rooted[node]) {  // the node or an ancestor has a parent out of range
      if (slice < ITS) store_scalar(p.out, out_at + node * p.out_token_pitch + my_row, p.out_type, 0.0f);
      continue;
    }
    if (sparent[node] != current) {
      int depth = 0;
      if (lane == 0)
        for (int a = sparent[node]; a >= 0; a = sparent[a]) paths[warp][depth++] = static_cast<uint8_t>(a);
      depth = __shfl_sync(kFullMask, depth, 0);
      __syncwarp();
#pragma unroll
      for (int it = 0; it < ITS; ++it) {
        typename Shape::State again;
        again.load(src + it * GROUPS * K, slice);
#pragma unroll
        for (int e = 0; e < 16; ++e) s[it][e] = again.get(e);
      }
#pragma unroll 1
      for (int i = depth - 1; i >= 0; --i) {
        const int a = paths[warp][i];
        float k[16], d[16];
        read_factor<W, LANES>(sk + a * K, slice, k);
        read_factor<W, LANES>(sd + a * K, slice, d);
#pragma unroll
        for (int it = 0; it < ITS; ++it) {
          replay(s[it], d, su[a * ROWS + warp * WARP_ROWS + it * GROUPS + group], k);
          round_state<E>(s[it], p.round_states);
        }
      }
      __syncwarp();
    }
    float k[16], q[16], d[16], sk_part[ITS], sq_part[ITS];
    read_factor<W, LANES>(sk + node * K, slice, k);
    read_factor<W, LANES>(sq + node * K, slice, q);
    read_factor<W, LANES>(sd + node * K, slice, d);
    const float kq = dot_kq<LANES>(k, q), beta = sbeta[node];
#pragma unroll
    for (int it = 0; it < ITS; ++it) decay_and_dot(s[it], d, k, q, sk_part[it], sq_part[it]);
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      sk_part[it] = reduce_lanes<LANES>(sk_part[it]);
      sq_part[it] = reduce_lanes<LANES>(sq_part[it]);
    }
    float o = 0, my_u = 0;
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      const float u = delta(beta, sv[node * ROWS + warp * WARP_ROWS + it * GROUPS + group], sk_part[it]);
      const float oi = output(sq_part[it], kq, u);
      if (slice == it) o = oi, my_u = u;
      rank_one(s[it], u, k);
      round_state<E>(s[it], p.round_states);
    }
    if (slice < ITS) {
      su[node * ROWS + warp * WARP_ROWS + my_row] = my_u;
      scratch[node * p.layout.record + p.layout.u_at + static_cast<int64_t>(hv) * V + row0 + my_row] = my_u;
      store_scalar(p.out, out_at + node * p.out_token_pitch + my_row, p.out_type, o);
    }
    __syncwarp();
    current = node;
  }
  if (slice < ITS)
    for (int node = nodes; node < D; ++node)
      store_scalar(p.out, out_at + node * p.out_token_pitch + my_row, p.out_type, 0.0f);
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

// By thread 0, after the row's parents are in.
__device__ __forceinline__ KdaRowStatus read_target(const CommitRow& r, int drafts, int node, int slot, int64_t slots,
                                                    CommitTarget& t) {
  t.depth = 0, t.slot = slot;
  if (node == -1 || slot == -1) return KdaRowStatus::kOk;
  const int depth = path_length(r.parents, drafts, node);
  if (slot < -1 || slot >= slots) return KdaRowStatus::kBadStateOut;
  if (depth == 0) return KdaRowStatus::kBadNode;
  t.depth = depth;
  int i = depth;
  for (int a = node; a >= 0; a = r.parents[a]) t.path[--i] = a;
  return KdaRowStatus::kOk;
}

// Reads and checks a row's entries. Ends with a barrier. `reporter`: one CTA of the row.
__device__ __forceinline__ void read_commit_row(const CommitParams& p, int64_t n, bool reporter, CommitRow& r) {
  for (int d = threadIdx.x; d < p.D; d += kStepThreads) r.parents[d] = p.parent[n * p.D + d];
  __syncthreads();
  if (threadIdx.x == 0) {
    const int slot_in = p.slot_in[n];
    int drafts = p.n_draft[n];
    if (drafts < 0 || drafts > p.D) drafts = 0;
    r.main.depth = r.track.depth = r.snapshot = 0;
    KdaRowStatus status = KdaRowStatus::kOk;
    if (slot_in < -1 || slot_in >= p.slots) {
      status = KdaRowStatus::kBadStateIn;
    } else if (slot_in >= 0) {
      status = read_target(r, drafts, p.node[n], p.slot_out[n], p.slots, r.main);
      if (p.track_node) {
        const KdaRowStatus track = read_target(r, drafts, p.track_node[n], p.track_slot[n], p.slots, r.track);
        if (track != KdaRowStatus::kOk) status = track;
      }
      const int depth = r.track.depth;
      if (depth > 0 && depth <= r.main.depth && r.main.path[depth - 1] == r.track.path[depth - 1]) r.snapshot = depth;
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
__device__ __forceinline__ void commit_window(const CommitParams& p, int64_t layer, int64_t n, int64_t slot_in,
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
template <int K, class E, int ITS>
__global__ void __launch_bounds__(kStepThreads) commit_kernel(const __grid_constant__ CommitParams p, int row_planes) {
  using Shape = VerifyShape<K, E, ITS>;
  constexpr int V = Shape::V, W = Shape::W, LANES = Shape::LANES, GROUPS = Shape::GROUPS;
  constexpr int WARP_ROWS = Shape::WARP_ROWS, ROWS = Shape::ROWS, SPLITS = Shape::SPLITS;
  constexpr int STAGE = 8;  // path nodes in shared memory at a time
  __shared__ __align__(16) float sk[STAGE][K], sd[STAGE][K], su[STAGE][ROWS];
  __shared__ CommitRow r;

  const int64_t layer = blockIdx.z / row_planes;
  const int64_t n = blockIdx.y + static_cast<int64_t>(blockIdx.z % row_planes) * gridDim.y;
  if (n >= p.rows) return;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, slice = lane % LANES;
  const bool is_window = blockIdx.x >= p.state_blocks;
  const int split = blockIdx.x % SPLITS, hv = blockIdx.x / SPLITS;
  const int64_t head_at = layer * p.layer_pitch + static_cast<int64_t>(hv) * V * K +
                          static_cast<int64_t>(split * ROWS + warp * WARP_ROWS + group) * K;
  E* const pool = static_cast<E*>(p.states) + head_at;

  // The state's loads go out before the row is known to be good, if the slot is in range at all.
  typename Shape::State state[ITS];
  const int slot_in = p.slot_in[n];
  const bool early = !is_window && slot_in >= 0 && slot_in < p.slots && p.node[n] >= 0;
  if (early) {
#pragma unroll
    for (int it = 0; it < ITS; ++it) state[it].load(pool + slot_in * p.pitch + it * GROUPS * K, slice);
  }
  read_commit_row(p, n, blockIdx.x == 0 && layer == 0, r);
  if (r.main.depth == 0 && r.track.depth == 0) return;
  if (is_window) {
    const int64_t word = static_cast<int64_t>(blockIdx.x - p.state_blocks) * kStepThreads + tid;
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

  const int h = hv / (p.HV / p.H);
  const float* const scratch = p.scratch + layer * p.scratch_layer + n * p.D * p.layout.record;
  float s[ITS][16];
  auto load = [&] {
#pragma unroll
    for (int it = 0; it < ITS; ++it) state[it].load(pool + slot_in * p.pitch + it * GROUPS * K, slice);
  };
  auto unpack = [&] {
#pragma unroll
    for (int it = 0; it < ITS; ++it)
#pragma unroll
      for (int e = 0; e < 16; ++e) s[it][e] = state[it].get(e);
  };
  auto save = [&](int64_t slot) {
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      typename Shape::State out;
#pragma unroll
      for (int e = 0; e < 16; ++e) out.set(e, s[it][e]);
      out.store(pool + slot * p.pitch + it * GROUPS * K, slice);
    }
  };
  // Repeats the updates of the target's path; after the first `snapshot` of them (0 = never) the state goes to the
  // track slot.
  auto run = [&](const CommitTarget& t, int snapshot) {
#pragma unroll 1
    for (int base = 0; base < t.depth; base += STAGE) {
      const int count = t.depth - base < STAGE ? t.depth - base : STAGE;
      __syncthreads();  // the stage before has been read
      for (int i = tid; i < count * (K / 4); i += kStepThreads) {
        const int j = i / (K / 4), c = i % (K / 4) * 4;
        const float* record = scratch + t.path[base + j] * p.layout.record;
        copy_async16(&sk[j][c], record + static_cast<int64_t>(h) * K + c);
        copy_async16(&sd[j][c], record + p.layout.decay_at + static_cast<int64_t>(hv) * K + c);
      }
      for (int i = tid; i < count * (ROWS / 4); i += kStepThreads) {
        const int j = i / (ROWS / 4), c = i % (ROWS / 4) * 4;
        copy_async16(&su[j][c], scratch + t.path[base + j] * p.layout.record + p.layout.u_at +
                                    static_cast<int64_t>(hv) * V + split * ROWS + c);
      }
      copy_async_wait();
      __syncthreads();
#pragma unroll 1
      for (int j = 0; j < count; ++j) {
        float k[16], d[16];
        read_factor<W, LANES>(sk[j], slice, k);
        read_factor<W, LANES>(sd[j], slice, d);
#pragma unroll
        for (int it = 0; it < ITS; ++it) {
          replay(s[it], d, su[j][warp * WARP_ROWS + it * GROUPS + group], k);
          round_state<E>(s[it], p.round_states);
        }
        if (base + j + 1 == snapshot) save(r.track.slot);
      }
    }
  };

  if (!early) load();
  unpack();
  // A snapshot off the committed path first: the commit may overwrite the slot that both start from.
  if (r.track.depth && !r.snapshot) {
    run(r.track, 0);
    save(r.track.slot);
    load();
    unpack();
  }
  if (r.main.depth) {
    run(r.main, r.snapshot);
    save(r.main.slot);
  }
}

}  // namespace kadence::ops::cuda::sm90
