// Recurrence: one warpgroup keeps 64 value rows x 128 keys of one head's state in fp32 accumulators while it walks the
// pieces of its stream. Symbols and the algebra are in README.md. Outputs and states leave by way of shared memory and
// a storing warp (store.cuh).
#pragma once

#include "ops/cuda/common/async.cuh"
#include "ops/cuda/common/element.cuh"
#include "ops/cuda/common/mma.cuh"
#include "ops/cuda/common/wgmma.cuh"
#include "ops/cuda/sm90/extend_ring/stream.h"

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

// Barriers between the scanning warps of one half and the warp that stores for it.
struct StoreBarriers {
  uint32_t out_full, out_free;      // two each, by the parity of the chunk
  uint32_t state_full, state_free;  // one each
  __device__ StoreBarriers(uint32_t shared, int place)
      : out_full(shared + kSharedStoreBarriers + place * kStoreBarriers),
        out_free(out_full + 16),
        state_full(out_full + 32),
        state_free(out_full + 40) {}
};

struct Scanner {
  const RingParams& p;
  const uint32_t shared, full, empty;  // stages; barriers
  const int w, l, place;               // warp of the warpgroup; lane; warpgroup of the CTA
  const StoreBarriers bars;
  float s[64];
  int stage = 0, phase = 0;          // of the next chunk
  int buffer = 0, buffer_phase = 1;  // of the next output
  int state_phase = 0;
  int done = 0;       // chunks of the stream before this piece
  int event, copies;  // the next event, see EventNote
  uint32_t note;      // of the next event
  int note_step = sizeof(EventNote);

  __device__ Scanner(const RingParams& params, uint32_t shared_base, int thread)
      : p(params),
        shared(shared_base),
        full(shared_base + kSharedBarriers),
        empty(full + kScanStages * 8),
        w((thread >> 5) & 3),
        l(thread & 31),
        place(__shfl_sync(~0u, thread >> 7, 0)),  // so that the compiler knows it to be the same for the warp
        bars(shared_base, place),
        note(shared_base + kSharedNotes + place * kNoteBytes) {
    mbarrier_wait(bars.state_free, 0);
    read_note();
  }
  __device__ __forceinline__ void read_note() {
    event = ld_shared_int(note), copies = ld_shared_int(note + 4);
    note += note_step, note_step = -note_step;
  }

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
  // A row without tokens: the state moves, unless source and destination are the same memory.
  __device__ __forceinline__ void copy_state(const RowInfo& row, int head, int half) {
    const StatePool &in = p.state_in, &out = p.state_out;
    if (row.state_out < 0 || row.state_out >= out.slots) return;
    if (row.state_in == row.state_out && in.base == out.base && in.dtype == out.dtype && in.pitch == out.pitch) return;
    load_state(in, row.state_in, head, half);
    const int64_t at = slot_offset(out, row.state_out, head, half);
    if (out.dtype == static_cast<int>(DType::kF32))
      store_half(s, static_cast<float*>(out.base) + at);
    else if (out.dtype == static_cast<int>(DType::kBF16))
      store_half(s, static_cast<__nv_bfloat16*>(out.base) + at);
    else
      store_half(s, static_cast<__half*>(out.base) + at);
  }
  // The state where the scanner before left it.
  __device__ __forceinline__ void take_over(int boundary, int half) {
    const uint32_t* flag = p.handoff_flags + boundary * 2 + half;
    if (l == 0) {
#ifdef KADENCE_DEBUG_WAITS
      int polls = 0;
#endif
      while (ld_acquire_gpu(flag) == 0) {
        __nanosleep(500);
#ifdef KADENCE_DEBUG_WAITS
        if (++polls > (1 << 22)) __trap();
#endif
      }
    }
    __syncwarp();
    load_half(s, static_cast<const float*>(p.handoff.base) + slot_offset(p.handoff, boundary, 0, half));
  }

