// Preparation: turns 32 tokens of one value head into a factor slot. One CTA of four warps; warp w owns tokens 8 w ..
// 8 w + 7 and lane l channels 4 l .. 4 l + 3 until the factors lie in shared memory. Symbols: ../README.md.
#pragma once

#include <type_traits>

#include "ops/cuda/common/element.cuh"
#include "ops/cuda/sm80/extend_chunked/config.h"
#include "ops/cuda/sm80/extend_chunked/warp.cuh"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;
// A chunk's half may be anchored at its ends while no channel decays below 2^-kAnchorLimit within it.
inline constexpr float kAnchorLimit = 116.0f;
// While no channel decays below 2^-kFineLimit over the chunk, everything fits fp16.
inline constexpr float kFineLimit = 10.0f;

// Two elements of a word as floats.
template <class Io>
__device__ __forceinline__ float2 unpack(uint32_t x);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(uint32_t x) {
  return make_float2(bf16_lo(x), bf16_hi(x));
}
template <>
__device__ __forceinline__ float2 unpack<__half>(uint32_t x) {
  return make_float2(f16_lo(x), f16_hi(x));
}
template <class Io>
__device__ __forceinline__ void unpack4(uint2 x, float (&f)[4]) {
  const float2 a = unpack<Io>(x.x), b = unpack<Io>(x.y);
  f[0] = a.x, f[1] = a.y, f[2] = b.x, f[3] = b.y;
}
__device__ __forceinline__ void spread(float4 x, float (&f)[4]) { f[0] = x.x, f[1] = x.y, f[2] = x.z, f[3] = x.w; }
__device__ __forceinline__ float exponent_to_float(int e) {  // 2^e, -126 <= e <= 127
  return __uint_as_float(static_cast<uint32_t>(e + 127) << 23);
}

// Decay of one token and channel in log2 units.
struct Gate {
  KdaGate kind;
  float slope, factor, offset[4];
  __device__ __forceinline__ Gate(const WindowParams& p, int head, int channel) : kind(p.gate) {
    slope = kLog2E, factor = 1.0f;
    if (kind == KdaGate::kGivenLogDecay) return;
    const float a = exp2_approx(kLog2E * p.a_log[head]);
    if (kind == KdaGate::kBounded)
      slope = -kLog2E * a, factor = p.lower_bound * kLog2E;
    else
      factor = -a;
#pragma unroll
    for (int c = 0; c < 4; ++c)
      offset[c] = p.dt_bias ? p.dt_bias[static_cast<int64_t>(head) * kDim + channel + c] * slope : 0.0f;
  }
  template <class Raw>
  __device__ __forceinline__ void apply(const Raw& raw, int valid, float (&g)[8][4]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float x[4];
        raw.decay(i, x);
#pragma unroll
        for (int c = 0; c < 4; ++c) g[i][c] = f(x[c], c);
      }
    };
    if (kind == KdaGate::kBounded) {
      each([&](float x, int c) { return factor * rcp_approx(1.0f + exp2_approx(fmaf(x, slope, offset[c]))); });
    } else if (kind == KdaGate::kSoftplus) {
      each([&](float x, int c) {
        const float y = fmaf(x, slope, offset[c]), z = exp2_approx(y);
        // log2(1 + z): a short series where 1 + z would lose z's bits.
        const float s = z < 0.00390625f ? z * fmaf(z, -0.5f * kLog2E, kLog2E) : log2_approx(1.0f + z);
        return factor * (y >= kSoftplusThreshold * kLog2E ? y : s);
      });
    } else {
      each([&](float x, int) { return x * slope; });
    }
    if (valid < 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) g[i][c] = i < valid ? g[i][c] : 0.0f;
    }
  }
};

