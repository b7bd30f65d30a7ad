// Preparation: turns 32 tokens of one head into a factor slot. 128 threads; warp w owns tokens 8 w .. 8 w + 7, lane l
// owns channels 4 l .. 4 l + 3. Symbols and the algebra are in README.md.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/common/async.cuh"
#include "ops/cuda/common/mma.cuh"
#include "ops/cuda/sm90/extend_ring/params.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

inline constexpr float kLog2E = 1.4426950408889634f;
// A chunk's half may be anchored at its ends while no channel decays below 2^-kAnchorLimit within it.
inline constexpr float kAnchorLimit = 116.0f;

// Offsets inside a tile of 128-byte rows (128-byte swizzle) and of 64-byte rows (64-byte swizzle); column in elements.
__device__ __forceinline__ constexpr int swizzle64(int row, int column) {
  return row * 64 + ((((column >> 3) ^ (row >> 1)) & 3) << 4) + (column & 7) * 2;
}

// Inputs of one chunk and head as a thread holds them. Tokens past the row's end hold values that contribute nothing.
template <bool kDecayF32>
struct RawChunk;
template <>
struct RawChunk<false> {
  uint2 k[8], q[8], g[8];
  uint32_t beta;  // bits as stored
  float a_log;
  float4 bias;
  __device__ float4 decay(int i) const {
    return make_float4(bf16_lo(g[i].x), bf16_hi(g[i].x), bf16_lo(g[i].y), bf16_hi(g[i].y));
  }
};
template <>
struct RawChunk<true> {
  uint2 k[8], q[8];
  float4 g[8];
  uint32_t beta;  // bits as stored
  float a_log;
  float4 bias;
  __device__ float4 decay(int i) const { return g[i]; }
};

// Where a chunk's inputs begin: at its first token and its head.
struct ChunkInputs {
  const char *k, *q, *decay, *beta;
  int head, count;  // value head; tokens, 0 = no chunk
};
template <bool kDecayF32>
__device__ __forceinline__ ChunkInputs inputs_of(const RingParams& p, int head, int token, int count) {
  const int64_t first = token;
  const int qk_head = p.group == 1 ? head : head / p.group;
  ChunkInputs in;
  in.k = static_cast<const char*>(p.k) + (first * p.k_pitch + qk_head * kDim) * 2;
  in.q = static_cast<const char*>(p.q) + (first * p.q_pitch + qk_head * kDim) * 2;
  in.decay = static_cast<const char*>(p.decay) + (first * p.decay_pitch + head * kDim) * (kDecayF32 ? 4 : 2);
  in.beta = static_cast<const char*>(p.beta) + (first * p.beta_pitch + head) * (p.beta_fp32 ? 4 : 2);
  in.head = head, in.count = count;
  return in;
}

