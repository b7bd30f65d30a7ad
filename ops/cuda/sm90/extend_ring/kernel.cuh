// The extend kernel: every CTA prepares factor slots for all chains and scans half of one chain. Slots travel through a
// ring in global memory that stays in the L2 cache. README.md has the protocol and why it cannot deadlock.
#pragma once

#include "ops/cuda/sm90/extend_ring/prep.cuh"
#include "ops/cuda/sm90/extend_ring/scan.cuh"

namespace kadence::ops::cuda::sm90::extend {

// Where position `at` of a chain's stream lies. A stream is the lane's chunks, once per pass.
struct Place {
  int chunk = -1, head = 0;  // chunk -1: the stream has ended
};
__device__ __forceinline__ Place place_of(const Schedule& c, const RingParams& p, int chain, int at) {
  const int lane = c.lanes == 1 ? 0 : chain / c.heads, first = c.lane_chunk[lane],
            length = c.lane_chunk[lane + 1] - first;
  int head = chain - lane * c.heads;
  if (at >= length) {
    if (c.passes == 1 || length == 0) return {};
    const int pass = at / length;
    at -= pass * length, head += pass * c.heads;
    if (pass >= c.passes || head >= p.heads) return {};
  }
  return {first + at, head};
}

// --- warpgroup 3, warp 0: slots and values of this CTA's half chain into the scan stages -----------------------------
__device__ __forceinline__ void load_stages(const RingParams& p, uint32_t shared, int chain, int half, int l) {
  const Schedule& c = *p.schedule;
  const uint32_t full = shared + kSharedBarriers, empty = full + kScanStages * 8;
  const uint32_t* ready = p.ready + chain * c.depth;
  const uint8_t* slots = p.slots + static_cast<size_t>(chain) * c.depth * Slot::kBytes;
  uint32_t* consumed = p.consumed + chain * 2 + half;
  int known = 0, slot = 0, stage = 0, phase = 1;  // positions below `known` are ready
#ifdef KADENCE_DEBUG_WAITS
  int polls = 0;
#endif
#pragma unroll 1
  for (int at = 0;; ++at) {
    const Place place = place_of(c, p, chain, at);
    if (place.chunk < 0) break;
    const int token = p.chunk_info[place.chunk].token;
    if (at >= kScanStages) {
      mbarrier_wait(empty + stage * 8, phase);
      // The stage's slot was read long before its consumers were done, so its place in the ring is free.
      if (l == 0) st_relaxed_gpu(consumed, at - kScanStages + 1);
    }
    while (known <= at) {
      const int want = known + l, in = slot + (known - at) + l;
      const bool hit =
          l < c.depth && ld_acquire_gpu(ready + (in >= c.depth ? in - c.depth : in)) >= static_cast<uint32_t>(want + 1);
      known += __ffs(~__ballot_sync(~0u, hit)) - 1;
#ifdef KADENCE_DEBUG_WAITS
      if (++polls > (1 << 22)) __trap();
#endif
    }
    if (l == 0) {
      fence_proxy_async_global();
      const uint32_t at_stage = shared + stage * Scan::kStageBytes, bar = full + stage * 8;
      mbarrier_arrive_expect_tx(bar, Slot::kBytes + 4096);
      bulk_load(at_stage, slots + static_cast<size_t>(slot) * Slot::kBytes, Slot::kBytes, bar);
      tensor_load_2d(at_stage + Scan::kValues, &p.values, place.head * kDim + half * 64, token, bar);
    }
    __syncwarp();
    if (++slot == c.depth) slot = 0;
    if (++stage == kScanStages) stage = 0, phase ^= 1;
  }
}

// --- warpgroup 0 -----------------------------------------------------------------------------------------------------
__device__ __forceinline__ void scan_chain(const RingParams& p, uint32_t shared, int chain, int half, int tid) {
  const Schedule& c = *p.schedule;
  const int lane = chain / c.heads, first = c.lane_row[lane], last = c.lane_row[lane + 1];
  Scanner scanner(p, shared, tid);
#pragma unroll 1
  for (int pass = 0; pass < c.passes; ++pass) {
    const int head = pass * c.heads + chain - lane * c.heads;
    if (head >= p.heads) break;
#pragma unroll 1
    for (int i = first; i < last; ++i) {
      const RowInfo row = p.row_info[i];
      if (row.len == 0)
        scanner.copy_state(row, head, half);
      else
        scanner.scan_row(row, head, half);
    }
  }
}

// --- warpgroups 1 and 2 ----------------------------------------------------------------------------------------------
__device__ __forceinline__ void zero_spans(const RingParams& p, int group, int groups, int tid) {
  const Schedule& c = *p.schedule;
  const int row_bytes = p.heads * kDim * 2;
  for (int i = 0; i < c.spans; ++i) {
    const Span span = p.spans[i];
    for (int64_t t = span.begin + group; t < span.end; t += groups) {
      char* row = static_cast<char*>(p.out) + t * p.out_pitch * 2;
      for (int b = tid * 16; b < row_bytes; b += 128 * 16) *reinterpret_cast<uint4*>(row + b) = make_uint4(0, 0, 0, 0);
    }
  }
}

template <KdaGate kGate, bool kExact, bool kDecayF32>
__device__ __forceinline__ void prepare(const RingParams& p, uint32_t base, int group, int groups, int tid,
                                        int barrier) {
  const Schedule& c = *p.schedule;
  const int chains = c.lanes * c.heads;
  if (chains == 0) return;
  const ChunkPrep<kGate, kExact, kDecayF32> prep(p, base, tid, barrier);
  const int step_at = groups / chains, step_chain = groups - step_at * chains;
  const int end = c.longest * c.passes;
  // Items in the order (position, chain): what is scanned first is prepared first.
  int at = group / chains, chain = group - at * chains;
  Place place;
  const auto seek = [&] {  // to an item that exists, from (at, chain) on
    place = Place();
    while (at < end) {
      place = place_of(c, p, chain, at);
      if (place.chunk >= 0) break;
      at += step_at, chain += step_chain;
      if (chain >= chains) chain -= chains, ++at;
    }
  };
  RawChunk<kDecayF32> raw;
  const auto load = [&] {
    if (place.chunk >= 0) {
      const ChunkInfo info = p.chunk_info[place.chunk];
      load_raw<kGate>(raw, p, place.head, info.token, info.count, tid);
    }
  };
  uint32_t* pending = nullptr;  // thread 0: flag of the slot that is on its way, and its value
  uint32_t pending_value = 0;
  const auto publish = [&] {
    if (pending) {
      bulk_wait<0>();
      fence_proxy_async_global();
      st_release_gpu(pending, pending_value);
      pending = nullptr;
    }
  };
  seek();
  load();
#pragma unroll 1
  while (place.chunk >= 0) {
    const int this_at = at, this_chain = chain;
    const uint32_t* consumed = p.consumed + this_chain * 2;
    uint32_t seen = 0;
    if (tid == 0) seen = min(ld_relaxed_gpu(consumed), ld_relaxed_gpu(consumed + 1));
    prep.run(
        raw,
        [&] {
          if (tid == 0) bulk_wait_read<0>();
        },
        [&] {
          if (tid == 0) publish();
          at += step_at, chain += step_chain;
          if (chain >= chains) chain -= chains, ++at;
          seek();
          load();
        });
    fence_proxy_async_shared();
    prep.sync();
    if (tid == 0) {
      const int turn = this_at / c.depth, slot = this_at - turn * c.depth;
      int polls = 0;
      while (static_cast<int>(seen) < this_at - c.depth + 1) {
        __nanosleep(64);
        seen = min(ld_relaxed_gpu(consumed), ld_relaxed_gpu(consumed + 1));
#ifdef KADENCE_DEBUG_WAITS
        if (++polls > (1 << 22)) __trap();
#endif
      }
      (void)polls;
      const size_t index = static_cast<size_t>(this_chain) * c.depth + slot;
      fence_proxy_async_global();
      bulk_store(p.slots + index * Slot::kBytes, base, Slot::kBytes);
      bulk_commit();
      pending = p.ready + index, pending_value = this_at + 1;
    }
  }
  if (tid == 0) publish();
}

template <KdaGate kGate, bool kExact, bool kDecayF32>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ char raw_shared[];
  const uint32_t shared = (shared_address(raw_shared) + 1023) & ~1023u;
  const int tid = threadIdx.x, group = tid >> 7;
  const Schedule& c = *p.schedule;
  if (tid == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      mbarrier_init(shared + kSharedBarriers + i * 8, 1);
      mbarrier_init(shared + kSharedBarriers + (kScanStages + i) * 8, 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int cta = blockIdx.x, chain = cta >> 1, half = cta & 1;
  if (group == 0) {
    setmaxnreg_inc<kScanRegisters>();
    if (cta < c.scan_ctas) scan_chain(p, shared, chain, half, tid);
  } else if (group == 3) {
    setmaxnreg_dec<kLoadRegisters>();
    if (cta < c.scan_ctas && tid < 3 * 128 + 32) load_stages(p, shared, chain, half, tid & 31);
  } else {
    setmaxnreg_inc<kPrepRegisters>();
    const int t = tid & 127, ctas = gridDim.x;
    zero_spans(p, (group - 1) * ctas + cta, kPrepGroups * ctas, t);
    const int first = c.prep_first;
    if (cta >= first)
      prepare<kGate, kExact, kDecayF32>(p, shared + kSharedScan + (group - 1) * Prep::kBytes,
                                        (group - 1) * (ctas - first) + cta - first, kPrepGroups * (ctas - first), t,
                                        group);
  }
}

}  // namespace kadence::ops::cuda::sm90::extend
