// Device code of the one-token recurrence, shared by step, verify and commit and by the portable extend.
//
// A warp works on GROUPS = 32 / LANES rows (value channels) of the state at once; LANES = K / 16 lanes share a row and
// each holds 16 of its K channels. The channels are dealt in chunks of W (16 bytes where in and out types allow), so
// that each load of the warp covers whole sectors. Every sum over K has one fixed order that depends on K and W
// alone: not on the rows per warp, not on the kernel. That is what makes verify and commit agree with step to the bit.
// For the same reason multiplications and additions are spelled with their rounding, so that no compiler fuses them
// in one kernel and not in another.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/common/element.cuh"
#include "ops/cuda/common/status.cuh"
#include "ops/kda.h"

namespace kadence::ops::cuda {

inline constexpr unsigned kFullMask = 0xffffffffu;

// --- element types ---------------------------------------------------------------------------------------------------

// One element of a run-time type, loaded early and converted late: a load that is converted at once makes everything
// behind it wait for memory.
struct RawScalar {
  uint32_t w = 0;
  __device__ __forceinline__ void load(const void* base, int64_t i, DType t) {
    if (t == DType::kF32) {
      w = static_cast<const uint32_t*>(base)[i];
    } else {
      w = static_cast<const uint16_t*>(base)[i];
    }
  }
  __device__ __forceinline__ float get(DType t) const {
    if (t == DType::kF32) return __uint_as_float(w);
    if (t == DType::kBF16) return __uint_as_float(w << 16);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(w)));
  }
  __device__ __forceinline__ void store(void* base, int64_t i, DType t) const {
    if (t == DType::kF32) {
      static_cast<uint32_t*>(base)[i] = w;
    } else {
      static_cast<uint16_t*>(base)[i] = static_cast<uint16_t>(w);
    }
  }
};
__device__ __forceinline__ void store_scalar(void* base, int64_t i, DType t, float x) {
  if (t == DType::kF32) {
    static_cast<float*>(base)[i] = x;
  } else if (t == DType::kBF16) {
    static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16_rn(x);
  } else {
    static_cast<__half*>(base)[i] = __float2half_rn(x);
  }
}

// Four at a time, the first at a multiple of four elements.
__device__ __forceinline__ void store_four(void* base, int64_t i, DType t, const float (&x)[4]) {
  if (t == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(base) + i) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
    uint2 w;
    if (t == DType::kBF16) {
      w = make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]));
    } else {
      w = make_uint2(ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]));
    }
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(base) + i) = w;
  }
}

template <class E>
__device__ __forceinline__ uint32_t pack_two(float x, float y) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) return ptx::pack_bf16(x, y);
  return ptx::pack_f16(x, y);
}
// x and y as E holds them.
template <class E>
__device__ __forceinline__ void round_two(float& x, float& y) {
  const uint32_t w = pack_two<E>(x, y);
  if constexpr (std::is_same_v<E, __nv_bfloat16>) {
    x = ptx::bf16_lo(w), y = ptx::bf16_hi(w);
  } else {
    const __half2 h = *reinterpret_cast<const __half2*>(&w);
    x = __low2float(h), y = __high2float(h);
  }
}

// C consecutive elements of a run-time type, likewise.
template <int C>
struct RawChannels {
  uint32_t w[C];
  __device__ __forceinline__ void load(const void* base, int64_t i, DType t) {
    if (t == DType::kF32) {
      load_words<C>(static_cast<const float*>(base) + i);
    } else {
      load_words<C / 2>(static_cast<const uint16_t*>(base) + i);
    }
  }
  __device__ __forceinline__ void convert(DType t, float (&x)[C]) const {
    if (t == DType::kF32) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[c] = __uint_as_float(w[c]);
    } else if (t == DType::kBF16) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[c] = c % 2 ? ptx::bf16_hi(w[c / 2]) : ptx::bf16_lo(w[c / 2]);
    } else {
#pragma unroll
      for (int c = 0; c < C; ++c)
        x[c] = __half2float(__ushort_as_half(static_cast<uint16_t>(c % 2 ? (w[c / 2] >> 16) : (w[c / 2] & 0xffffu))));
    }
  }

 private:
  template <int WORDS>
  __device__ __forceinline__ void load_words(const void* p) {
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
      for (int c = 0; c < WORDS; c += 4) {
        const uint4 v = reinterpret_cast<const uint4*>(p)[c / 4];
        w[c] = v.x, w[c + 1] = v.y, w[c + 2] = v.z, w[c + 3] = v.w;
      }
    } else if constexpr (WORDS == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      w[0] = v.x, w[1] = v.y;
    } else {
      static_assert(WORDS == 1);
      w[0] = *reinterpret_cast<const uint32_t*>(p);
    }
  }
};