template <KdaGate kGate, bool kDecayF32>
__device__ __forceinline__ void load_raw(RawChunk<kDecayF32>& raw, const RingParams& p, const ChunkInputs& in,
                                         int tid) {
  const int w = tid >> 5, l = tid & 31, left = in.count - w * 8;
  constexpr int kDecayBytes = kDecayF32 ? 4 : 2;
  const int64_t k_step = p.k_pitch * 2, q_step = p.q_pitch * 2, g_step = p.decay_pitch * kDecayBytes;
  const char* k = in.k + w * 8 * k_step + l * 8;
  const char* q = in.q + w * 8 * q_step + l * 8;
  const char* g = in.decay + w * 8 * g_step + l * 4 * kDecayBytes;
  using Decay = std::remove_reference_t<decltype(raw.g[0])>;
  if (left >= 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i, k += k_step, q += q_step, g += g_step) {
      raw.g[i] = __ldg(reinterpret_cast<const Decay*>(g));
      raw.k[i] = __ldg(reinterpret_cast<const uint2*>(k));
      raw.q[i] = __ldg(reinterpret_cast<const uint2*>(q));
    }
  } else {
    // A gate input that makes no decay: -inf for the two activations, 0 for a given log decay.
    constexpr uint32_t kNone = kGate == KdaGate::kGivenLogDecay ? 0u : 0xff80ff80u;
    Decay none;
    if constexpr (kDecayF32)
      none = make_float4(bf16_hi(kNone), bf16_hi(kNone), bf16_hi(kNone), bf16_hi(kNone));
    else
      none = make_uint2(kNone, kNone);
#pragma unroll
    for (int i = 0; i < 8; ++i, k += k_step, q += q_step, g += g_step) {
      const bool valid = i < left;
      raw.g[i] = valid ? __ldg(reinterpret_cast<const Decay*>(g)) : none;
      raw.k[i] = valid ? __ldg(reinterpret_cast<const uint2*>(k)) : make_uint2(0, 0);
      raw.q[i] = valid ? __ldg(reinterpret_cast<const uint2*>(q)) : make_uint2(0, 0);
    }
  }
  raw.beta = 0;
  if (tid < in.count) {
    raw.beta = p.beta_fp32 ? __ldg(reinterpret_cast<const uint32_t*>(in.beta) + tid * p.beta_pitch)
                           : __ldg(reinterpret_cast<const uint16_t*>(in.beta) + tid * p.beta_pitch);
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

// acc (16 x 16 as two 16 x 8 tiles) += A (16 x 128) B (16 x 128)^T. Operands are bf16 in two key halves of 128-byte
// rows, 128-byte swizzle, a_half and b_half bytes apart.
__device__ __forceinline__ void block_product(float (&acc)[2][4], uint32_t a, int a_half, uint32_t b, int b_half,
                                              int l) {
  const int ra = l & 15, rb = (l & 7) + 8 * (l >> 4);
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    uint32_t x[4], y[4];
    ldmatrix_x4(x, a + (s >> 2) * a_half + ra * 128 + ((((s & 3) * 2 + (l >> 4)) ^ (ra & 7)) << 4));
    ldmatrix_x4(y, b + (s >> 2) * b_half + rb * 128 + ((((s & 3) * 2 + ((l >> 3) & 1)) ^ (rb & 7)) << 4));
    mma_bf16(acc[0], x, y[0], y[1]);
    mma_bf16(acc[1], x, y[2], y[3]);
  }
}

// Transposing reduction: sums n[0..15] over the 16 lanes that share bit 4; lane l ends with the sum of n[l % 16].
template <int kStep>
__device__ __forceinline__ void fold(float (&n)[16], int l) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const float low = n[i], high = n[i + kStep];
    n[i] = ((l & kStep) ? high : low) + __shfl_xor_sync(~0u, (l & kStep) ? low : high, kStep);
  }
  if constexpr (kStep > 1) fold<kStep / 2>(n, l);
}

// Place of lane l's four channels in row r of a tile of 128-byte rows whose key halves are half_bytes apart.
__device__ __forceinline__ uint32_t place_in_tile(uint32_t tile, int half_bytes, int r, int l) {
  return tile + (l >> 4) * half_bytes + r * 128 + ((((l & 15) >> 1) ^ (r & 7)) << 4) + (l & 1) * 8;
}

