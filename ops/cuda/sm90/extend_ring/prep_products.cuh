// Second half of preparation: from the anchored tiles to L, M, T = (I + L)^-1 and the slot's W and M'.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/common/mma.cuh"
#include "ops/cuda/common/wgmma.cuh"
#include "ops/cuda/sm90/extend_ring/prep_tiles.cuh"

namespace kadence::ops::cuda::sm90::extend {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

// One warpgroup's part of a chunk after its tiles are complete. Warp w holds rows 16 w .. 16 w + 15 of [-L; M], that is
// warps 0 and 1 the two row blocks of -L, warps 2 and 3 those of M.
inline constexpr int kTileBarrier = 4;  // from a warpgroup's barrier to its other one
struct ChunkProducts {
  const uint32_t base, beta;  // shared memory of the warpgroup; fp32[32] of this turn
  const int w, l, barrier;

  // `exact`: the diagonal blocks lie in shared memory already.
  // after_products runs once the tile of keys and queries is no longer read, by warp 2.
  template <bool kExact, class AfterProducts>
  __device__ __forceinline__ void run(bool exact, AfterProducts after_products) const {
    const int lg = l >> 2, tg = l & 3;
    float acc[16];
    products(acc);
    if (w == 2) {  // it has the least to do until the next barrier
      named_barrier_sync(barrier + kTileBarrier, 128);
      after_products();
    } else {
      named_barrier_arrive(barrier + kTileBarrier, 128);
    }
    uint32_t mix[2][4];  // M as A fragments: columns 0-15, 16-31
    if (w < 2) {
      const float b0 = ld_shared(beta + (w * 16 + lg) * 4), b1 = ld_shared(beta + (w * 16 + lg + 8) * 4);
      if (!(kExact && exact)) {
        const uint32_t at = base + Prep::kLower + w * 1024 + lower_place(2 * tg, lg);
#pragma unroll
        for (int i = 0; i < 8; ++i) {  // by columns; strictly lower by select, since an anchored product may be inf
          const int nt = i >> 2, half = (i >> 1) & 1, e = i & 1;
          const float x = w == 0 ? acc[i] : acc[8 + i];
          st_shared((at ^ (half * 32)) + nt * 512 + e * 64,
                    nt * 8 + 2 * tg + e < lg + 8 * half ? x * (half ? b1 : b0) : 0.0f);
        }
      }
      uint32_t corner[4];  // L10, turned
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float b = i & 1 ? b1 : b0;
        corner[i] = transpose_8x8(pack_f16(acc[2 * i] * b, acc[2 * i + 1] * b));
      }
      __syncwarp();
      solve();
      if (w == 1) {
        __syncwarp();
        corner_product(corner);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int nt = i >> 2, half = (i >> 1) & 1, e = i & 1;
        if (nt * 8 + 2 * tg + e > lg + 8 * half) {
          if (w == 2)
            acc[i] = 0.0f;
          else
            acc[8 + i] = 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) mix[i >> 2][i & 3] = pack_f16(acc[2 * i], acc[2 * i + 1]);
      if (kExact && exact) {
        uint32_t diagonal[4];
        ldmatrix_x4(diagonal, base + Prep::kMixExact + (w & 1) * 768 + (l & 15) * 48 + (l >> 4) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) (w == 2 ? mix[0][i] : mix[1][i]) = diagonal[i];
      }
    }
    named_barrier_sync(barrier, 128);
    finish(mix);
  }