  // The state to shared memory as `dtype`, for the storing warp: 8 KB tiles of 64 rows x 128 bytes (128-byte swizzle).
  __device__ __forceinline__ void put_state(int dtype) {
    const int r = l >> 2, tg = l & 3;
    const uint32_t row = shared + Scan::kState + place * Scan::kStateBytes + (w * 16 + r) * 128;
    if (dtype == static_cast<int>(DType::kF32)) {
      // Columns 8 b + 2 tg, + 1: 16-byte piece 2 (b % 4) + tg / 2 of a row of tile b / 4.
      const uint32_t at = row + (((tg >> 1) ^ r) << 4) + (tg & 1) * 8;
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        if (b % 8 == 0) state_turn(b > 0);
        const uint32_t to = (at ^ ((b & 3) << 5)) + ((b >> 2) & 1) * 8192;
        st_shared_v2(to, __float_as_uint(s[4 * b]), __float_as_uint(s[4 * b + 1]));
        st_shared_v2(to + 1024, __float_as_uint(s[4 * b + 2]), __float_as_uint(s[4 * b + 3]));
      }
    } else {
      // Piece b % 8 of a row of tile b / 8.
      const bool bf16 = dtype == static_cast<int>(DType::kBF16);
      const uint32_t at = row + (r << 4) + tg * 4;
      state_turn(false);
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        const uint32_t to = (at ^ ((b & 7) << 4)) + (b >> 3) * 8192;
        st_shared(to, bf16 ? pack_bf16(s[4 * b], s[4 * b + 1]) : pack_f16(s[4 * b], s[4 * b + 1]));
        st_shared(to + 1024, bf16 ? pack_bf16(s[4 * b + 2], s[4 * b + 3]) : pack_f16(s[4 * b + 2], s[4 * b + 3]));
      }
    }
    state_done();
  }
  __device__ __forceinline__ void state_done() const {
    __syncwarp();
    if (l == 0) mbarrier_arrive(bars.state_full);
  }
  __device__ __forceinline__ void state_turn(bool done) {
    if (done) state_done();
    mbarrier_wait(bars.state_free, state_phase);
    state_phase ^= 1;
  }

  // One piece of at least one chunk.
  __device__ __forceinline__ void scan_piece(const Piece& piece, int half) {
    const int n = piece.count(), tail = piece.tokens(n - 1), tg = l & 3;
    if (piece.begin == 0)
      load_state(p.state_in, piece.row.state_in, piece.head, half);
    else
      take_over(piece.boundary, half);

    float x[16], o[16];
    uint32_t a0[32], a1[32], r[8], v[8];
    const auto pack = [](uint32_t* d, const float* f, int count) {
#pragma unroll
      for (int i = 0; i < count; ++i) d[i] = pack_bf16(f[2 * i], f[2 * i + 1]);
    };
    // Places of this lane inside a swizzled tile of 32 tokens x 64 values: of V (relative to a stage) and of the
    // output; token block 16 b adds 2048 b. Kept in registers: recomputing them would fall between the products.
    const int tr = (l & 7) + 8 * ((l >> 4) & 1);
    const uint32_t in_tile = place * 4096 + tr * 128 + (((2 * w + ((l >> 3) & 1)) ^ (tr & 7)) << 4);
    uint32_t lane_value = Scan::kValues + in_tile, lane_decay = Slot::kDecay + 8 * tg,
             lane_out = shared + Scan::kOut + place * 4096 + in_tile;
    asm volatile("" : "+r"(lane_out), "+r"(lane_value), "+r"(lane_decay));
    const auto load_values = [&](uint32_t from) {
#pragma unroll
      for (int b = 0; b < 2; ++b)
        ldmatrix_x4_trans(*reinterpret_cast<uint32_t(*)[4]>(v + 4 * b), from + lane_value + b * 2048);
    };
    const auto seed = [&] {  // x <- V^T
#pragma unroll
      for (int i = 0; i < 8; ++i) x[2 * i] = bf16_lo(v[i]), x[2 * i + 1] = bf16_hi(v[i]);
    };
    const auto mask_tail = [&] {  // tokens past the end: another row's values, maybe NaN
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (8 * (i >> 2) + 2 * tg + (i & 1) >= tail) x[i] = 0.0f;
    };
    // Decay of this thread's columns. A load behind products waits until they have begun, so that some come before; all
    // of them would take too many registers.
    constexpr int kEarly = 4;
    float2 d[16];
    const auto load_decay = [&](uint32_t from) {
#pragma unroll
      for (int b = 0; b < kEarly; ++b) d[b] = ld_shared_v2(from + lane_decay + b * 32);
    };
    // x += state operand times -kd of the stage at `from`; meanwhile the state decays.
    const auto next_x = [&](const uint32_t(&operand)[32], uint32_t from) {
      const uint64_t keys = wgmma_descriptor(from + Slot::kKeyQuery, 0, 1024, Swizzle::k128B);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 8; ++b) wgmma_m64n32k16(x, operand + 4 * b, keys + ((b >> 2) * 8192 + (b & 3) * 32) / 16);
      wgmma_commit();
#pragma unroll
      for (int b = kEarly; b < 16; ++b) d[b] = ld_shared_v2(from + lane_decay + b * 32);
#pragma unroll
      for (int b = 0; b < 16; ++b)
        s[4 * b] *= d[b].x, s[4 * b + 1] *= d[b].y, s[4 * b + 2] *= d[b].x, s[4 * b + 3] *= d[b].y;
    };
    // The packed output of a chunk to the storing warp's tile, if `on`. Predicates, not branches.
    const auto put_out = [&](const uint32_t(&packed)[8], bool on) {
#pragma unroll
      for (int b = 0; b < 2; ++b)
        stmatrix_x4_trans_if(on, lane_out + buffer * 8192 + b * 2048, packed[4 * b], packed[4 * b + 1],
                             packed[4 * b + 2], packed[4 * b + 3]);
      __syncwarp();
      mbarrier_arrive_if(on && l == 0, bars.out_full + buffer * 8);
      buffer_phase ^= on ? buffer : 0, buffer ^= on ? 1 : 0;
    };

    uint32_t at = shared + stage * Scan::kStageBytes;  // of chunk t
    const auto stage_after = [](int i) { return i + 1 == kScanStages ? 0 : i + 1; };
    mbarrier_wait(full + stage * 8, phase);
    load_values(at), load_decay(at);
    pack(a0, s, 32);
    seed();
    if (n == 1) mask_tail();
    next_x(a0, at);
    int next = stage_after(stage), next_phase = next == 0 ? phase ^ 1 : phase;  // of chunk t + 1
    wgmma_wait<0>();
    wgmma_pin(x);