// Diagonal blocks of -L and M by ordered products of the tokens' decays, fp32, and all tiles but k 2^-p from sums with
// exponents <= 0 only: right for decays down to -inf. Nothing overflows, nothing is divided.
// Reads the tables of write_exact_tables (log2 decays, raw keys and queries, norms) and the group sums.
static __device__ __noinline__ void exact_path(uint32_t base, uint32_t beta_place, int w, int l, int barrier,
                                               float inverse_norm) {
  float4 sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = ld_shared_v4(base + Prep::kGroupSums + i * 512 + l * 16);
  named_barrier_sync(barrier, 128);
  const auto row = [&](int at, int r, float(&x)[4]) {
    const float2 v = ld_shared_v2(base + at + r * 256 + l * 8);
    const uint32_t a = __float_as_uint(v.x), b = __float_as_uint(v.y);
    x[0] = bf16_lo(a), x[1] = bf16_hi(a), x[2] = bf16_lo(b), x[3] = bf16_hi(b);
  };
  const auto decay_row = [&](int r) { return ld_shared_v4(base + Prep::kExactDecay + r * 512 + l * 16); };
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {  // four rows of each block a warp, short and long ones
    const int block = n >> 2, m = n & 3, i = m == 0 ? w : m == 1 ? 7 - w : m == 2 ? 8 + w : 15 - w, ri = block * 16 + i;
    float ki[4], qi[4], decay[4] = {1, 1, 1, 1}, low = 0, mix = 0;
    row(Prep::kExactKeys, ri, ki), row(Prep::kExactQueries, ri, qi);
    // Row i walks back over j with the running product of the decays of j + 1 .. i.
#pragma unroll 1
    for (int j = i; j >= 0; --j) {
      float kj[4], a = 0, b = 0;
      row(Prep::kExactKeys, block * 16 + j, kj);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float x = decay[c] * kj[c];
        a = fmaf(ki[c], x, a), b = fmaf(qi[c], x, b);
      }
#pragma unroll
      for (int s = 16; s > 0; s >>= 1) a += __shfl_xor_sync(~0u, a, s), b += __shfl_xor_sync(~0u, b, s);
      if (l == j) low = a, mix = b;
      const float4 e = decay_row(block * 16 + j);
      decay[0] *= exp2_approx(e.x), decay[1] *= exp2_approx(e.y), decay[2] *= exp2_approx(e.z),
          decay[3] *= exp2_approx(e.w);
    }
    if (l < 16) {
      const float kj = -ld_shared(base + Prep::kNorms + (block * 16 + l) * 4);  // 1 / |k_j|
      const float beta = ld_shared(beta_place + ri * 4);
      st_shared(base + Prep::kLower + block * 1024 + l * 64 + i * 4,
                l < i ? low * kj * ld_shared(base + Prep::kNorms + ri * 4) * beta : 0.0f);
      const float m_ij = l <= i ? mix * kj * ld_shared(base + Prep::kNorms + 128 + ri * 4) : 0.0f;
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(base + Prep::kMixExact + block * 768 + i * 48 + l * 2),
                   "h"(__half_as_ushort(__float2half_rn(m_ij)))
                   : "memory");
    }
  }
  float g[8][4], k[8][4], q[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 x = decay_row(w * 8 + i);
    g[i][0] = x.x, g[i][1] = x.y, g[i][2] = x.z, g[i][3] = x.w;
    row(Prep::kExactKeys, w * 8 + i, k[i]), row(Prep::kExactQueries, w * 8 + i, q[i]);
  }
  named_barrier_sync(barrier, 128);  // the tables lie where the factors go
  const auto parts = [](float4 v, float(&x)[4]) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; };
  const float4 zero = make_float4(0, 0, 0, 0);
  float a[4], b[4], run[4], tail[4], e_first[4], e_second[4];
  parts(sums[0], a), parts(sums[1], b);
#pragma unroll
  for (int c = 0; c < 4; ++c) e_first[c] = exp2_approx(a[c] + b[c]);
  parts(sums[2], a), parts(sums[3], b);