// A thread's inputs as stored. Tokens past the end are zeros.
template <class Io, bool kDecayF32>
struct RawInputs {
  using DecayWord = std::conditional_t<kDecayF32, float4, uint2>;
  uint2 k[8], q[8];
  DecayWord g[8];
  __device__ __forceinline__ void load(const WindowParams& p, int64_t token, int head, int lane, int valid) {
    const int64_t key_head = head / p.heads_per_key;
    const Io* const k_at = static_cast<const Io*>(p.k) + token * p.k_pitch + key_head * kDim + lane * 4;
    const Io* const q_at = static_cast<const Io*>(p.q) + token * p.q_pitch + key_head * kDim + lane * 4;
    using Decay = std::conditional_t<kDecayF32, float, Io>;
    const Decay* const g_at =
        static_cast<const Decay*>(p.decay) + token * p.decay_pitch + static_cast<int64_t>(head) * kDim + lane * 4;
    const auto load_all = [&](auto wanted) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        k[i] = q[i] = make_uint2(0, 0);
        g[i] = {};
        if (wanted(i)) {
          k[i] = *reinterpret_cast<const uint2*>(k_at + i * p.k_pitch);
          q[i] = *reinterpret_cast<const uint2*>(q_at + i * p.q_pitch);
          g[i] = *reinterpret_cast<const DecayWord*>(g_at + i * p.decay_pitch);
        }
      }
    };
    if (valid >= 8)
      load_all([](int) { return true; });
    else
      load_all([valid](int i) { return i < valid; });
  }
  __device__ __forceinline__ void decay(int i, float (&x)[4]) const {
    if constexpr (kDecayF32)
      spread(g[i], x);
    else
      unpack4<Io>(g[i], x);
  }
};

// n[i] over the lanes that share the bits above: lane l ends with the value of n[l % (2 kStep)].
template <int kStep, int N, class Op>
__device__ __forceinline__ void fold(float (&n)[N], int lane, Op op) {
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const bool upper = lane & kStep;
    const float low = n[i], high = n[i + kStep];
    n[i] = op(upper ? high : low, __shfl_xor_sync(kAllLanes, upper ? low : high, kStep));
  }
  if constexpr (kStep > 1) fold<kStep / 2>(n, lane, op);
}

// acc (16 x 16 as two 16 x 8 tiles) += A (16 x 128) B (16 x 128)^T; a and b are the tiles' first rows (even ones).
template <bool kHalf>
__device__ __forceinline__ void block_product(float (&acc)[2][4], const uint8_t* a, const uint8_t* b, int lane) {
  const int r = lane >> 2, c = lane & 3, odd = (r & 1) << 6;
  const uint8_t *const ar = a + r * 256 + c * 16, *const br = b + r * 256 + c * 16;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int at = (s * 64) ^ odd;
    const uint4 a0 = *reinterpret_cast<const uint4*>(ar + at), a1 = *reinterpret_cast<const uint4*>(ar + 2048 + at);
    const uint4 b0 = *reinterpret_cast<const uint4*>(br + at), b1 = *reinterpret_cast<const uint4*>(br + 2048 + at);
    const uint32_t even[4] = {a0.x, a1.x, a0.y, a1.y}, odd_step[4] = {a0.z, a1.z, a0.w, a1.w};
    mma<kHalf>(acc[0], even, b0.x, b0.y), mma<kHalf>(acc[1], even, b1.x, b1.y);
    mma<kHalf>(acc[0], odd_step, b0.z, b0.w), mma<kHalf>(acc[1], odd_step, b1.z, b1.w);
  }
}

// Diagonal blocks of -L and M by ordered products of the tokens' decays in fp32, right for decays down to 0: nothing
// is divided and nothing overflows.
template <class Io>
__device__ __noinline__ void exact_blocks(uint8_t* shared, int w, int l) {
  const auto at = [&]<class T>(T*, int offset) -> T& { return *reinterpret_cast<T*>(shared + offset); };
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {  // four rows of each block a warp, short and long ones
    const int block = n >> 2, m = n & 3, i = m == 0 ? w : m == 1 ? 7 - w : m == 2 ? 8 + w : 15 - w;
    const int row = block * 16 + i;
    float ki[4], qi[4], decay[4] = {1, 1, 1, 1}, low[16], mix[16];
    unpack4<Io>(at(static_cast<uint2*>(nullptr), Prep::kExactKeys + row * 256 + l * 8), ki);
    unpack4<Io>(at(static_cast<uint2*>(nullptr), Prep::kExactQueries + row * 256 + l * 8), qi);
    // Row i walks back over j with the product of the decays of j + 1 .. i.
#pragma unroll
    for (int j = 15; j >= 0; --j) {
      low[j] = mix[j] = 0.0f;
      if (j > i) continue;
      float kj[4], e[4];
      unpack4<Io>(at(static_cast<uint2*>(nullptr), Prep::kExactKeys + (block * 16 + j) * 256 + l * 8), kj);
      spread(at(static_cast<float4*>(nullptr), Prep::kExactDecay + (block * 16 + j) * 512 + l * 16), e);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float x = decay[c] * kj[c];
        low[j] = fmaf(ki[c], x, low[j]), mix[j] = fmaf(qi[c], x, mix[j]);
        decay[c] *= e[c];
      }
    }
    const auto plus = [](float a, float b) { return a + b; };
    fold<8>(low, l, plus), fold<8>(mix, l, plus);
    const float lo = low[0] + __shfl_xor_sync(kAllLanes, low[0], 16),
                mi = mix[0] + __shfl_xor_sync(kAllLanes, mix[0], 16);
    if (l < 16) {
      const float kj = at(static_cast<float*>(nullptr), Prep::kNorms + (block * 16 + l) * 4);
      const float beta = at(static_cast<float*>(nullptr), Prep::kBeta + row * 4);
      at(static_cast<float*>(nullptr), Prep::kLower + block * 1024 + l * 64 + i * 4) =
          l < i ? -lo * kj * at(static_cast<float*>(nullptr), Prep::kNorms + row * 4) * beta : 0.0f;
      at(static_cast<__half*>(nullptr), Prep::kMixExact + block * 768 + i * 48 + l * 2) =
          __float2half_rn(l <= i ? mi * kj * at(static_cast<float*>(nullptr), Prep::kNorms + 128 + row * 4) : 0.0f);
    }
  }
}

