// Convolution over packed rows. A CTA has a tile of tokens and 128 * VEC channels (VEC 4: the taps of more would not
// fit the registers); a thread keeps the last three raw inputs of its channels in registers and walks down the tile.
//
// Two rules keep the windows free of races although a slot may be read (state_in) and written (state_out, a
// checkpoint) in the same launch:
//  - tokens 1 and 2 of a row belong to the CTA that has token 0, so one CTA alone reads the row's window;
//  - that CTA also writes whatever goes to the slot that it read: the final window, and a checkpoint in that slot.
// All other checkpoints are written by whoever computes their last token.
#pragma once

#include "ops/cuda/conv1d/core.cuh"
#include "ops/cuda/conv1d/rows.cuh"
#include "ops/cuda/sm90/step_core/core.cuh"

namespace kadence::ops::cuda {

inline constexpr int kConvThreads = 128;

struct ConvWindows {
  void* base = nullptr;
  int64_t pitch = 0, slots = 0;
};

struct ConvExtendParams {
  const void* x = nullptr;
  int64_t x_pitch = 0;
  void* y = nullptr;
  int64_t y_pitch = 0;
  int32_t channels = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int32_t tile = 64, tiles = 0;
  RowTable table;
  ConvWindows in, out, ckpt;
};

template <class E, int VEC>
struct alignas(sizeof(E) * VEC) ConvVec {
  E e[VEC];
  // Rounded in pairs where E has 16 bits: two conversions in one instruction.
  __device__ __forceinline__ void set(const float (&x)[VEC]) {
    if constexpr (sizeof(E) == 2 && VEC % 2 == 0) {
#pragma unroll
      for (int c = 0; c < VEC; c += 2) reinterpret_cast<uint32_t*>(e)[c / 2] = pack_two<E>(x[c], x[c + 1]);
    } else {
#pragma unroll
      for (int c = 0; c < VEC; ++c) e[c] = from_float<E>(x[c]);
    }
  }
};

// What the CTA knows about up to kConvThreads consecutive rows.
struct ConvRows {
  int64_t begin[kConvThreads], end[kConvThreads];
  int32_t in[kConvThreads], out[kConvThreads], ckpt_begin[kConvThreads], ckpt_end[kConvThreads];
  int32_t alias_depth[kConvThreads];  // depth of the checkpoint that goes to the row's own state_in slot, or 0
  int32_t reason[kConvThreads];       // KdaRowStatus
};

// Loads and checks rows [first, first + 128) of `rows`. Ends with a barrier. `disorder`: some offsets are bad, and
// then a row counts only if it starts at or after the end of the good rows before it: a serial walk, for wrong input
// only.
__device__ inline void load_rows(const ConvExtendParams& p, int64_t rows, int64_t first, bool disorder, ConvRows& s) {
  constexpr int kSerial = 4;  // longer checkpoint lists are checked by the whole CTA
  const int tid = threadIdx.x;
  const int64_t i = first + tid;
  const bool same_memory = p.ckpt.base == p.in.base;
  const int32_t checkpoints = checkpoint_count(p.table, rows);
  __syncthreads();
  if (i < rows) {
    const int64_t begin = seq_at(p.table, i), end = seq_at(p.table, i + 1);
    const bool ordered = begin >= 0 && end >= begin && end <= p.table.tokens;
    int32_t reason = static_cast<int32_t>(ordered ? KdaRowStatus::kOk : KdaRowStatus::kBadOffsets);
    s.begin[tid] = ordered ? begin : -1, s.end[tid] = ordered ? end : -1;  // -1, -1: over before any token
    const int32_t in = p.table.meta.state_in[i], out = p.table.meta.state_out[i];
    s.in[tid] = in, s.out[tid] = out;
    if (!reason && (in < -1 || in >= p.in.slots)) reason = static_cast<int32_t>(KdaRowStatus::kBadStateIn);
    if (!reason && (out < -1 || out >= p.out.slots)) reason = static_cast<int32_t>(KdaRowStatus::kBadStateOut);
    int32_t c0 = 0, c1 = 0, alias = 0;
    if (p.table.meta.ckpt_begin) {
      c0 = p.table.meta.ckpt_begin[i], c1 = p.table.meta.ckpt_begin[i + 1];
      if (c0 < 0 || c1 < c0 || c1 > checkpoints) {
        if (!reason) reason = static_cast<int32_t>(KdaRowStatus::kBadCheckpoint);
        c0 = c1 = 0;
      }
      if (c1 - c0 <= kSerial) {
        for (int32_t m = c0; m < c1; ++m) {
          if (!reason && bad_depth(p.table, m, c0, end - begin))
            reason = static_cast<int32_t>(KdaRowStatus::kBadCheckpoint);
          if (same_memory && in >= 0 && p.table.meta.ckpt_slot[m] == in) alias = p.table.meta.ckpt_depth[m];
        }
      }
    }
    s.ckpt_begin[tid] = c0, s.ckpt_end[tid] = c1, s.alias_depth[tid] = alias, s.reason[tid] = reason;
  } else {
    s.begin[tid] = s.end[tid] = p.table.tokens;
    s.in[tid] = s.out[tid] = -1;
    s.ckpt_begin[tid] = s.ckpt_end[tid] = s.alias_depth[tid] = 0;
    s.reason[tid] = static_cast<int32_t>(KdaRowStatus::kOk);
  }
  __syncthreads();
  const int count = static_cast<int>(rows - first < kConvThreads ? rows - first : kConvThreads);
  for (int r = 0; r < count; ++r) {
    const int32_t c0 = s.ckpt_begin[r], c1 = s.ckpt_end[r];
    if (c1 - c0 <= kSerial) continue;
    bool bad = false;
    for (int32_t m = c0 + tid; m < c1; m += kConvThreads) {
      bad |= bad_depth(p.table, m, c0, s.end[r] - s.begin[r]);
      if (same_memory && s.in[r] >= 0 && p.table.meta.ckpt_slot[m] == s.in[r])
        s.alias_depth[r] = p.table.meta.ckpt_depth[m];
    }
    bad = __syncthreads_or(bad);
    if (bad && tid == 0 && !s.reason[r]) s.reason[r] = static_cast<int32_t>(KdaRowStatus::kBadCheckpoint);
    __syncthreads();
  }
  if (disorder) {
    if (tid == 0) {
      int64_t covered = 0;
      for (int64_t j = 0; j < first + count; ++j) {
        const KdaRowStatus status = judge_row(p.table, j, checkpoints, covered);
        if (status == KdaRowStatus::kOk) covered = seq_at(p.table, j + 1);
        if (j < first) continue;
        s.reason[j - first] = static_cast<int32_t>(status);
        if (status != KdaRowStatus::kOk) s.begin[j - first] = s.end[j - first] = -1;
      }
    }
    __syncthreads();
  }
}

template <class E, int VEC>
__global__ void __launch_bounds__(kConvThreads, VEC > 1 ? 6 : 8)
    conv_extend_kernel(const __grid_constant__ ConvExtendParams p) {
  using Vec = ConvVec<E, VEC>;
  __shared__ ConvRows s;
  const int tid = threadIdx.x;
  const int32_t channel = (blockIdx.y * kConvThreads + tid) * VEC;
  const bool active = channel < p.channels;
  const int64_t rows = row_count(p.table);
  const E* x = static_cast<const E*>(p.x) + channel;
  E* y = static_cast<E*>(p.y) + channel;
  auto window = [&](const ConvWindows& w, int64_t slot, int i) {
    return reinterpret_cast<Vec*>(static_cast<E*>(w.base) + slot * w.pitch + static_cast<int64_t>(i) * p.channels +
                                  channel);
  };
  auto x_at = [&](int64_t t) { return *reinterpret_cast<const Vec*>(x + t * p.x_pitch); };
  Vec zero;
#pragma unroll
  for (int c = 0; c < VEC; ++c) zero.e[c] = from_float<E>(0.0f);

  float4 taps[VEC];
  float bias[VEC];
#pragma unroll
  for (int c = 0; c < VEC; ++c) {
    taps[c] = active ? reinterpret_cast<const float4*>(p.weight)[channel + c] : make_float4(0, 0, 0, 0);
    bias[c] = active && p.bias ? p.bias[channel + c] : 0.0f;
  }
  // One pass over the offsets: are they in order, and which row has the tile's first token?
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * p.tile;
  const bool row_block = static_cast<int32_t>(blockIdx.x) >= p.tiles;
  bool disorder = false;
  int before = 0;
  for (int64_t i = tid; i < rows; i += kConvThreads) {
    const int64_t begin = seq_at(p.table, i), end = seq_at(p.table, i + 1);
    disorder |= begin < 0 || end < begin || end > p.table.tokens;
    before += end <= t0;
  }
  disorder = __syncthreads_or(disorder);
  __shared__ int total;
  if (tid == 0) total = 0;
  __syncthreads();
  if (before) atomicAdd(&total, before);
  __syncthreads();
  int64_t first = disorder ? 0 : total;

  if (row_block) {
    // Rows without tokens: a copy of the window. Bad rows are reported here, once each.
    first = static_cast<int64_t>(blockIdx.x - p.tiles) * kConvThreads;
    load_rows(p, rows, first, disorder, s);
    if (blockIdx.y == 0 && s.reason[tid])
      report(p.table.meta.status, static_cast<int>(first + tid), static_cast<KdaRowStatus>(s.reason[tid]));
    const int count = static_cast<int>(rows - first < kConvThreads ? rows - first : kConvThreads);
    const bool same = p.in.base == p.out.base && p.in.pitch == p.out.pitch;
    for (int r = 0; r < count; ++r) {
      if (s.reason[r] || s.end[r] > s.begin[r] || s.out[r] < 0 || (same && s.out[r] == s.in[r]) || !active) continue;
      for (int i = 0; i < kConvWindow; ++i)
        *window(p.out, s.out[r], i) = s.in[r] >= 0 ? *window(p.in, s.in[r], i) : zero;
    }
    return;
  }

  auto apply = [&](const Vec& a, const Vec& b, const Vec& c3, const Vec& d) {
    float sums[VEC];
#pragma unroll
    for (int c = 0; c < VEC; ++c)
      sums[c] = conv4_silu(taps[c], bias[c], to_float(a.e[c]), to_float(b.e[c]), to_float(c3.e[c]), to_float(d.e[c]));
    Vec r;
    r.set(sums);
    return r;
  };
  auto put = [&](int64_t t, const Vec& v) { *reinterpret_cast<Vec*>(y + t * p.y_pitch) = v; };

  const int64_t t1 = t0 + p.tile < p.table.tokens ? t0 + p.tile : p.table.tokens;
  int64_t t = t0;
  int r = 0;
  load_rows(p, rows, first, disorder, s);
  while (t < t1) {
    // The row of token t, or the gap before the next one.
    while (r < kConvThreads && s.end[r] <= t && first + r < rows) ++r;
    if (r == kConvThreads && first + kConvThreads < rows) {
      first += kConvThreads, r = 0;
      load_rows(p, rows, first, disorder, s);
      continue;
    }
    const bool none = r == kConvThreads || first + r >= rows;
    const int64_t begin = none ? p.table.tokens : s.begin[r], end = none ? p.table.tokens : s.end[r];
    if (begin > t) {
      const int64_t stop = begin < t1 ? begin : t1;
      for (; t < stop; ++t)
        if (active) put(t, zero);
      continue;
    }
    int64_t stop = t1 < end ? t1 : end;
    if (t == t0 && t > begin && t - begin < kConvWindow) {  // tokens 1 and 2 of a row that the CTA before started
      t = begin + kConvWindow < end ? begin + kConvWindow : end;
      if (t > t1) t = t1;
      continue;
    }
    if (begin >= t0 && stop - begin < kConvWindow) stop = begin + kConvWindow < end ? begin + kConvWindow : end;
    if (s.reason[r] != static_cast<int32_t>(KdaRowStatus::kOk)) {
      for (; t < stop; ++t)
        if (active) put(t, zero);
      continue;
    }
    if (!active) {
      t = stop;
      continue;
    }

    const int32_t in = s.in[r], out = s.out[r], c1 = s.ckpt_end[r], alias = s.alias_depth[r];
    Vec w0, w1, w2;
    if (t == begin) {
      w0 = in >= 0 ? *window(p.in, in, 0) : zero;
      w1 = in >= 0 ? *window(p.in, in, 1) : zero;
      w2 = in >= 0 ? *window(p.in, in, 2) : zero;
      if (out >= 0) {
        const int64_t len = end - begin;
        const Vec l0 = len >= 3 ? x_at(end - 3) : len == 2 ? w2 : w1;
        const Vec l1 = len >= 2 ? x_at(end - 2) : w2;
        const Vec l2 = x_at(end - 1);
        *window(p.out, out, 0) = l0, *window(p.out, out, 1) = l1, *window(p.out, out, 2) = l2;
      }
      if (alias > 0)
        for (int i = 0; i < kConvWindow; ++i) *window(p.ckpt, in, i) = x_at(begin + alias - kConvWindow + i);
    } else {
      w0 = x_at(t - 3), w1 = x_at(t - 2), w2 = x_at(t - 1);
    }
    int32_t m = s.ckpt_begin[r];
    if (m < c1) {  // first checkpoint after token t
      int32_t hi = c1;
      while (m < hi) {
        const int32_t mid = (m + hi) / 2;
        if (p.table.meta.ckpt_depth[mid] > t - begin) {
          hi = mid;
        } else {
          m = mid + 1;
        }
      }
    }
    while (t < stop) {
      int64_t until = stop;
      const int32_t depth = m < c1 ? p.table.meta.ckpt_depth[m] : 0;
      const bool stops_here = depth && begin + depth <= stop;
      if (stops_here) until = begin + depth;
      constexpr int kAhead = 8;
      for (; t + kAhead <= until; t += kAhead) {
        Vec v[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) v[i] = x_at(t + i);
        put(t, apply(w0, w1, w2, v[0]));
        put(t + 1, apply(w1, w2, v[0], v[1]));
        put(t + 2, apply(w2, v[0], v[1], v[2]));
#pragma unroll
        for (int i = 3; i < kAhead; ++i) put(t + i, apply(v[i - 3], v[i - 2], v[i - 1], v[i]));
        w0 = v[kAhead - 3], w1 = v[kAhead - 2], w2 = v[kAhead - 1];
      }
      for (; t < until; ++t) {
        const Vec v = x_at(t);
        put(t, apply(w0, w1, w2, v));
        w0 = w1, w1 = w2, w2 = v;
      }
      if (stops_here) {
        const int32_t slot = p.table.meta.ckpt_slot[m++];
        if (slot >= 0 && depth != alias)
          *window(p.ckpt, slot, 0) = w0, *window(p.ckpt, slot, 1) = w1, *window(p.ckpt, slot, 2) = w2;
      }
    }
  }
}

}  // namespace kadence::ops::cuda