// --- the state slice of one lane -------------------------------------------------------------------------------------

// Chunk width for a pair of state types: 16-byte accesses on both sides if the sizes agree, 8 and 16 otherwise.
template <class EIn, class EOut>
inline constexpr int kChunkWidth = sizeof(EIn) == 2 && sizeof(EOut) == 2 ? 8 : 4;

template <int K>
struct Lanes {
  static constexpr int kLanes = K / 16;        // lanes of a row
  static constexpr int kGroups = 32 / kLanes;  // rows that a warp touches at once
  static constexpr int kPerLane = K / 32;      // channels per lane where a whole warp holds one vector of K
};

template <class E, int W, int LANES>
struct Slice {
  static constexpr int kChunks = 16 / W;
  using Word = std::conditional_t<W * sizeof(E) == 16, uint4, uint2>;
  static_assert(W * sizeof(E) == 16 || W * sizeof(E) == 8);
  Word w[kChunks];

  __device__ __forceinline__ void load(const E* row, int lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) w[c] = *reinterpret_cast<const Word*>(row + lane * W + c * LANES * W);
  }
  __device__ __forceinline__ void store(E* row, int lane) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) *reinterpret_cast<Word*>(row + lane * W + c * LANES * W) = w[c];
  }
  __device__ __forceinline__ void unpack(float (&s)[16]) const {
#pragma unroll
    for (int e = 0; e < 16; ++e) s[e] = to_float(reinterpret_cast<const E*>(&w[e / W])[e % W]);
  }
  // Two conversions in one instruction where the type has 16 bits.
  __device__ __forceinline__ void pack(const float (&s)[16]) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(w);
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int e = 0; e < 16; ++e) words[e] = __float_as_uint(s[e]);
    } else {
#pragma unroll
      for (int e = 0; e < 16; e += 2) words[e / 2] = pack_two<E>(s[e], s[e + 1]);
    }
  }
};

// Values 4 * i .. 4 * i + 3 of the 16 that `lane` holds of a vector of K floats in shared memory, in Slice's order.
template <int W, int LANES>
__device__ __forceinline__ float4 read_quad(const float* vec, int lane, int i) {
  return *reinterpret_cast<const float4*>(vec + lane * W + (4 * i / W) * LANES * W + 4 * i % W);
}

template <int WIDTH>
__device__ __forceinline__ float reduce_lanes(float x) {
#pragma unroll
  for (int d = 1; d < WIDTH; d *= 2) x = __fadd_rn(x, __shfl_xor_sync(kFullMask, x, d));
  return x;
}

// --- one token's factors ---------------------------------------------------------------------------------------------

struct TokenInput {
  const void* data = nullptr;
  int64_t pitch = 0;
  DType type = DType::kF32;
};

// What turns raw inputs into k, q, decay and beta.
struct GateParams {
  const float* A_log = nullptr;
  const float* dt_bias = nullptr;
  float lower_bound = 0, scale = 0;
  KdaGate gate = KdaGate::kBounded;
  bool beta_logits = true, beta_doubled = false, l2norm = true;
};

// ex2 and rcp as the hardware has them, relative error about 2^-22: below what one fp32 rounding of the state costs.
__device__ __forceinline__ float exp_f32(float x) { return ptx::exp2_approx(__fmul_rn(x, 1.4426950408889634f)); }
__device__ __forceinline__ float sigmoid_f32(float x) { return ptx::rcp_approx(__fadd_rn(1.0f, exp_f32(-x))); }
__device__ __forceinline__ float softplus_f32(float x) {
  if (x >= kSoftplusThreshold) return x;
  const float e = exp_f32(x);
  if (e < 0x1p-6f)  // log1p by its series: 1 + e would lose e's low bits
    return __fmul_rn(e, __fmaf_rn(e, __fmaf_rn(e, __fmaf_rn(e, -0.25f, 1.0f / 3), -0.5f), 1.0f));
  return __fmul_rn(ptx::log2_approx(__fadd_rn(1.0f, e)), 0.6931471805599453f);
}

