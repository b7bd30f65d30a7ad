// Recurrence: one warpgroup keeps 64 value rows x 128 keys of one head's state in fp32 accumulators while it walks a
// lane of rows. Symbols and the algebra are in README.md.
#pragma once

#include "ops/cuda/common/async.cuh"
#include "ops/cuda/common/element.cuh"
#include "ops/cuda/common/mma.cuh"
#include "ops/cuda/common/wgmma.cuh"
#include "ops/cuda/sm90/extend_ring/params.h"

namespace kadence::ops::cuda::sm90::extend {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

// Half a state (64 rows of 128) between accumulators and a pool slot. Element i, i + 1 of a thread are neighbours.
template <class T>
__device__ __forceinline__ void load_half(float (&s)[64], const T* p) {
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const float2 x = load_pair(p + 8 * ((i >> 1) & 1) * kDim + 8 * (i >> 2));
    s[i] = x.x, s[i + 1] = x.y;
  }
}
template <class T>
__device__ __forceinline__ void store_half(const float (&s)[64], T* p) {
#pragma unroll
  for (int i = 0; i < 64; i += 2) store_pair(p + 8 * ((i >> 1) & 1) * kDim + 8 * (i >> 2), s[i], s[i + 1]);
}

struct Scanner {
  const RingParams& p;
  const uint32_t shared, full, empty;  // stages; barriers
  const int w, l, place;               // warp of the warpgroup; lane; warpgroup of the CTA
  float s[64];
  int stage = 0, phase = 0;

  __device__ Scanner(const RingParams& params, uint32_t shared_base, int thread)
      : p(params),
        shared(shared_base),
        full(shared_base + kSharedBarriers),
        empty(full + kScanStages * 8),
        w((thread >> 5) & 3),
        l(thread & 31),
        place(thread >> 7) {}

  // Element offset of this thread's first element inside a slot.
  __device__ __forceinline__ int64_t slot_offset(const StatePool& pool, int slot, int head, int half) const {
    return slot * pool.pitch + (static_cast<int64_t>(head) * kDim + half * 64 + w * 16 + (l >> 2)) * kDim + 2 * (l & 3);
  }
  __device__ __forceinline__ void load_state(const StatePool& pool, int slot, int head, int half) {
    if (slot < 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = 0.0f;
      return;
    }
    const int64_t at = slot_offset(pool, slot, head, half);
    if (pool.dtype == static_cast<int>(DType::kF32))
      load_half(s, static_cast<const float*>(pool.base) + at);
    else if (pool.dtype == static_cast<int>(DType::kBF16))
      load_half(s, static_cast<const __nv_bfloat16*>(pool.base) + at);
    else
      load_half(s, static_cast<const __half*>(pool.base) + at);
  }
  __device__ __forceinline__ void store_state(const StatePool& pool, int slot, int head, int half) const {
    if (slot < 0 || slot >= pool.slots) return;
    const int64_t at = slot_offset(pool, slot, head, half);
    if (pool.dtype == static_cast<int>(DType::kF32))
      store_half(s, static_cast<float*>(pool.base) + at);
    else if (pool.dtype == static_cast<int>(DType::kBF16))
      store_half(s, static_cast<__nv_bfloat16*>(pool.base) + at);
    else
      store_half(s, static_cast<__half*>(pool.base) + at);
  }
  // A row without tokens: the state moves, unless source and destination are the same memory.
  __device__ __forceinline__ void copy_state(const RowInfo& row, int head, int half) {
    if (row.state_out < 0) return;
    const StatePool &in = p.state_in, &out = p.state_out;
    if (row.state_in == row.state_out && in.base == out.base && in.dtype == out.dtype && in.pitch == out.pitch) return;
    load_state(in, row.state_in, head, half);
    store_state(out, row.state_out, head, half);
  }