 private:
  // [-L; M] of all 32 tokens: 64 rows of the anchored tile against 32 rows of the inverse keys.
  __device__ __forceinline__ void products(float (&acc)[16]) const {
    const uint64_t a = wgmma_descriptor(base + Prep::kAnchored, 0, 1024, Swizzle::k128B);
    const uint64_t b = wgmma_descriptor(base + Prep::kInverseKeys, 0, 1024, Swizzle::k128B);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const int half = s >> 2, at = (s & 3) * 32;
      wgmma_m64n32k16_shared(acc, a + (half * 8192 + at) / 16, b + (half * 4096 + at) / 16, s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(acc);
  }

  // This warp's diagonal block of T by fp32 substitution, lane j the column j (both halves of the warp alike).
  __device__ __forceinline__ void solve() const {
    const int j = l & 15;
    const uint32_t lower = base + Prep::kLower + w * 1024;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
    for (int s = 0; s < 15; ++s) {
#pragma unroll
      for (int b = (s + 1) / 4; b < 4; ++b) {
        const float4 v = ld_shared_v4(lower + lower_place(s, b * 4));
        const float vv[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (4 * b + e > s) x[4 * b + e] = fmaf(vv[e], x[s], x[4 * b + e]);
      }
    }
    uint32_t t[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) t[i] = pack_f16(x[2 * i], x[2 * i + 1]);
    if (l < 16) {
      const uint32_t row = base + Prep::kInverse + w * 768 + l * 48;  // row = column of T
      st_shared_v4(row, t[0], t[1], t[2], t[3]);
      st_shared_v4(row + 16, t[4], t[5], t[6], t[7]);
    }
  }

  // -T11 L10, kept as the B fragments of its transpose. `corner`: -L10 as B fragments.
  __device__ __forceinline__ void corner_product(const uint32_t (&corner)[4]) const {
    uint32_t a[4];
    ldmatrix_x4_trans(a, base + Prep::kInverse + 768 + ((l & 7) + 8 * (l >> 4)) * 48 + ((l >> 3) & 1) * 16);
    float y[2][4] = {};
    mma_f16(y[0], a, corner[0], corner[1]), mma_f16(y[1], a, corner[2], corner[3]);
    st_shared_v4(base + Prep::kCorner + l * 16, pack_f16(y[0][0], y[0][1]), pack_f16(y[1][0], y[1][1]),
                 pack_f16(y[0][2], y[0][3]), pack_f16(y[1][2], y[1][3]));
  }

  // W = (T diag(beta))^T kr, 32 key channels a warp, and M' = M T diag(beta) by warps 2 and 3.
  __device__ __forceinline__ void finish(const uint32_t (&mix)[2][4]) const {
    const int lg = l >> 2, tg = l & 3;
    const uint32_t inverse = base + Prep::kInverse + (l & 15) * 48 + (l >> 4) * 16;
    // T^T as A fragments: the same registers are B fragments of T.
    uint32_t t00[4], t01[4], t11[4];
    ldmatrix_x4(t00, inverse), ldmatrix_x4(t11, inverse + 768);
    {
      const uint4 y = ld_shared_v4u(base + Prep::kCorner + l * 16);
      float z[2][4] = {};
      mma_f16(z[0], t00, y.x, y.y), mma_f16(z[1], t00, y.z, y.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) t01[i] = pack_f16(z[i >> 1][(i & 1) * 2], z[i >> 1][(i & 1) * 2 + 1]);
    }
    const float b0 = ld_shared(beta + lg * 4), b1 = ld_shared(beta + lg * 4 + 32), b2 = ld_shared(beta + lg * 4 + 64),
                b3 = ld_shared(beta + lg * 4 + 96);
    const uint32_t place = base + (w >> 1) * 4096 + (l & 15) * 128 + ((((w & 1) * 4 + (l >> 4)) ^ (l & 7)) << 4);
#pragma unroll
    for (int np = 0; np < 2; ++np) {
      const uint32_t at = place ^ (np * 32);
      uint32_t k0[4], k1[4];
      ldmatrix_x4_trans(k0, at + Prep::kUpdateKeys), ldmatrix_x4_trans(k1, at + Prep::kUpdateKeys + 2048);
      float upper[2][4] = {}, lower[2][4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        mma_f16(upper[h], t00, k0[2 * h], k0[2 * h + 1]);
        mma_f16(lower[h], t11, k1[2 * h], k1[2 * h + 1]);
        mma_f16(upper[h], t01, k1[2 * h], k1[2 * h + 1]);
      }
      uint32_t u[4], v[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        u[2 * h] = pack_bf16(upper[h][0] * b0, upper[h][1] * b0),
              u[2 * h + 1] = pack_bf16(upper[h][2] * b1, upper[h][3] * b1);
        v[2 * h] = pack_bf16(lower[h][0] * b2, lower[h][1] * b2),
              v[2 * h + 1] = pack_bf16(lower[h][2] * b3, lower[h][3] * b3);
      }
      stmatrix_x4(at + Slot::kUpdate, u), stmatrix_x4(at + Slot::kUpdate + 2048, v);
    }
    if (w < 2) return;
    const int r0 = w == 2 ? 0 : 16;
    float y[2][4] = {}, z[2][4] = {};
    mma_f16(y[0], mix[0], t00[0], t00[2]), mma_f16(y[1], mix[0], t00[1], t00[3]);
    if (w == 3) {
      mma_f16(z[0], mix[1], t11[0], t11[2]), mma_f16(z[1], mix[1], t11[1], t11[3]);
      mma_f16(y[0], mix[1], t01[0], t01[2]), mma_f16(y[1], mix[1], t01[1], t01[3]);
    }
    const auto store = [&](const float(&m)[2][4], int first) {
      uint32_t x[4];
#pragma unroll
      for (int nt = 0; nt < 2; ++nt) {
        const float2 b = ld_shared_v2(beta + (first + nt * 8 + 2 * tg) * 4);
        x[2 * nt] = pack_bf16(m[nt][0] * b.x, m[nt][1] * b.y),
              x[2 * nt + 1] = pack_bf16(m[nt][2] * b.x, m[nt][3] * b.y);
      }
      const int r = r0 + (l & 15);
      stmatrix_x4(base + Slot::kMix + r * 64 + ((((first >> 3) + (l >> 4)) ^ (r >> 1)) & 3) * 16, x);
    };
    store(y, 0);
    store(z, 16);  // zeros above the diagonal
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