template <class Io, bool kDecayF32>
struct ChunkPrep {
  const WindowParams& p;
  uint8_t* const shared;
  uint8_t* const slot;
  const int head, tid, w, l;
  RawInputs<Io, kDecayF32> raw;
  float g[8][4];       // log2 decay of a token
  float inverse_norm;  // of row l % 8 of this warp: 1 / |k| for l % 16 < 8, 1 / |q| otherwise

  __device__ ChunkPrep(const WindowParams& params, uint8_t* shared_base, uint8_t* slot_base, int value_head)
      : p(params),
        shared(shared_base),
        slot(slot_base),
        head(value_head),
        tid(static_cast<int>(threadIdx.x)),
        w(tid >> 5),
        l(tid & 31) {}

  template <class T>
  __device__ __forceinline__ T& at(int offset) const {
    return *reinterpret_cast<T*>(shared + offset);
  }
  // This lane's 8 bytes in row r of a tile; r's parity is that of `parity`.
  __device__ __forceinline__ int place(int r, int parity) const { return r * 256 + ((l * 8) ^ ((parity & 1) << 6)); }

  // `token`: of the chunk's first; `count` tokens of it exist.
  __device__ __forceinline__ void run(int64_t token, int count) {
    const int valid = count - w * 8;
    raw.load(p, token + w * 8, head, l, valid);
    if (tid < 32) {
      float beta = 0.0f;
      if (tid < count) {
        const int64_t i = (token + tid) * p.beta_pitch + head;
        const float x = p.beta_fp32 ? static_cast<const float*>(p.beta)[i]
                                    : __bfloat162float(static_cast<const __nv_bfloat16*>(p.beta)[i]);
        beta = p.beta_given ? x : rcp_approx(1.0f + exp2_approx(-kLog2E * x));
        if (p.beta_doubled) beta *= 2.0f;
      }
      at<float>(Prep::kBeta + tid * 4) = beta;
    }
    Gate(p, head, l * 4).apply(raw, valid, g);
    row_norms();
    float total[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) total[c] += g[i][c];
    at<float4>(Prep::kSums + w * 512 + l * 16) = make_float4(total[0], total[1], total[2], total[3]);
    __syncthreads();

    float sums[4][4], first[4], second[4];
    float lowest_half = 0, lowest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) spread(at<float4>(Prep::kSums + i * 512 + l * 16), sums[i]);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      first[c] = sums[0][c] + sums[1][c], second[c] = sums[2][c] + sums[3][c];
      lowest_half = fminf(lowest_half, fminf(first[c], second[c]));
      lowest = fminf(lowest, first[c] + second[c]);
    }
    // The same in all warps: each sees all channels.
    const bool exact = __any_sync(kAllLanes, !(lowest_half >= -kAnchorLimit));
    const bool fine = !__any_sync(kAllLanes, !(lowest >= -kFineLimit));
    float e_first[4], e_second[4], before[4], after[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      e_first[c] = exp2_approx(first[c]), e_second[c] = exp2_approx(second[c]);
      before[c] = w == 1 ? sums[0][c] : w == 3 ? sums[2][c] : 0.0f;  // of this half before this warp's tokens
      after[c] = w == 0 ? sums[1][c] : w == 2 ? sums[3][c] : 0.0f;
    }
    if (w == 0)
      *reinterpret_cast<float4*>(slot + Slot::kDecay + l * 16) = make_float4(
          e_first[0] * e_second[0], e_first[1] * e_second[1], e_first[2] * e_second[2], e_first[3] * e_second[3]);

    const int exponent = token_exponents(before, first, fine),
              update_exponent = fine ? 0 : update_exponents(after, second);
    if (exact) {
      write_exact_tables();
      __syncthreads();
      exact_blocks<Io>(shared, w, l);
      __syncthreads();
      write_factors<false, true>(exponent, update_exponent, before, after, e_first, e_second);
    } else if (fine) {
      write_factors<true, false>(exponent, update_exponent, before, after, e_first, e_second);
    } else {
      write_factors<false, false>(exponent, update_exponent, before, after, e_first, e_second);
    }
    __syncthreads();
    if (fine)
      products<true>(exact);
    else
      products<false>(exact);
  }

 private:
  __device__ __forceinline__ void row_norms() {
    const auto plus = [](float a, float b) { return a + b; };
    float n[16], d[8];  // squares; q k, the largest element of M where decay is strong, kept in fp32
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float x[4], y[4];
      unpack4<Io>(raw.k[i], x), unpack4<Io>(raw.q[i], y);
      n[i] = fmaf(x[3], x[3], fmaf(x[2], x[2], fmaf(x[1], x[1], x[0] * x[0])));
      n[8 + i] = fmaf(y[3], y[3], fmaf(y[2], y[2], fmaf(y[1], y[1], y[0] * y[0])));
      d[i] = fmaf(x[3], y[3], fmaf(x[2], y[2], fmaf(x[1], y[1], x[0] * y[0])));
    }
    fold<4>(d, l, plus);
    d[0] += __shfl_xor_sync(kAllLanes, d[0], 8);
    d[0] += __shfl_xor_sync(kAllLanes, d[0], 16);
    inverse_norm = 1.0f;
    if (p.l2norm) {
      fold<8>(n, l, plus);
      inverse_norm = rsqrt_approx(n[0] + __shfl_xor_sync(kAllLanes, n[0], 16) + kL2NormEps);
    }
    const float both = inverse_norm * __shfl_xor_sync(kAllLanes, inverse_norm, 8);
    if (l < 8) at<float>(Prep::kDiagonal + (w * 8 + l) * 4) = d[0] * both;
  }

  // m of this warp's token l % 8, a power of two next to the slowest channel's decay since the chunk's start: with it
  // taken out, keys and queries keep their precision in fp16 however far the token is decayed.
  __device__ __forceinline__ int token_exponents(const float (&before)[4], const float (&first)[4], bool fine) const {
    float slowest[8], run[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) run[c] = before[c] + (w >= 2 ? first[c] : 0.0f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) run[c] += g[i][c];
      slowest[i] = fmaxf(fmaxf(run[0], run[1]), fmaxf(run[2], run[3]));
    }
    const int m = reduce_exponents(slowest, kLowestExponent);
    if (l < 8)
      *reinterpret_cast<int32_t*>(slot + Slot::kExponent + (w * 8 + l) * 4) =
          m + kExponentBias + (fine ? kFineFlag : 0);
    return m;
  }

  // n of this warp's token l % 8, the same for the way to the chunk's end. Clamped, so that quotients fit fp16.
  __device__ __forceinline__ int update_exponents(const float (&after)[4], const float (&second)[4]) {
    float slowest[8], run[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) run[c] = after[c] + (w < 2 ? second[c] : 0.0f);
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      slowest[i] = fmaxf(fmaxf(run[0], run[1]), fmaxf(run[2], run[3]));
#pragma unroll
      for (int c = 0; c < 4; ++c) run[c] += g[i][c];
    }
    const int n = reduce_exponents(slowest, kLowestUpdateExponent);
    if (l < 8) at<int>(Prep::kUpdateExponent + (w * 8 + l) * 4) = n;
    return n;
  }
  // floor of the largest over the lanes of x[l % 8], between `lowest` and 0.
  __device__ __forceinline__ int reduce_exponents(float (&x)[8], int lowest) const {
    fold<4>(x, l, [](float a, float b) { return fmaxf(a, b); });
    float y = fmaxf(x[0], __shfl_xor_sync(kAllLanes, x[0], 8));
    y = fmaxf(y, __shfl_xor_sync(kAllLanes, y, 16));
    return static_cast<int>(fminf(fmaxf(floorf(y), static_cast<float>(lowest)), 0.0f));
  }

  // Factors of this warp's tokens: what the state is read with to the slot, tiles for the products to shared memory.
  // kExact: only tiles whose exponents are <= 0, and those of the update from sums, not from quotients.
  template <bool kHalf, bool kExact>
  __device__ __forceinline__ void write_factors(int exponent, int update_exponent, const float (&before)[4],
                                                const float (&after)[4], const float (&e_first)[4],
                                                const float (&e_second)[4]) {
    const bool second = w >= 2;
    float run[4] = {before[0], before[1], before[2], before[3]}, to_start[4], to_middle[4], to_end[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      to_start[c] = second ? e_first[c] : 1.0f;
      to_middle[c] = second ? e_second[c] : e_first[c];  // from the anchor to this half's end
      to_end[c] = second ? 1.0f : e_second[c];           // from there to the chunk's
    }
    // In a tile of update keys the pairs of channels 4 l and 4 l + 2 lie in units of their own.
    const int unit = 4 * (l >> 3) + 2 * (l & 1), word = ((l & 7) >> 1) * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = w * 8 + i;
      const float rk = __shfl_sync(kAllLanes, inverse_norm, i), rq = __shfl_sync(kAllLanes, inverse_norm, 8 + i);
      const float lift = exponent_to_float(-__shfl_sync(kAllLanes, exponent, i));
      float k[4], q[4], kp[4], qp[4], km[4], ks[4], qs[4];
      unpack4<Io>(raw.k[i], k), unpack4<Io>(raw.q[i], q);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        run[c] += g[i][c];
        const float e = exp2_approx(run[c]), from_start = e * to_start[c] * lift;
        k[c] *= rk, q[c] *= rq;
        kp[c] = k[c] * e, qp[c] = q[c] * e;
        ks[c] = -k[c] * from_start, qs[c] = q[c] * from_start;
        if constexpr (!kExact) km[c] = k[c] * exp2_approx(-run[c]);
      }
      const int here = place(r, i);
      *reinterpret_cast<uint2*>(slot + Slot::kKeys + here) = make_uint2(pack_f16(ks[0], ks[1]), pack_f16(ks[2], ks[3]));
      *reinterpret_cast<uint2*>(slot + Slot::kQueries + here) =
          make_uint2(pack_f16(qs[0], qs[1]), pack_f16(qs[2], qs[3]));
      at<uint2>(Prep::kKeys + here) = make_uint2(pack<kHalf>(kp[0], kp[1]), pack<kHalf>(kp[2], kp[3]));
      at<uint2>(Prep::kQueries + here) = make_uint2(pack<kHalf>(qp[0], qp[1]), pack<kHalf>(qp[2], qp[3]));
      if constexpr (!kExact) {
        at<uint2>(Prep::kInverseKeys + here) = make_uint2(pack<kHalf>(km[0], km[1]), pack<kHalf>(km[2], km[3]));
#pragma unroll
        for (int c = 0; c < 4; ++c) km[c] *= to_middle[c];
        write_update<kHalf>(here, r, i, unit, word, km, to_end, __shfl_sync(kAllLanes, update_exponent, i));
      }
    }
    if constexpr (kExact) {
      float tail[4] = {after[0], after[1], after[2], after[3]};
#pragma unroll
      for (int i = 7; i >= 0; --i) {
        const int r = w * 8 + i;
        const float rk = __shfl_sync(kAllLanes, inverse_norm, i);
        float k[4];
        unpack4<Io>(raw.k[i], k);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          k[c] *= rk * exp2_approx(tail[c]);
          tail[c] += g[i][c];
        }
        write_update<kHalf>(place(r, i), r, i, unit, word, k, to_end, __shfl_sync(kAllLanes, update_exponent, i));
      }
    }
  }
  // km = k decayed to the end of its half.
  template <bool kHalf>
  __device__ __forceinline__ void write_update(int here, int r, int i, int unit, int word, float (&km)[4],
                                               const float (&to_end)[4], int update_exponent) {
    if (w < 2) at<uint2>(Prep::kCornerKeys + here) = make_uint2(pack<kHalf>(km[0], km[1]), pack<kHalf>(km[2], km[3]));
    const float lift = kHalf ? 1.0f : exponent_to_float(-update_exponent);
#pragma unroll
    for (int c = 0; c < 4; ++c) km[c] *= to_end[c] * lift;
    const int row = Prep::kUpdateKeys + r * 256 + word;
    at<uint32_t>(row + ((unit ^ i) << 4)) = pack_f16(km[0], km[1]);
    at<uint32_t>(row + (((unit + 1) ^ i) << 4)) = pack_f16(km[2], km[3]);
  }

  // --- exact path ----------------------------------------------------------------------------------------------------
  __device__ __forceinline__ void write_exact_tables() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = w * 8 + i;
      at<float4>(Prep::kExactDecay + r * 512 + l * 16) =
          make_float4(exp2_approx(g[i][0]), exp2_approx(g[i][1]), exp2_approx(g[i][2]), exp2_approx(g[i][3]));
      at<uint2>(Prep::kExactKeys + r * 256 + l * 8) = raw.k[i];
      at<uint2>(Prep::kExactQueries + r * 256 + l * 8) = raw.q[i];
    }
    if (l < 16) at<float>(Prep::kNorms + (w * 8 + (l & 7)) * 4 + (l & 8) * 16) = inverse_norm;
  }
  // --- products ------------------------------------------------------------------------------------------------------
  // L and M by tensor cores, T = (I + L)^-1 by substitution, then W = (T diag(beta))^T kr and M' = M T diag(beta).
  template <bool kHalf>
  __device__ __forceinline__ void products(bool exact) {
    const int r = l >> 2, c2 = 2 * (l & 3);
    const uint8_t *const k0 = shared + Prep::kKeys, *const q0 = shared + Prep::kQueries,
                         *const i0 = shared + Prep::kInverseKeys, *const corner = shared + Prep::kCornerKeys;
    float a[2][4] = {}, b[2][4] = {};
    if (w == 0) {
      if (!exact) block_product<kHalf>(a, k0, i0, l), block_product<kHalf>(b, q0, i0, l);  // L00, M00
    } else if (w == 1) {
      if (!exact) block_product<kHalf>(a, k0 + 4096, i0 + 4096, l);  // L11
    } else if (w == 2) {
      block_product<kHalf>(a, q0 + 4096, corner, l);                 // M10
      if (!exact) block_product<kHalf>(b, q0 + 4096, i0 + 4096, l);  // M11
    } else {
      block_product<kHalf>(a, k0 + 4096, corner, l);  // L10
    }
    if (w != 2) {
      const float b0 = -at<float>(Prep::kBeta + ((w ? 16 : 0) + r) * 4),
                  b1 = -at<float>(Prep::kBeta + ((w ? 16 : 0) + r + 8) * 4);
#pragma unroll
      for (int nt = 0; nt < 2; ++nt) {
        if (w == 3) {
          at<uint32_t>(Prep::kCorner + r * 48 + nt * 16 + c2 * 2) = pack_f16(a[nt][0] * b0, a[nt][1] * b0);
          at<uint32_t>(Prep::kCorner + (r + 8) * 48 + nt * 16 + c2 * 2) = pack_f16(a[nt][2] * b1, a[nt][3] * b1);
        } else if (!exact) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {  // by columns; by select, since an anchored product above may be inf
            const int i = r + 8 * (e >> 1), j = nt * 8 + c2 + (e & 1);
            at<float>(Prep::kLower + w * 1024 + j * 64 + i * 4) = j < i ? a[nt][e] * (e >> 1 ? b1 : b0) : 0.0f;
          }
        }
      }
    }
    __syncthreads();
    if (w == 3) {
      invert<kHalf>();
    } else if (w != 1) {  // the diagonal block of M, as an operand
      const float d[2] = {at<float>(Prep::kDiagonal + (8 * w + r) * 4),
                          at<float>(Prep::kDiagonal + (8 * w + r + 8) * 4)};
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = r + 8 * (e >> 1), j = nt * 8 + c2 + (e & 1);
          b[nt][e] = j > i ? 0.0f : j == i ? d[e >> 1] : b[nt][e];
        }
    }
    __syncthreads();
    update_factor<kHalf>();
    if (w == 0 || w == 2) mix_factor(exact, a, b);
  }

  // One warp: lanes 0-15 solve for the columns of T00, 16-31 for T11, in fp32; the corner is two fp16 products.
  template <bool kHalf>
  __device__ __forceinline__ void invert() {
    const int j = l & 15, r = l >> 2, c = l & 3;
    const uint8_t* const lower = shared + Prep::kLower + (l >> 4) * 1024;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
    for (int s = 0; s < 15; ++s) {
#pragma unroll
      for (int b = (s + 1) / 4; b < 4; ++b) {
        float v[4];
        spread(*reinterpret_cast<const float4*>(lower + s * 64 + b * 16), v);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (4 * b + e > s) x[4 * b + e] = fmaf(v[e], x[s], x[4 * b + e]);
      }
    }
    const int row = l * 80 + (l >> 4) * 32;  // row of T^T = column of T
    const auto put = [&](int tile) {
      at<uint4>(tile + row) =
          make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7]));
      at<uint4>(tile + row + 16) =
          make_uint4(pack_f16(x[8], x[9]), pack_f16(x[10], x[11]), pack_f16(x[12], x[13]), pack_f16(x[14], x[15]));
    };
    put(Prep::kInverse);
    const int* const n = &at<int>(Prep::kUpdateExponent);
    if constexpr (!kHalf) {
#pragma unroll
      for (int i = 0; i < 16; ++i) x[i] *= exponent_to_float(n[(l & 16) + i] - n[l]);
      put(Prep::kInverseLifted);
    }
    __syncwarp();
    uint32_t a[4], b[4];
    float y[2][4] = {}, z[2][4] = {};
    load_matrices(a, shared + Prep::kInverse + (l & 15) * 80 + (l >> 4) * 16);
    load_matrices(b, shared + Prep::kCorner + ((l & 7) + 8 * (l >> 4)) * 48 + ((l >> 3) & 1) * 16);
    mma<true>(y[0], a, b[0], b[1]), mma<true>(y[1], a, b[2], b[3]);  // (-L10 T00)^T
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack_f16(y[i >> 1][(i & 1) * 2], y[i >> 1][(i & 1) * 2 + 1]);
    load_matrices_transposed(b, shared + Prep::kInverse + 16 * 80 + 32 + (l & 15) * 80 + (l >> 4) * 16);
    mma<true>(z[0], a, b[0], b[1]), mma<true>(z[1], a, b[2], b[3]);  // (-T11 L10 T00)^T