// exp(g) for one channel; a = exp(A_log).
__device__ __forceinline__ float gate_decay(const GateParams& p, float x, float a, float bias) {
  if (p.gate == KdaGate::kGivenLogDecay) return exp_f32(x);
  x = __fadd_rn(x, bias);
  if (p.gate == KdaGate::kBounded) return exp_f32(__fmul_rn(p.lower_bound, sigmoid_f32(__fmul_rn(a, x))));
  return exp_f32(-__fmul_rn(a, softplus_f32(x)));
}

__device__ __forceinline__ float beta_value(const GateParams& p, float x) {
  if (p.beta_logits) x = sigmoid_f32(x);
  return p.beta_doubled ? __fmul_rn(2.0f, x) : x;
}

// x (C channels of each lane, a whole warp per vector) -> x * rsqrt(sum x^2 + eps) * scale.
template <int C>
__device__ __forceinline__ void normalise(const GateParams& p, float scale, float (&x)[C]) {
  float f = scale;
  if (p.l2norm) {
    float s = 0;
#pragma unroll
    for (int c = 0; c < C; ++c) s = __fmaf_rn(x[c], x[c], s);
    s = reduce_lanes<32>(s);
    f = __fmul_rn(rsqrtf(__fadd_rn(s, kL2NormEps)), scale);
  }
#pragma unroll
  for (int c = 0; c < C; ++c) x[c] = __fmul_rn(x[c], f);
}

// The same for k and q of a token at once, so that the exchanges of both sums overlap.
template <int C>
__device__ __forceinline__ void normalise_both(const GateParams& p, float (&k)[C], float (&q)[C]) {
  float fk = 1.0f, fq = p.scale;
  if (p.l2norm) {
    float sk = 0, sq = 0;
#pragma unroll
    for (int c = 0; c < C; ++c) sk = __fmaf_rn(k[c], k[c], sk), sq = __fmaf_rn(q[c], q[c], sq);
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
      const float ok = __shfl_xor_sync(kFullMask, sk, m), oq = __shfl_xor_sync(kFullMask, sq, m);
      sk = __fadd_rn(sk, ok), sq = __fadd_rn(sq, oq);
    }
    fk = __fmul_rn(rsqrtf(__fadd_rn(sk, kL2NormEps)), 1.0f);
    fq = __fmul_rn(rsqrtf(__fadd_rn(sq, kL2NormEps)), p.scale);
  }
#pragma unroll
  for (int c = 0; c < C; ++c) k[c] = __fmul_rn(k[c], fk), q[c] = __fmul_rn(q[c], fq);
}

// The parameters of C channels' gates, loaded before they are needed.
template <int C>
struct GateChannels {
  float a_log = 0, bias[C] = {};
  __device__ __forceinline__ void load(const GateParams& p, int64_t hv, int K, int channel) {
    if (p.gate == KdaGate::kGivenLogDecay) return;
    if (p.A_log) a_log = p.A_log[hv];
    if (p.dt_bias) {
#pragma unroll
      for (int c = 0; c < C; ++c) bias[c] = p.dt_bias[hv * K + channel + c];
    }
  }
  // Gate inputs -> exp(g).
  __device__ __forceinline__ void apply(const GateParams& p, float (&x)[C]) const {
    const float a = exp_f32(a_log);
#pragma unroll
    for (int c = 0; c < C; ++c) x[c] = gate_decay(p, x[c], a, bias[c]);
  }
};

template <int C>
__device__ __forceinline__ void write_channels(float* dst, const float (&x)[C]) {
  if constexpr (C % 4 == 0) {
#pragma unroll
    for (int c = 0; c < C; c += 4)
      *reinterpret_cast<float4*>(dst + c) = make_float4(x[c], x[c + 1], x[c + 2], x[c + 3]);
  } else {
    static_assert(C == 2);
    *reinterpret_cast<float2*>(dst) = make_float2(x[0], x[1]);
  }
}

