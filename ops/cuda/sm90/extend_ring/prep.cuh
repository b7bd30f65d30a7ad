// Preparation: turns 32 tokens of one head into a factor slot. 128 threads; warp w owns tokens 8 w .. 8 w + 7, lane l
// owns channels 4 l .. 4 l + 3, until the tiles are complete. Symbols and the algebra are in README.md.
#pragma once

#include "ops/cuda/common/async.cuh"
#include "ops/cuda/sm90/extend_ring/prep_exact.cuh"
#include "ops/cuda/sm90/extend_ring/prep_load.cuh"
#include "ops/cuda/sm90/extend_ring/prep_products.cuh"

namespace kadence::ops::cuda::sm90::extend {

// A chunk's half may be anchored at its end while no channel decays below 2^-kAnchorLimit within it.
inline constexpr float kAnchorLimit = 116.0f;

// The chunk of one preparing warpgroup. `base` is its shared memory, `barrier` its named barrier.
template <KdaGate kGate, bool kExact, bool kDecayF32>
struct ChunkPrep {
  const RingParams& p;
  const uint32_t base;
  const int w;
  int l;
  const int barrier;

  __device__ ChunkPrep(const RingParams& params, uint32_t shared, int thread, int bar)
      : p(params),
        base(__shfl_sync(~0u, shared, 0)),  // in uniform registers
        w(__shfl_sync(~0u, thread >> 5, 0)),
        l(thread & 31),
        barrier(__shfl_sync(~0u, bar, 0)) {}

  __device__ __forceinline__ void sync() const { named_barrier_sync(barrier, 128); }

