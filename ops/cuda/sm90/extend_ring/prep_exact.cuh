// Preparation of a chunk whose halves decay too far for anchored factors.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/common/mma.cuh"
#include "ops/cuda/sm90/extend_ring/prep_tiles.cuh"

namespace kadence::ops::cuda::sm90::extend {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

// Diagonal blocks of -L and M by ordered products of the tokens' decays, fp32, and all tiles but k 2^-p from sums with
// exponents <= 0 only: right for decays down to -inf. Nothing overflows, nothing is divided.
// Reads each token's log2 decay (kExactDecay), keys and queries as loaded, norms and the group sums.
static __device__ __noinline__ void exact_path(uint32_t base, uint32_t beta_place, int w, int l, int barrier) {
  float4 sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = ld_shared_v4(base + Prep::kGroupSums + i * 512 + l * 16);
  named_barrier_sync(barrier, 128);
  const auto row = [&](int r, float(&x)[4]) {  // of the tile of keys and queries
    const float2 v = ld_shared_v2(place_in_tile(base + Prep::kAnchored, 8192, r, l));
    const uint32_t a = __float_as_uint(v.x), b = __float_as_uint(v.y);
    x[0] = bf16_lo(a), x[1] = bf16_hi(a), x[2] = bf16_lo(b), x[3] = bf16_hi(b);
  };
  const auto decay_row = [&](int r) { return ld_shared_v4(base + Prep::kExactDecay + r * 512 + l * 16); };
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {  // four rows of each block a warp, short and long ones
    const int block = n >> 2, m = n & 3, i = m == 0 ? w : m == 1 ? 7 - w : m == 2 ? 8 + w : 15 - w, ri = block * 16 + i;
    float ki[4], qi[4], decay[4] = {1, 1, 1, 1}, low = 0, mix = 0;
    row(ri, ki), row(32 + ri, qi);
    // Row i walks back over j with the running product of the decays of j + 1 .. i.
#pragma unroll 1
    for (int j = i; j >= 0; --j) {
      float kj[4], a = 0, b = 0;
      row(block * 16 + j, kj);
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
      const float kj = -ld_shared(base + Prep::kNorms + (block * 16 + l) * 8);  // 1 / |k_j|
      const float2 own = ld_shared_v2(base + Prep::kNorms + ri * 8);
      const float beta = ld_shared(beta_place + ri * 4);
      st_shared(base + Prep::kLower + block * 1024 + lower_place(l, i), l < i ? low * kj * own.x * beta : 0.0f);
      const float m_ij = l <= i ? mix * kj * own.y : 0.0f;
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
    row(w * 8 + i, k[i]), row(32 + w * 8 + i, q[i]);
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
  // Rows that only the diagonal blocks would read are zero in the tiles: the products leave the corners alone.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = w * 8 + i;
    const float2 norm = ld_shared_v2(base + Prep::kNorms + r * 8);
    const uint32_t at = place_in_tile(base, 8192, r, l), narrow = place_in_tile(base, 4096, r, l);
    float kp[4], qp[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      run[c] += g[i][c];
      const float e = exp2_approx(run[c]);
      kp[c] = k[i][c] * norm.x * e, qp[c] = q[i][c] * norm.y * e;
    }
    if (w >= 2) {
      st_shared_v2(at + Prep::kAnchored, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
      st_shared_v2(at + Prep::kAnchored + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
      st_shared_v2(narrow + Prep::kInverseKeys, 0, 0);
#pragma unroll
      for (int c = 0; c < 4; ++c) kp[c] *= e_first[c], qp[c] *= e_first[c];
    } else {
      st_shared_v2(at + Prep::kAnchored, 0, 0), st_shared_v2(at + Prep::kAnchored + 4096, 0, 0);
    }
    st_shared_v2(at + Slot::kKeyQuery, pack_bf16(kp[0], kp[1]), pack_bf16(kp[2], kp[3]));
    st_shared_v2(at + Slot::kKeyQuery + 4096, pack_bf16(qp[0], qp[1]), pack_bf16(qp[2], qp[3]));
  }
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const int r = w * 8 + i;
    const float rk = -ld_shared(base + Prep::kNorms + r * 8);
    const uint32_t at = place_in_tile(base, 8192, r, l), narrow = place_in_tile(base, 4096, r, l);
    float kr[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kr[c] = k[i][c] * rk * exp2_approx(tail[c]);
      tail[c] += g[i][c];
    }
    if (w < 2) {
      st_shared_v2(narrow + Prep::kInverseKeys, pack_bf16(kr[0], kr[1]), pack_bf16(kr[2], kr[3]));
#pragma unroll
      for (int c = 0; c < 4; ++c) kr[c] *= e_second[c];
    }
    st_shared_v2(narrow + Prep::kUpdateKeys, pack_f16(kr[0], kr[1]), pack_f16(kr[2], kr[3]));
  }
}

}  // namespace kadence::ops::cuda::sm90::extend