// --- the recurrence --------------------------------------------------------------------------------------------------

// k.q of a token from shared memory, in every lane of a row's group.
template <int W, int LANES>
__device__ __forceinline__ float dot_kq(const float* k, const float* q, int lane) {
  float s = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 a = read_quad<W, LANES>(k, lane, i), b = read_quad<W, LANES>(q, lane, i);
    s = __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, s))));
  }
  return reduce_lanes<LANES>(s);
}

__device__ __forceinline__ void decay_and_dot_one(float& s, float d, float k, float q, float& pk, float& pq) {
  s = __fmul_rn(s, d);
  pk = __fmaf_rn(s, k, pk);
  pq = __fmaf_rn(s, q, pq);
}
// s <- s * d, and this lane's part of (S k, S q), for ITS rows; d, k, q are vectors in shared memory, read four
// channels at a time to spare registers.
template <int W, int LANES, int ITS>
__device__ __forceinline__ void decay_and_dot(float (&s)[ITS][16], const float* sd, const float* sk, const float* sq,
                                              int lane, float (&pk)[ITS], float (&pq)[ITS]) {
#pragma unroll
  for (int it = 0; it < ITS; ++it) pk[it] = pq[it] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 d = read_quad<W, LANES>(sd, lane, i), k = read_quad<W, LANES>(sk, lane, i),
                 q = read_quad<W, LANES>(sq, lane, i);
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      decay_and_dot_one(s[it][4 * i], d.x, k.x, q.x, pk[it], pq[it]);
      decay_and_dot_one(s[it][4 * i + 1], d.y, k.y, q.y, pk[it], pq[it]);
      decay_and_dot_one(s[it][4 * i + 2], d.z, k.z, q.z, pk[it], pq[it]);
      decay_and_dot_one(s[it][4 * i + 3], d.w, k.w, q.w, pk[it], pq[it]);
    }
  }
}

// After the sums over a row's lanes each lane has S k of all ITS rows, and one lane of the row's group, the owner of
// iteration `it`, has S q of that row: the lane that also owns the row's output. A butterfly in which the lanes divide
// the 2 * ITS values between them takes fewer exchanges than one butterfly a value, and adds the same pairs whatever
// ITS is.
template <int ITS, int LANES>
struct RowSums {
  static constexpr int kBits = ITS == 4 ? 2 : ITS == 2 ? 1 : 0;
  static_assert(1 << kBits == ITS && 2 * ITS <= LANES);

  // Where a lane's value ends: bit 0 says S k or S q, the bits above it the iteration, highest first.
  __device__ __forceinline__ static int iteration(int lane) {
    return kBits == 2 ? (lane & 2) | (lane >> 2 & 1) : kBits == 1 ? lane >> 1 & 1 : 0;
  }
  __device__ __forceinline__ static bool owns(int lane) { return (lane & 1) && lane >> (1 + kBits) == 0; }
  __device__ __forceinline__ static constexpr int source(int it) {
    return kBits == 2 ? (it & 2) | (it & 1) << 2 : it << kBits;
  }

  // Each lane's share of the sums: S k (bit 0 of the lane clear) or S q of its iteration.
  __device__ __forceinline__ static float share(const float (&pk)[ITS], const float (&pq)[ITS], int lane) {
    float v[2 * ITS];
#pragma unroll
    for (int it = 0; it < ITS; ++it) v[it] = pk[it], v[ITS + it] = pq[it];
#pragma unroll
    for (int m = 1; m < LANES; m *= 2) {
      const int half = ITS / m;  // values a lane keeps after this exchange
      if (half >= 1) {
        const bool upper = lane & m;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
          v[i] = __fadd_rn(keep, __shfl_xor_sync(kFullMask, give, m));
        }
      } else {
        v[0] = __fadd_rn(v[0], __shfl_xor_sync(kFullMask, v[0], m));
      }
    }
    return v[0];
  }
  // pk becomes S k in every lane; the result is S q in the owners.
  __device__ __forceinline__ static float reduce(float (&pk)[ITS], const float (&pq)[ITS], int lane) {
    const float mine = share(pk, pq, lane);
#pragma unroll
    for (int it = 0; it < ITS; ++it) pk[it] = __shfl_sync(kFullMask, mine, source(it), LANES);
    return mine;
  }
  // x of this lane's iteration.
  __device__ __forceinline__ static float own(const float (&x)[ITS], int lane) {
    float y = x[0];
#pragma unroll
    for (int it = 1; it < ITS; ++it)
      if (iteration(lane) == it) y = x[it];
    return y;
  }
};