#pragma unroll
    for (int nt = 0; nt < 2; ++nt) {
      const int place = r * 80 + 32 + nt * 16 + c * 4;
      at<uint32_t>(Prep::kInverse + place) = pack_f16(z[nt][0], z[nt][1]);
      at<uint32_t>(Prep::kInverse + place + 640) = pack_f16(z[nt][2], z[nt][3]);
      if constexpr (!kHalf) {
        const int i = 16 + nt * 8 + 2 * c;
#pragma unroll
        for (int e = 0; e < 4; ++e) z[nt][e] *= exponent_to_float(n[i + (e & 1)] - n[r + 8 * (e >> 1)]);
        at<uint32_t>(Prep::kInverseLifted + place) = pack_f16(z[nt][0], z[nt][1]);
        at<uint32_t>(Prep::kInverseLifted + place + 640) = pack_f16(z[nt][2], z[nt][3]);
      }
    }
  }

  // W^T, 32 key channels a warp, stored as the scan's B fragments.
  template <bool kHalf>
  __device__ __forceinline__ void update_factor() {
    const uint8_t* const t =
        shared + (kHalf ? Prep::kInverse : Prep::kInverseLifted) + ((l & 7) + 8 * (l >> 4)) * 80 + ((l >> 3) & 1) * 16;
    uint32_t t00[4], t10[4], t11[4];  // B fragments, tokens 0-7 and 8-15 of a block
    load_matrices(t00, t), load_matrices(t10, t + 32), load_matrices(t11, t + 16 * 80 + 32);
    const int c2 = 2 * (l & 3);
    float beta[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 x = at<float2>(Prep::kBeta + (8 * j + c2) * 4);
      beta[j][0] = x.x, beta[j][1] = x.y;
      if constexpr (!kHalf) {
        const int2 n = at<int2>(Prep::kUpdateExponent + (8 * j + c2) * 4);
        beta[j][0] *= exponent_to_float(n.x), beta[j][1] *= exponent_to_float(n.y);
      }
    }
    // Lane l addresses row l % 8 of matrix l / 8: tokens 0-7 or 8-15 (bit 4), unit 0 or 1 (bit 3).
    const int token = (l & 7) + 8 * (l >> 4);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int pair = 2 * w + m;  // of 8-key tiles
      const uint8_t* const keys =
          shared + Prep::kUpdateKeys + token * 256 + (((2 * pair + ((l >> 3) & 1)) ^ (l & 7)) << 4);
      uint32_t a0[4], a1[4];
      load_matrices_transposed(a0, keys), load_matrices_transposed(a1, keys + 16 * 256);
      float d[4][4] = {};
      mma<true>(d[0], a0, t00[0], t00[1]), mma<true>(d[1], a0, t00[2], t00[3]);
      mma<true>(d[0], a1, t10[0], t10[1]), mma<true>(d[1], a1, t10[2], t10[3]);
      mma<true>(d[2], a1, t11[0], t11[1]), mma<true>(d[3], a1, t11[2], t11[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) d[j][e] *= beta[j][e & 1];
#pragma unroll
      for (int u = 0; u < 2; ++u)
        *reinterpret_cast<uint4*>(slot + Slot::kUpdate + (u * 8 + pair) * 512 + l * 16) =
            make_uint4(pack<kHalf>(d[2 * u][0], d[2 * u][1]), pack<kHalf>(d[2 * u + 1][0], d[2 * u + 1][1]),
                       pack<kHalf>(d[2 * u][2], d[2 * u][3]), pack<kHalf>(d[2 * u + 1][2], d[2 * u + 1][3]));
    }
  }

  // M' rows 0-15 by warp 0 (b = M00), rows 16-31 by warp 2 (a = M10, b = M11).
  __device__ __forceinline__ void mix_factor(bool exact, const float (&a)[2][4], const float (&b)[2][4]) {
    const int c2 = 2 * (l & 3);
    const auto operand = [](uint32_t(&x)[4], const float(&m)[2][4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack_f16(m[i >> 1][(i & 1) * 2], m[i >> 1][(i & 1) * 2 + 1]);
    };
    const uint8_t* const t = shared + Prep::kInverse + ((l & 7) + 8 * (l >> 4)) * 80 + ((l >> 3) & 1) * 16;
    uint32_t diagonal[4], off[4], f[4];
    float y[2][4] = {}, z[2][4] = {};
    if (exact)
      load_matrices(diagonal, shared + Prep::kMixExact + (w >> 1) * 768 + (l & 15) * 48 + (l >> 4) * 16);
    else
      operand(diagonal, b);
    load_matrices(f, t);
    if (w == 0) {
      mma<true>(y[0], diagonal, f[0], f[1]), mma<true>(y[1], diagonal, f[2], f[3]);
    } else {
      operand(off, a);
      mma<true>(y[0], off, f[0], f[1]), mma<true>(y[1], off, f[2], f[3]);
      load_matrices(f, t + 32);
      mma<true>(y[0], diagonal, f[0], f[1]), mma<true>(y[1], diagonal, f[2], f[3]);
      load_matrices(f, t + 16 * 80 + 32);
      mma<true>(z[0], diagonal, f[0], f[1]), mma<true>(z[1], diagonal, f[2], f[3]);
    }
    // C fragments of M' rows i are B fragments of M'^T columns i.
    const auto store = [&](float(&d)[2][4], int block, int first_token) {
#pragma unroll
      for (int nt = 0; nt < 2; ++nt) {
        const float2 x = at<float2>(Prep::kBeta + (first_token + nt * 8 + c2) * 4);
        d[nt][0] *= x.x, d[nt][1] *= x.y, d[nt][2] *= x.x, d[nt][3] *= x.y;
      }
      *reinterpret_cast<uint4*>(slot + Slot::kMix + block * 512 + l * 16) =
          make_uint4(pack_f16(d[0][0], d[0][1]), pack_f16(d[1][0], d[1][1]), pack_f16(d[0][2], d[0][3]),
                     pack_f16(d[1][2], d[1][3]));
    };
    store(y, w == 0 ? 0 : 1, 0);
    if (w == 2) store(z, 2, 16);
  }
};

}  // namespace kadence::ops::cuda::sm80