#pragma unroll
  for (int c = 0; c < 4; ++c) e_second[c] = exp2_approx(a[c] + b[c]);
  parts(w == 1 ? sums[0] : w == 3 ? sums[2] : zero, run);   // of the tokens of this half before this warp's
  parts(w == 0 ? sums[1] : w == 2 ? sums[3] : zero, tail);  // and after them
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = w * 8 + i;
    const float rk = __shfl_sync(~0u, inverse_norm, i), rq = __shfl_sync(~0u, inverse_norm, 8 + i);
    float kp[4], qp[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      run[c] += g[i][c];
      const float e = exp2_approx(run[c]);
      kp[c] = k[i][c] * rk * e, qp[c] = q[i][c] * rq * e;
    }
    if (w >= 2) {
      const uint32_t half = place_in_tile(base + Prep::kSecondHalf, 2048, r - 16, l);
      st_shared_v2(half, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
      st_shared_v2(half + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
#pragma unroll
      for (int c = 0; c < 4; ++c) kp[c] *= e_first[c], qp[c] *= e_first[c];
    }
    const uint32_t state = place_in_tile(base + Slot::kKeyQuery, 8192, r, l);
    st_shared_v2(state, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
    st_shared_v2(state + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
  }
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const int r = w * 8 + i;
    const float rk = -__shfl_sync(~0u, inverse_norm, i);
    float kr[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kr[c] = k[i][c] * rk * exp2_approx(tail[c]);
      tail[c] += g[i][c];
    }
    if (w < 2) {
      st_shared_v2(place_in_tile(base + Prep::kCornerKeys, 2048, r, l), pack_bf16(kr[0], kr[1]),
                   pack_bf16(kr[2], kr[3]));
#pragma unroll
      for (int c = 0; c < 4; ++c) kr[c] *= e_second[c];
    }
    st_shared_v2(place_in_tile(base + Prep::kUpdateKeys, 4096, r, l), pack_f16(kr[0], kr[1]), pack_f16(kr[2], kr[3]));
  }
}

// The chunk of one preparing warpgroup. `base` is its shared memory, `barrier` its named barrier.
template <KdaGate kGate, bool kExact, bool kDecayF32>
struct ChunkPrep {
  const RingParams& p;
  const uint32_t base;
  const int tid, w, l, barrier;
  uint32_t beta_place = 0;  // of this turn

  __device__ ChunkPrep(const RingParams& params, uint32_t shared, int thread, int bar)
      : p(params), base(shared), tid(thread), w(thread >> 5), l(thread & 31), barrier(bar) {}

  __device__ __forceinline__ void sync() const { named_barrier_sync(barrier, 128); }
  // Row `r` of a two-half tile of 128-byte rows at `at`: this lane's four channels.
  __device__ __forceinline__ uint32_t lane_place(int at, int half_bytes, int r) const {
    return place_in_tile(base + at, half_bytes, r, l);
  }

  // All of it but the hand-over. before_writes runs before the slot image is overwritten, after_factors once the
  // inputs are consumed; both by all threads.
  template <class BeforeWrites, class AfterFactors>
  __device__ __forceinline__ void run(const RawChunk<kDecayF32>& raw, int count, int turn, BeforeWrites before_writes,
                                      AfterFactors after_factors) {
    beta_place = base + Prep::kBeta + (turn & 1) * 128;
    if (tid < 32) {
      const float x = __uint_as_float(p.beta_fp32 ? raw.beta : raw.beta << 16);
      const float beta = p.beta_given ? x : rcp_approx(1.0f + exp2_approx(-kLog2E * x));
      st_shared(beta_place + tid * 4, tid >= count ? 0.0f : p.beta_doubled ? 2.0f * beta : beta);
    }
    const float inverse_norm = row_norms(raw);  // before the gate, when fewest registers are taken
    float g[8][4];  // log2 decay; cumulated over this warp's tokens unless the exact path may need single tokens
    float total[4] = {0, 0, 0, 0};
    {
      const GateFunction<kGate> gate(raw, p);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 x4 = raw.decay(i);
        const float x[4] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float step = gate(x[c], c);
          total[c] += step;
          g[i][c] = kExact ? step : total[c];
        }
      }
    }
    st_shared_v4(base + Prep::kGroupSums + w * 512 + l * 16, make_float4(total[0], total[1], total[2], total[3]));
    before_writes();
    sync();

    bool exact = false;
    float4 s0, s1, s2, s3;
    {
      const uint32_t at = base + Prep::kGroupSums + l * 16;
      s0 = ld_shared_v4(at), s1 = ld_shared_v4(at + 512), s2 = ld_shared_v4(at + 1024), s3 = ld_shared_v4(at + 1536);
    }
    const float first[4] = {s0.x + s1.x, s0.y + s1.y, s0.z + s1.z, s0.w + s1.w};   // sums of tokens 0-15
    const float second[4] = {s2.x + s3.x, s2.y + s3.y, s2.z + s3.z, s2.w + s3.w};  // 16-31
    if constexpr (kExact) {
      const float lowest = fminf(fminf(fminf(first[0], first[1]), fminf(first[2], first[3])),
                                 fminf(fminf(second[0], second[1]), fminf(second[2], second[3])));
      exact = __any_sync(~0u, !(lowest >= -kAnchorLimit));  // the same in all four warps: each sees all channels
    }
    float e_first[4], e_second[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) e_first[c] = exp2_approx(first[c]), e_second[c] = exp2_approx(second[c]);
    if (w == 0)
      st_shared_v4(base + Slot::kDecay + l * 16, make_float4(e_first[0] * e_second[0], e_first[1] * e_second[1],
                                                             e_first[2] * e_second[2], e_first[3] * e_second[3]));
    if (kExact && exact) {
      write_exact_tables(raw, g, inverse_norm);
      exact_path(base, beta_place, w, l, barrier, inverse_norm);
    } else {
      anchored_factors(raw, g, inverse_norm, w == 1 ? s0 : w == 3 ? s2 : make_float4(0, 0, 0, 0), e_first, e_second);
    }
    after_factors();
    sync();
    products_and_inverse(exact);
  }

 private:
  // Lane l holds the factor of row l % 8: -1/|k| for l % 16 < 8, scale/|q| otherwise.
  __device__ __forceinline__ float row_norms(const RawChunk<kDecayF32>& raw) const {
    if (!p.l2norm) return (l & 8) ? p.scale : -1.0f;
    float n[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto squares = [](uint2 x) {
        float s = bf16_lo(x.x) * bf16_lo(x.x);
        s = fmaf(bf16_hi(x.x), bf16_hi(x.x), s);
        s = fmaf(bf16_lo(x.y), bf16_lo(x.y), s);
        return fmaf(bf16_hi(x.y), bf16_hi(x.y), s);
      };
      n[i] = squares(raw.k[i]), n[8 + i] = squares(raw.q[i]);
    }
    fold<8>(n, l);
    return rsqrt_approx(n[0] + __shfl_xor_sync(~0u, n[0], 16) + kL2NormEps) * ((l & 8) ? p.scale : -1.0f);
  }

  // kd, qd, k 2^-p and the two decayed key tiles from exponents of both signs around the anchors. One code path for
  // both halves of the chunk: what only one of them needs is computed by both, which costs less than branches.
  __device__ __forceinline__ void anchored_factors(const RawChunk<kDecayF32>& raw, const float (&g)[8][4],
                                                   float inverse_norm, float4 before, const float (&e_first)[4],
                                                   const float (&e_second)[4]) const {
    const bool second = w >= 2;
    float run[4] = {before.x, before.y, before.z, before.w}, state[4], update[4];
#pragma unroll
    for (int c = 0; c < 4; ++c)
      state[c] = second ? e_first[c] : 1.0f, update[c] = second ? e_second[c] : e_first[c] * e_second[c];
    // This lane's place in row 8 w of the tiles by the distance of their key halves; in the 16-row tiles in row 8 (w %
    // 2).
    const uint32_t in4096 = lane_place(0, 4096, w * 8), in8192 = lane_place(0, 8192, w * 8),
                   in2048 = lane_place(0, 2048, (w & 1) * 8);
    float rk = __shfl_sync(~0u, inverse_norm, 0), rq = __shfl_sync(~0u, inverse_norm, 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float k[4] = {bf16_lo(raw.k[i].x), bf16_hi(raw.k[i].x), bf16_lo(raw.k[i].y), bf16_hi(raw.k[i].y)};
      const float q[4] = {bf16_lo(raw.q[i].x), bf16_hi(raw.q[i].x), bf16_lo(raw.q[i].y), bf16_hi(raw.q[i].y)};
      float kp[4], qp[4], km[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float pc;
        if constexpr (kExact)
          pc = run[c] += g[i][c];
        else
          pc = run[c] + g[i][c];
        const float e = exp2_approx(pc), f = exp2_approx(-pc), kn = k[c] * rk;  // kn = -k / |k|
        kp[c] = kn * e, qp[c] = q[c] * rq * e, km[c] = -kn * f;
      }
      if (i < 7) rk = __shfl_sync(~0u, inverse_norm, i + 1), rq = __shfl_sync(~0u, inverse_norm, 9 + i);
      // Row i of a group of eight: its 16-byte pieces are swapped by i.
      const uint32_t a4096 = (in4096 + i * 128) ^ (i << 4), a8192 = (in8192 + i * 128) ^ (i << 4),
                     a2048 = (in2048 + i * 128) ^ (i << 4);
      st_shared_v2(a4096 + Prep::kInverseKeys, pack_bf16(km[0], km[1]), pack_bf16(km[2], km[3]));
      st_shared_v2_if(second, a2048 + Prep::kSecondHalf, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
      st_shared_v2_if(second, a2048 + Prep::kSecondHalf + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
      st_shared_v2_if(!second, a2048 + Prep::kCornerKeys, pack_bf16(km[0] * e_first[0], km[1] * e_first[1]),
                      pack_bf16(km[2] * e_first[2], km[3] * e_first[3]));
#pragma unroll
      for (int c = 0; c < 4; ++c) kp[c] *= state[c], qp[c] *= state[c], km[c] *= update[c];
      st_shared_v2(a8192 + Slot::kKeyQuery, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
      st_shared_v2(a8192 + Slot::kKeyQuery + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
      st_shared_v2(a4096 + Prep::kUpdateKeys, pack_f16(km[0], km[1]), pack_f16(km[2], km[3]));
    }
  }

  // Exact path, which few chunks take: everything it reads goes to tables in shared memory, so that what it needs in
  // registers does not burden the other path.
  __device__ __forceinline__ void write_exact_tables(const RawChunk<kDecayF32>& raw, const float (&g)[8][4],
                                                     float inverse_norm) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = w * 8 + i;
      st_shared_v4(base + Prep::kExactDecay + r * 512 + l * 16, make_float4(g[i][0], g[i][1], g[i][2], g[i][3]));
      st_shared_v2(base + Prep::kExactKeys + r * 256 + l * 8, raw.k[i].x, raw.k[i].y);
      st_shared_v2(base + Prep::kExactQueries + r * 256 + l * 8, raw.q[i].x, raw.q[i].y);
    }
    if (l < 16) st_shared(base + Prep::kNorms + (w * 8 + (l & 7)) * 4 + (l & 8) * 16, inverse_norm);
  }

  // L and M by tensor cores, T = (I + L)^-1 by substitution, then W = (T diag(beta))^T kr and M' = M T diag(beta).
  __device__ __forceinline__ void products_and_inverse(bool exact) const {
    const int lg = l >> 2, tg = l & 3;
    const uint32_t k0 = base + Slot::kKeyQuery, q0 = k0 + 4096, k1 = base + Prep::kSecondHalf, q1 = k1 + 4096;
    const uint32_t m0 = base + Prep::kInverseKeys, m1 = m0 + 2048, c0 = base + Prep::kCornerKeys;
    float acc[2][4] = {}, acc2[2][4] = {};
    if (w == 0) {
      if (!exact) block_product(acc, k0, 8192, m0, 4096, l);
    } else if (w == 1) {
      if (!exact) block_product(acc, k1, 2048, m1, 4096, l);
    } else if (w == 2) {
      block_product(acc, k1, 2048, c0, 2048, l);
    } else {
      block_product(acc, q1, 2048, c0, 2048, l);  // M10, kept
    }
    if (w < 3) {
      const float b0 = ld_shared(beta_place + ((w ? 16 : 0) + lg) * 4),
                  b1 = ld_shared(beta_place + ((w ? 16 : 0) + lg + 8) * 4);
#pragma unroll
      for (int nt = 0; nt < 2; ++nt) {
        if (w == 2) {
          st_shared(base + Prep::kCorner + lg * 48 + nt * 16 + tg * 4, pack_f16(acc[nt][0] * b0, acc[nt][1] * b0));
          st_shared(base + Prep::kCorner + (lg + 8) * 48 + nt * 16 + tg * 4,
                    pack_f16(acc[nt][2] * b1, acc[nt][3] * b1));
        } else if (!exact) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {  // by columns; strictly lower by select, since an anchored product may be inf
            const int i = lg + 8 * (e >> 1), j = nt * 8 + 2 * tg + (e & 1);
            st_shared(base + Prep::kLower + w * 1024 + j * 64 + i * 4, j < i ? acc[nt][e] * (e >> 1 ? b1 : b0) : 0.0f);
          }
        }
      }
    }
    sync();
    const auto keep_lower = [&](float(&m)[2][4]) {
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (nt * 8 + 2 * tg + (e & 1) > lg + 8 * (e >> 1)) m[nt][e] = 0.0f;
    };
    if (w == 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[i >> 2][i & 3] = 0.0f;
      if (!exact) block_product(acc, q0, 8192, m0, 4096, l), keep_lower(acc);  // M00
    } else if (w == 3) {
      if (!exact) block_product(acc2, q1, 2048, m1, 4096, l), keep_lower(acc2);  // M11
    } else if (w == 2) {                                                         // M' above the diagonal
#pragma unroll
      for (int i = 0; i < 2; ++i) st_shared_v2(base + Slot::kMix + swizzle64(lg + 8 * i, 16 + tg * 4), 0, 0);
    } else {
      invert();
    }
    sync();
    update_factor();
    if (w & 1) mix_factor(exact, acc, acc2);
  }

  // One warp: lanes 0-15 solve for the columns of T00, 16-31 for T11, in fp32; the corner is two fp16 products.
  __device__ __forceinline__ void invert() const {
    const int j = l & 15, lg = l >> 2, tg = l & 3;
    const uint32_t lower = base + Prep::kLower + (l >> 4) * 1024;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
    for (int s = 0; s < 15; ++s) {
#pragma unroll
      for (int b = (s + 1) / 4; b < 4; ++b) {
        const float4 v = ld_shared_v4(lower + s * 64 + b * 16);
        const float vv[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (4 * b + e > s) x[4 * b + e] = fmaf(vv[e], x[s], x[4 * b + e]);
      }
    }
    uint32_t t[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) t[i] = pack_f16(x[2 * i], x[2 * i + 1]);
    const uint32_t row = base + Prep::kInverse + l * 80 + (l >> 4) * 32;  // row = column of T
    st_shared_v4(row, t[0], t[1], t[2], t[3]);
    st_shared_v4(row + 16, t[4], t[5], t[6], t[7]);
    __syncwarp();
    uint32_t a[4], b[4];
    float y[2][4] = {}, z[2][4] = {};
    ldmatrix_x4(a, base + Prep::kInverse + (l & 15) * 80 + (l >> 4) * 16);
    ldmatrix_x4(b, base + Prep::kCorner + ((l & 7) + 8 * (l >> 4)) * 48 + ((l >> 3) & 1) * 16);
    mma_f16(y[0], a, b[0], b[1]), mma_f16(y[1], a, b[2], b[3]);  // (-L10 T00)^T
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack_f16(y[i >> 1][(i & 1) * 2], y[i >> 1][(i & 1) * 2 + 1]);
    ldmatrix_x4_trans(b, base + Prep::kInverse + 16 * 80 + 32 + (l & 15) * 80 + (l >> 4) * 16);
    mma_f16(z[0], a, b[0], b[1]), mma_f16(z[1], a, b[2], b[3]);  // (-T11 L10 T00)^T
#pragma unroll
    for (int nt = 0; nt < 2; ++nt) {
      st_shared(base + Prep::kInverse + lg * 80 + 32 + nt * 16 + tg * 4, pack_f16(z[nt][0], z[nt][1]));
      st_shared(base + Prep::kInverse + (lg + 8) * 80 + 32 + nt * 16 + tg * 4, pack_f16(z[nt][2], z[nt][3]));
    }
  }

  // W, 32 key channels a warp.
  __device__ __forceinline__ void update_factor() const {
    const int lg = l >> 2, tg = l & 3;
    const uint32_t inv = base + Prep::kInverse + (l & 15) * 80 + (l >> 4) * 16;
    uint32_t a00[4], a01[4], a11[4];
    ldmatrix_x4(a00, inv), ldmatrix_x4(a01, inv + 32), ldmatrix_x4(a11, inv + 16 * 80 + 32);
    float upper[4][4] = {}, lower[4][4] = {};
#pragma unroll
    for (int np = 0; np < 2; ++np) {
      uint32_t b0[4], b1[4];
      const uint32_t at = base + Prep::kUpdateKeys + (w >> 1) * 4096 + (l & 15) * 128 +
                          ((((w & 1) * 4 + np * 2 + (l >> 4)) ^ (l & 7)) << 4);
      ldmatrix_x4_trans(b0, at), ldmatrix_x4_trans(b1, at + 2048);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        mma_f16(upper[np * 2 + h], a00, b0[2 * h], b0[2 * h + 1]);
        mma_f16(upper[np * 2 + h], a01, b1[2 * h], b1[2 * h + 1]);
        mma_f16(lower[np * 2 + h], a11, b1[2 * h], b1[2 * h + 1]);
      }
    }
    const uint32_t out = base + Slot::kUpdate + (w >> 1) * 4096 + lg * 128 + tg * 4, beta = beta_place + lg * 4;
    const float b0 = ld_shared(beta), b1 = ld_shared(beta + 32), b2 = ld_shared(beta + 64), b3 = ld_shared(beta + 96);
#pragma unroll
    for (int nt = 0; nt < 4; ++nt) {
      upper[nt][0] *= b0, upper[nt][1] *= b0, upper[nt][2] *= b1, upper[nt][3] *= b1;
      lower[nt][0] *= b2, lower[nt][1] *= b2, lower[nt][2] *= b3, lower[nt][3] *= b3;
      const uint32_t at = out + (((((w & 1) * 4 + nt) ^ lg) & 7) << 4);
      st_shared(at, pack_bf16(upper[nt][0], upper[nt][1])), st_shared(at + 1024, pack_bf16(upper[nt][2], upper[nt][3]));
      st_shared(at + 2048, pack_bf16(lower[nt][0], lower[nt][1])),
          st_shared(at + 3072, pack_bf16(lower[nt][2], lower[nt][3]));
    }
  }

  // M' rows 0-15 by warp 1 (acc = M00), rows 16-31 by warp 3 (acc = M10, acc2 = M11).
  __device__ __forceinline__ void mix_factor(bool exact, const float (&acc)[2][4], const float (&acc2)[2][4]) const {
    const int lg = l >> 2, tg = l & 3, r0 = w == 1 ? 0 : 16;
    const auto pack = [](uint32_t(&a)[4], const float(&m)[2][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = pack_f16(m[i >> 1][(i & 1) * 2], m[i >> 1][(i & 1) * 2 + 1]);
    };
    const uint32_t inv = base + Prep::kInverse + ((l & 7) + 8 * (l >> 4)) * 80 + ((l >> 3) & 1) * 16;
    uint32_t a[4], b[4], diagonal[4];
    float y[2][4] = {}, z[2][4] = {};
    if (w == 1)
      pack(diagonal, acc);
    else
      pack(diagonal, acc2);
    if constexpr (kExact) {
      if (exact) ldmatrix_x4(diagonal, base + Prep::kMixExact + (w >> 1) * 768 + (l & 15) * 48 + (l >> 4) * 16);
    }
    ldmatrix_x4(b, inv);
    if (w == 1) {
      mma_f16(y[0], diagonal, b[0], b[1]), mma_f16(y[1], diagonal, b[2], b[3]);
    } else {
      pack(a, acc);
      mma_f16(y[0], a, b[0], b[1]), mma_f16(y[1], a, b[2], b[3]);
      ldmatrix_x4(b, inv + 32);
      mma_f16(y[0], diagonal, b[0], b[1]), mma_f16(y[1], diagonal, b[2], b[3]);
      ldmatrix_x4(b, inv + 16 * 80 + 32);
      mma_f16(z[0], diagonal, b[0], b[1]), mma_f16(z[1], diagonal, b[2], b[3]);
    }
#pragma unroll
    for (int nt = 0; nt < 2; ++nt) {
      const int column = nt * 8 + 2 * tg;
      const float2 b0 = ld_shared_v2(beta_place + column * 4), b1 = ld_shared_v2(beta_place + 64 + column * 4);
      y[nt][0] *= b0.x, y[nt][1] *= b0.y, y[nt][2] *= b0.x, y[nt][3] *= b0.y;
      z[nt][0] *= b1.x, z[nt][1] *= b1.y, z[nt][2] *= b1.x, z[nt][3] *= b1.y;
      st_shared(base + Slot::kMix + swizzle64(r0 + lg, column), pack_bf16(y[nt][0], y[nt][1]));
      st_shared(base + Slot::kMix + swizzle64(r0 + lg + 8, column), pack_bf16(y[nt][2], y[nt][3]));
      if (w == 3) {
        st_shared(base + Slot::kMix + swizzle64(16 + lg, 16 + column), pack_bf16(z[nt][0], z[nt][1]));
        st_shared(base + Slot::kMix + swizzle64(24 + lg, 16 + column), pack_bf16(z[nt][2], z[nt][3]));
      }
    }
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