// A lane's ITS consecutive values of a vector over rows, in shared memory.
template <int ITS>
__device__ __forceinline__ void read_rows(const float* p, float (&x)[ITS]) {
  if constexpr (ITS == 4) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else if constexpr (ITS == 2) {
    const float2 v = *reinterpret_cast<const float2*>(p);
    x[0] = v.x, x[1] = v.y;
  } else {
    x[0] = p[0];
  }
}

__device__ __forceinline__ float delta(float beta, float v, float sk) { return __fmul_rn(beta, __fsub_rn(v, sk)); }
// Both products are taken on the decayed old state: S q = S_dec q + (k.q) u.
__device__ __forceinline__ float output(float sq, float kq, float u) { return __fmaf_rn(kq, u, sq); }
// s <- s + u k for ITS rows.
template <int W, int LANES, int ITS>
__device__ __forceinline__ void rank_one(float (&s)[ITS][16], const float (&u)[ITS], const float* sk, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 k = read_quad<W, LANES>(sk, lane, i);
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      s[it][4 * i] = __fmaf_rn(u[it], k.x, s[it][4 * i]);
      s[it][4 * i + 1] = __fmaf_rn(u[it], k.y, s[it][4 * i + 1]);
      s[it][4 * i + 2] = __fmaf_rn(u[it], k.z, s[it][4 * i + 2]);
      s[it][4 * i + 3] = __fmaf_rn(u[it], k.w, s[it][4 * i + 3]);
    }
  }
}
// A token again, its u known: s <- s * d + u k.
template <int W, int LANES, int ITS>
__device__ __forceinline__ void replay(float (&s)[ITS][16], const float* sd, const float (&u)[ITS], const float* sk,
                                       int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 d = read_quad<W, LANES>(sd, lane, i), k = read_quad<W, LANES>(sk, lane, i);
#pragma unroll
    for (int it = 0; it < ITS; ++it) {
      s[it][4 * i] = __fmaf_rn(u[it], k.x, __fmul_rn(s[it][4 * i], d.x));
      s[it][4 * i + 1] = __fmaf_rn(u[it], k.y, __fmul_rn(s[it][4 * i + 1], d.y));
      s[it][4 * i + 2] = __fmaf_rn(u[it], k.z, __fmul_rn(s[it][4 * i + 2], d.z));
      s[it][4 * i + 3] = __fmaf_rn(u[it], k.w, __fmul_rn(s[it][4 * i + 3], d.w));
    }
  }
}

// --- launches --------------------------------------------------------------------------------------------------------

// Programmatic dependent launch: the next kernel of the stream may be set up from here on. Nothing that an earlier
// kernel may still write is read before wait_for_previous().
__device__ __forceinline__ void let_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for `bytes` (a multiple of 16) to be in the L2 soon. Nothing waits for it.
__device__ __forceinline__ void prefetch_l2([[maybe_unused]] const void* p, [[maybe_unused]] int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}
// The CTA that starts about when this one ends, `ahead` CTAs on in launch order: its grid x and row. False if there is
// none (or ahead is 0). CTAs are launched in the order of x, then y.
__device__ __forceinline__ bool cta_ahead(int ahead, int rows, unsigned& x, int& row) {
  const unsigned linear = blockIdx.x + blockIdx.y * gridDim.x + static_cast<unsigned>(ahead);
  if (ahead == 0 || gridDim.z > 1 || linear >= gridDim.x * gridDim.y) return false;
  x = linear % gridDim.x, row = static_cast<int>(linear / gridDim.x);
  return row < rows;
}

__device__ __forceinline__ void report(int32_t* status, int64_t row, KdaRowStatus reason) {
  report_row(status, static_cast<int32_t>(row), static_cast<int32_t>(reason));
}

}  // namespace kadence::ops::cuda