#pragma unroll
    for (int i = 0; i < 16; ++i) o[i] = 0.0f;
    int t = 0;
    // Chunk t, whose x is there and whose state has decayed: s and o, then x of the next chunk from s. The two operand
    // copies of the state take turns, so that `now` may be read by products in flight while `then` is made.
    // Moving a statement here can make ptxas serialize the products: keep the build free of its C75xx warnings.
    const auto step = [&](const uint32_t(&now)[32], uint32_t(&then)[32]) {
      const uint64_t update = wgmma_descriptor(at + Slot::kUpdate, 4096, 1024, Swizzle::k128B);
      const uint64_t queries = wgmma_descriptor(at + Slot::kKeyQuery + 4096, 0, 1024, Swizzle::k128B);
      const uint64_t mix = wgmma_descriptor(at + Slot::kMix, 0, 512, Swizzle::k64B);
      // After the last chunk: an x that nobody uses, from operands that are there.
      const uint32_t from = t + 1 < n ? shared + next * Scan::kStageBytes : at;
      uint32_t packed[8];
      pack(r, x, 8);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 2; ++b) wgmma_m64n128k16_nmajor(s, r + 4 * b, update + b * 2048 / 16);
      wgmma_commit();
      if (t + 1 < n) mbarrier_wait(full + next * 8, next_phase);
      load_values(from);
      pack(packed, o, 8);  // of chunk t - 1
      put_out(packed, t > 0);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < 8; ++b)
        wgmma_m64n32k16(o, now + 4 * b, queries + ((b >> 2) * 8192 + (b & 3) * 32) / 16, b > 0);
#pragma unroll
      for (int b = 0; b < 2; ++b) wgmma_m64n32k16(o, r + 4 * b, mix + b * 2);
      wgmma_commit();
      load_decay(from);
      seed();
      if (t + 2 == n) mask_tail();
      wgmma_wait<1>();
      wgmma_pin(s);
      pack(then, s, 32);
      if (done + t + 1 == event) {
#pragma unroll 1
        for (int left = copies; left != 0; left >>= 4) put_state((left & 15) - 1);
        read_note();
      }
      next_x(then, from);
      const uint32_t release = empty + stage * 8;
      if (t + 1 < n) {
        stage = next, phase = next_phase;
        next = stage_after(stage), next_phase = next == 0 ? phase ^ 1 : phase;
      }
      mbarrier_wait(bars.out_free + buffer * 8, buffer_phase);
      wgmma_wait<0>();
      wgmma_pin(x), wgmma_pin(o);
      if (l == 0) mbarrier_arrive(release);
      at = from, ++t;
    };
#pragma unroll 1
    while (true) {
      step(a0, a1);
      if (t == n) break;
      step(a1, a0);
      if (t == n) break;
    }
    done += n;
    stage = next, phase = next_phase;
    uint32_t packed[8];
    pack(packed, o, 8);
    put_out(packed, true);
  }
};

}  // namespace kadence::ops::cuda::sm90::extend