  // All of it but the hand-over. before_writes runs before the slot image is overwritten, after_factors once `raw` is
  // consumed, after_products once the tile of keys and queries is free for the next chunk's; the latter by one warp,
  // the others by all threads. `keys`: the barrier that counts the tile's arrival.
  template <class BeforeWrites, class AfterFactors, class AfterProducts>
  __device__ __forceinline__ void run(const RawChunk<kDecayF32>& raw, int count, int turn, uint32_t keys,
                                      BeforeWrites before_writes, AfterFactors after_factors,
                                      AfterProducts after_products) const {
    const uint32_t beta_place = base + Prep::kBeta + (turn & 1) * 128;
    if (w == 0) {
      const float x = __uint_as_float(p.beta_fp32 ? raw.beta : raw.beta << 16);
      const float beta = p.beta_given ? x : rcp_approx(1.0f + exp2_approx(-kLog2E * x));
      st_shared(beta_place + l * 4, l >= count ? 0.0f : p.beta_doubled ? 2.0f * beta : beta);
    }
    float g[8][4];  // log2 decay; cumulated over this warp's tokens unless the exact path may need single tokens
    float total[4] = {0, 0, 0, 0};
    const GateFunction<kGate> gate(raw, p);
    const auto decays = [&](int first, int last) {
#pragma unroll
      for (int i = first; i < last; ++i) {
        const float4 x4 = raw.decay(i);
        const float x[4] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float step = gate(x[c], c);
          total[c] += step;
          g[i][c] = kExact ? step : total[c];
        }
      }
    };
    decays(0, 4);
    mbarrier_wait(keys, turn & 1);
    if (count < kChunk) clear_tail(count);
    row_norms();  // its products and the other decays hide one another's latency
    decays(4, 8);
    before_writes();
    st_shared_v4(base + Prep::kGroupSums + w * 512 + l * 16, make_float4(total[0], total[1], total[2], total[3]));
    sync();
    bool exact = false;
    {
      float before[4], first[4], second[4];  // sums of the tokens before this warp's, of tokens 0-15, of 16-31
      {
        const uint32_t at = base + Prep::kGroupSums + l * 16;
        const float4 s0 = ld_shared_v4(at), s1 = ld_shared_v4(at + 512), s2 = ld_shared_v4(at + 1024),
                     s3 = ld_shared_v4(at + 1536);
        const float a[4][4] = {
            {s0.x, s0.y, s0.z, s0.w}, {s1.x, s1.y, s1.z, s1.w}, {s2.x, s2.y, s2.z, s2.w}, {s3.x, s3.y, s3.z, s3.w}};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          first[c] = a[0][c] + a[1][c], second[c] = a[2][c] + a[3][c];
          before[c] = w == 0 ? 0.0f : w == 1 ? a[0][c] : w == 2 ? first[c] : first[c] + a[2][c];
        }
      }
      if constexpr (kExact) {
        const float lowest = fminf(fminf(fminf(first[0], first[1]), fminf(first[2], first[3])),
                                   fminf(fminf(second[0], second[1]), fminf(second[2], second[3])));
        exact = __any_sync(~0u, !(lowest >= -kAnchorLimit));  // the same in all four warps: each sees all channels
      }
      if (w == 0)
        st_shared_v4(base + Slot::kDecay + l * 16,
                     make_float4(exp2_approx(first[0] + second[0]), exp2_approx(first[1] + second[1]),
                                 exp2_approx(first[2] + second[2]), exp2_approx(first[3] + second[3])));
      if (kExact && exact) {
        write_exact_table(g);
        exact_path(base, beta_place, w, l, barrier);
      } else {
        anchored_factors(g, before, first, second);
      }
    }
    fence_proxy_async_shared();  // the tiles, before the tensor cores read them; loads that follow need not wait for it
    after_factors();
    sync();
    int lane = l;
    asm volatile("" : "+r"(lane));  // or the places of everything below take registers the whole time
    ChunkProducts{base, beta_place, w, lane, barrier}.template run<kExact>(exact, after_products);
  }

 private:
  // Tokens past the row's end: whatever lay there contributes nothing.
  __device__ __forceinline__ void clear_tail(int count) const {
#pragma unroll 1
    for (int r = max(count, w * 8); r < w * 8 + 8; ++r) {
      const uint32_t at = place_in_tile(base + Prep::kAnchored, 8192, r, l);
      st_shared_v2(at, 0, 0), st_shared_v2(at + 4096, 0, 0);
    }
    __syncwarp();
  }

  // -1/|k| and scale/|q| of this warp's rows to kNorms: diagonals of the rows' products with themselves.
  __device__ __forceinline__ void row_norms() const {
    const int lg = l >> 2;
    // Rows 0-7 of the A fragments are keys, 8-15 queries; two sums each for a shorter chain.
    const uint32_t at = base + Prep::kAnchored + (w * 8 + (l & 7)) * 128 + ((l >> 3) & 1) * 4096;
    const int piece = (l >> 4) ^ (l & 7);
    float k[2][4] = {}, q[2][4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      uint32_t x[4];
      ldmatrix_x4(x, at + (s >> 2) * 8192 + ((((s & 3) * 2) ^ piece) << 4));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma_bf16_k8(k[i], x[2 * i], x[2 * i + 1], x[2 * i]);
        mma_bf16_k8(q[i], x[2 * i], x[2 * i + 1], x[2 * i + 1]);
      }
    }
    const float kk = lg & 1 ? k[0][1] + k[1][1] : k[0][0] + k[1][0];
    const float qq = lg & 1 ? q[0][3] + q[1][3] : q[0][2] + q[1][2];
    const float nk = p.l2norm ? -rsqrt_approx(kk + kL2NormEps) : -1.0f;
    const float nq = p.l2norm ? p.scale * rsqrt_approx(qq + kL2NormEps) : p.scale;
    if ((l & 3) == lg >> 1)
      st_shared_v2(base + Prep::kNorms + (w * 8 + lg) * 8, __float_as_uint(nk), __float_as_uint(nq));
  }

  // All tiles from exponents of both signs around one anchor, a power of two for each channel near the decay of the
  // chunk's first half: scaling by it is exact in bf16.
  __device__ __forceinline__ void anchored_factors(const float (&g)[8][4], const float (&before)[4],
                                                   const float (&first)[4], const float (&second)[4]) const {
    float run[4], end[4];
    uint32_t bits[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float shifted = first[c] + 12582912.0f, anchor = shifted - 12582912.0f;  // 1.5 * 2^23: round to integer
      bits[c] = (__float_as_uint(shifted) << 7) + (127u << 7);                       // low half: 2^anchor in bf16
      run[c] = before[c] - anchor, end[c] = exp2_approx(first[c] - anchor + second[c]);
    }
    const uint32_t scale[2] = {__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410)};
    uint32_t wide = place_in_tile(base, 8192, w * 8, l), narrow = place_in_tile(base, 4096, w * 8, l);
    asm volatile("" : "+r"(wide), "+r"(narrow));  // or the places of all rows take registers the whole time
    const auto row = [](uint32_t place, int i) {  // row i of eight: its 16-byte pieces are swapped by i
      return (place ^ (i << 4)) + i * 128;
    };
    // Keys and queries are read two rows ahead of the stores, which the compiler cannot tell apart.
    uint2 k_next[2], q_next[2];
    const auto fetch = [&](int i) {
      k_next[i & 1] = ld_shared_v2u(row(wide, i) + Prep::kAnchored);
      q_next[i & 1] = ld_shared_v2u(row(wide, i) + Prep::kAnchored + 4096);
    };
    fetch(0), fetch(1);
    float4 norms;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i % 2 == 0) norms = ld_shared_v4(base + Prep::kNorms + (w * 8 + i) * 8);
      const float rk = i % 2 ? norms.z : norms.x, rq = i % 2 ? norms.w : norms.y;
      const uint2 kx = k_next[i & 1], qx = q_next[i & 1];
      if (i < 6) fetch(i + 2);
      const float k[4] = {bf16_lo(kx.x), bf16_hi(kx.x), bf16_lo(kx.y), bf16_hi(kx.y)};
      const float q[4] = {bf16_lo(qx.x), bf16_hi(qx.x), bf16_lo(qx.y), bf16_hi(qx.y)};
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
      const uint32_t at = row(wide, i), at_narrow = row(narrow, i);
      const uint32_t kp0 = pack_bf16(kp[0], kp[1]), kp1 = pack_bf16(kp[2], kp[3]), qp0 = pack_bf16(qp[0], qp[1]),
                     qp1 = pack_bf16(qp[2], qp[3]);
      st_shared_v2(at + Prep::kAnchored, kp0, kp1);
      st_shared_v2(at + Prep::kAnchored + 4096, qp0, qp1);
      st_shared_v2(at_narrow + Prep::kInverseKeys, pack_bf16(km[0], km[1]), pack_bf16(km[2], km[3]));
      st_shared_v2(at + Slot::kKeyQuery, mul_bf16x2(kp0, scale[0]), mul_bf16x2(kp1, scale[1]));
      st_shared_v2(at + Slot::kKeyQuery + 4096, mul_bf16x2(qp0, scale[0]), mul_bf16x2(qp1, scale[1]));
      st_shared_v2(at_narrow + Prep::kUpdateKeys, pack_f16(km[0] * end[0], km[1] * end[1]),
                   pack_f16(km[2] * end[2], km[3] * end[3]));
    }
  }

  // What the exact path reads of this thread's goes to shared memory, so that it does not burden the other path.
  __device__ __forceinline__ void write_exact_table(const float (&g)[8][4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      st_shared_v4(base + Prep::kExactDecay + (w * 8 + i) * 512 + l * 16,
                   make_float4(g[i][0], g[i][1], g[i][2], g[i][3]));
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