  // One row of at least one token.
  __device__ __forceinline__ void scan_row(const RowInfo& row, int head, int half) {
    const int n = (row.len + kChunk - 1) / kChunk, tail = row.len - (n - 1) * kChunk, tg = l & 3;
    load_state(p.state_in, row.state_in, head, half);
    int ckpt = row.ckpt_begin, ckpt_chunk = ckpt < row.ckpt_end ? p.ckpt_depth[ckpt] / kChunk : 0;  // 0 = none left

    float x[16], o[16];
    uint32_t a[32], r[8];
    const auto pack = [](uint32_t* d, const float* f, int count) {
#pragma unroll
      for (int i = 0; i < count; ++i) d[i] = pack_bf16(f[2 * i], f[2 * i + 1]);
    };
    // x <- V^T of the stage at `at`: this lane's address inside the swizzled 32 x 64 tile; token block 16 b adds 2048
    // b.
    const int tr = (l & 7) + 8 * ((l >> 4) & 1);
    const uint32_t value_place = Scan::kValues + place * 4096 + tr * 128 + (((2 * w + ((l >> 3) & 1)) ^ (tr & 7)) << 4);
    const auto seed = [&](uint32_t at) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, at + value_place + b * 2048);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[8 * b + 2 * i] = bf16_lo(v[i]), x[8 * b + 2 * i + 1] = bf16_hi(v[i]);
      }
    };
    const auto mask_tail = [&] {  // tokens past the end: another row's values, maybe NaN
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (8 * (i >> 2) + 2 * tg + (i & 1) >= tail) x[i] = 0.0f;
    };
    // The output of a chunk turns from [value][token] fragments to rows of 32 bytes in a tile of this warp alone.
    const uint32_t tile = shared + Scan::kOut + (place * 4 + w) * 1024;
    const uint32_t tile_in = tile + tr * 32 + ((((l >> 3) & 1) ^ ((tr >> 2) & 1)) << 4);
    const uint32_t tile_out = tile + (l >> 1) * 32 + (((l & 1) ^ ((l >> 3) & 1)) << 4);
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) +
                         (static_cast<int64_t>(row.token) + (l >> 1)) * p.out_pitch + head * kDim + half * 64 + w * 16 +
                         (l & 1) * 8;
    uint32_t packed[8];
    uint4 rows[2];
    const auto turn_out = [&] {
#pragma unroll
      for (int b = 0; b < 2; ++b)
        stmatrix_x4_trans(tile_in + b * 512, packed[4 * b], packed[4 * b + 1], packed[4 * b + 2], packed[4 * b + 3]);
      __syncwarp();
#pragma unroll
      for (int b = 0; b < 2; ++b) rows[b] = ld_shared_v4u(tile_out + b * 512);
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i] = 0;

    mbarrier_wait(full + stage * 8, phase);
    seed(shared + stage * Scan::kStageBytes);
    if (n == 1) mask_tail();
    pack(a, s, 32);
    // Nothing is in flight at the loop edge. Moving a statement here can make ptxas serialize the products: keep the
    // build free of its C75xx warnings.
#pragma unroll 1
    for (int t = 0; t < n; ++t) {
      const uint32_t at = shared + stage * Scan::kStageBytes, decay = at + Slot::kDecay + 8 * tg;
      const uint64_t keys = wgmma_descriptor(at + Slot::kKeyQuery, 0, 1024, Swizzle::k128B);
      const uint64_t queries = wgmma_descriptor(at + Slot::kKeyQuery + 4096, 0, 1024, Swizzle::k128B);
      const uint64_t update = wgmma_descriptor(at + Slot::kUpdate, 4096, 1024, Swizzle::k128B);
      const uint64_t mix = wgmma_descriptor(at + Slot::kMix, 0, 512, Swizzle::k64B);
      float2 d[16];  // of the state's columns, ready when the products have been issued
#pragma unroll
      for (int b = 0; b < 16; ++b) d[b] = ld_shared_v2(decay + b * 32);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 8; ++b) wgmma_m64n32k16(x, a + 4 * b, keys + ((b >> 2) * 8192 + (b & 3) * 32) / 16);
      wgmma_commit();
      turn_out();
#pragma unroll
      for (int b = 0; b < 16; ++b)  // decay of the fp32 state under the products
        s[4 * b] *= d[b].x, s[4 * b + 1] *= d[b].y, s[4 * b + 2] *= d[b].x, s[4 * b + 3] *= d[b].y;
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 8; ++b) wgmma_m64n32k16(o, a + 4 * b, queries + ((b >> 2) * 8192 + (b & 3) * 32) / 16, b > 0);
      wgmma_commit();
      if (t > 0) {  // the chunk before; the branch also keeps ptxas from serializing the update of s
        *reinterpret_cast<uint4*>(out) = rows[0];
        *reinterpret_cast<uint4*>(out + 16 * p.out_pitch) = rows[1];
        out += kChunk * p.out_pitch;
      }
      __syncwarp();
      wgmma_wait<1>();  // x
      wgmma_pin(x);
      pack(r, x, 8);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 2; ++b) wgmma_m64n128k16_nmajor(s, r + 4 * b, update + b * 2048 / 16);
      wgmma_commit();
#pragma unroll
      for (int b = 0; b < 2; ++b) wgmma_m64n32k16(o, r + 4 * b, mix + b * 2);
      wgmma_commit();
      const int next = stage + 1 == kScanStages ? 0 : stage + 1, next_phase = next ? phase : phase ^ 1;
      if (t + 1 < n) {
        mbarrier_wait(full + next * 8, next_phase);
        seed(shared + next * Scan::kStageBytes);
        if (t + 2 == n) mask_tail();
      }
      wgmma_wait<1>();  // s
      wgmma_pin(s);
      pack(a, s, 32);
      wgmma_wait<0>();
      wgmma_pin(o);
      pack(packed, o, 8);
      if (l == 0) mbarrier_arrive(empty + stage * 8);
      if (t + 1 == ckpt_chunk) {
        store_state(p.checkpoints, p.ckpt_slot[ckpt], head, half);
        ckpt_chunk = ++ckpt < row.ckpt_end ? p.ckpt_depth[ckpt] / kChunk : 0;
      }
      stage = next, phase = next_phase;
    }
    turn_out();
    if ((l >> 1) < tail) *reinterpret_cast<uint4*>(out) = rows[0];
    if ((l >> 1) + 16 < tail) *reinterpret_cast<uint4*>(out + 16 * p.out_pitch) = rows[1];
    __syncwarp();
    store_state(p.state_out, row.state_out, head, half);
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
