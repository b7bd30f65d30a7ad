// The extend kernel: every CTA prepares factor slots for all chains and scans half of one chain. Slots travel through a
// ring in global memory that stays in the L2 cache. README.md has the protocol and why it cannot deadlock.
#pragma once

#include "ops/cuda/sm90/extend_ring/prep.cuh"
#include "ops/cuda/sm90/extend_ring/scan.cuh"

namespace kadence::ops::cuda::sm90::extend {

// For measurements only: 1 = preparation alone, 2 = scan alone over whatever the ring holds.
#ifndef KADENCE_EXTEND_PROBE
#define KADENCE_EXTEND_PROBE 0
#endif
inline constexpr int kProbe = KADENCE_EXTEND_PROBE;

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
__device__ __forceinline__ void load_stages(const RingParams& p, const Schedule& c, uint32_t shared, int chain,
                                            int half, int l) {
  const uint32_t full = shared + kSharedBarriers, empty = full + kScanStages * 8;
  const int depth = c.depth;
  const uint32_t* ready = p.ready + chain * depth;
  const uint8_t* slots = p.slots + static_cast<size_t>(chain) * depth * Slot::kBytes;
  uint32_t* consumed = p.consumed + chain * 2 + half;
  int known = 0, slot = 0, stage = 0, phase = 1;  // positions below `known` are ready
  int tokens = -1, heads = 0;                     // of position (at & ~31) + l
#ifdef KADENCE_DEBUG_WAITS
  int polls = 0;
#endif
#pragma unroll 1
  for (int at = 0;; ++at) {
    if ((at & 31) == 0) {
      const Place place = place_of(c, p, chain, at + l);
      tokens = place.chunk >= 0 ? p.chunk_info[place.chunk].token : -1, heads = place.head;
    }
    const int token = __shfl_sync(~0u, tokens, at & 31), head = __shfl_sync(~0u, heads, at & 31);
    if (token < 0) break;
    if (at >= kScanStages) {
      // A slot's place in the ring is free once it has been read into its stage.
      const int before = stage == 0 ? kScanStages - 1 : stage - 1;
      const bool arrived = mbarrier_test_wait(full + before * 8, before > stage ? phase : phase ^ 1);
      if (l == 0 && arrived) st_relaxed_gpu(consumed, at);
      mbarrier_wait(empty + stage * 8, phase);
      if (l == 0 && !arrived) st_relaxed_gpu(consumed, at - kScanStages + 1);
    }
    if (kProbe != 2 && known == at) {
      do {
        const int in = slot + l;
        const bool hit =
            l < depth && ld_acquire_gpu(ready + (in >= depth ? in - depth : in)) >= static_cast<uint32_t>(at + l + 1);
        const uint32_t missing = ~__ballot_sync(~0u, hit);
        known += missing ? __ffs(missing) - 1 : 32;
#ifdef KADENCE_DEBUG_WAITS
        if (++polls > (1 << 24)) __trap();
#endif
      } while (known == at);
      fence_proxy_async_global();
    }
    if (l == 0) {
      const uint32_t at_stage = shared + stage * Scan::kStageBytes, bar = full + stage * 8;
      mbarrier_arrive_expect_tx(bar, Slot::kBytes + 4096);
      bulk_load(at_stage, slots + static_cast<size_t>(slot) * Slot::kBytes, Slot::kBytes, bar);
      tensor_load_2d(at_stage + Scan::kValues, &p.values, head * kDim + half * 64, token, bar);
    }
    __syncwarp();
    if (++slot == depth) slot = 0;
    if (++stage == kScanStages) stage = 0, phase ^= 1;
  }
}

// --- warpgroup 0 -----------------------------------------------------------------------------------------------------
__device__ __forceinline__ void scan_chain(const RingParams& p, const Schedule& c, uint32_t shared, int chain, int half,
                                           int tid) {
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
__device__ __forceinline__ void zero_spans(const RingParams& p, const Schedule& c, int group, int groups, int tid) {
  const int row_bytes = p.heads * kDim * 2;
  for (int i = 0; i < c.spans; ++i) {
    const Span span = p.spans[i];
    for (int64_t t = span.begin + group; t < span.end; t += groups) {
      char* row = static_cast<char*>(p.out) + t * p.out_pitch * 2;
      for (int b = tid * 16; b < row_bytes; b += 128 * 16) *reinterpret_cast<uint4*>(row + b) = make_uint4(0, 0, 0, 0);
    }
  }
}

// What the mover of a preparing warpgroup tells it. Position -1: no more items.
struct Item {
  int at, head;
  ChunkInfo info;
};
struct Mail {
  Item items[kMailSlots];
};
static_assert(sizeof(Mail) <= Prep::kMailBytes);
// Barriers of a preparing warpgroup, all in phases of one turn but `announced`, whose slots take turns.
struct PrepBarriers {
  uint32_t announced, complete, free;
  __device__ explicit PrepBarriers(uint32_t shared, int group)
      : announced(shared + kSharedPrepBarriers + group * kPrepBarriers),
        complete(announced + kMailSlots * 8),
        free(complete + 8) {}
};

template <KdaGate kGate, bool kExact, bool kDecayF32>
__device__ __forceinline__ void prepare(const RingParams& p, uint32_t base, const Mail& mail, const PrepBarriers& bars,
                                        int tid, int barrier) {
  ChunkPrep<kGate, kExact, kDecayF32> prep(p, base, tid, barrier);
  RawChunk<kDecayF32> raw;
  int count, next_count = 0;  // tokens; 0: no more items
  const auto load = [&](int turn) {
    const int slot = turn % kMailSlots;
    mbarrier_wait(bars.announced + slot * 8, turn / kMailSlots & 1);
    const Item& item = mail.items[slot];
    next_count = item.info.count;
    if (next_count > 0) load_raw<kGate>(raw, p, item.head, item.info.token, next_count, tid);
  };
  load(0);
#pragma unroll 1
  for (int turn = 0; (count = next_count) > 0; ++turn) {
    prep.run(
        raw, count, turn,
        [&] {
          if (turn > 0) mbarrier_wait(bars.free, (turn - 1) & 1);
        },
        [&] { load(turn + 1); });
    fence_proxy_async_shared();
    __syncwarp();
    if ((tid & 31) == 0) mbarrier_arrive(bars.complete);
  }
}

// --- warpgroup 3, warps 1 and 2: hand out the items of a preparing warpgroup and carry its slots to the ring ---------
// A warpgroup serves one chain and takes turns with the others that serve it. Serving several chains would let a chain
// that lags hold up the rest: a warpgroup waits for room with the slot of one chain while another chain starves.
__device__ __forceinline__ void move_slots(const RingParams& p, const Schedule& c, uint32_t base, Mail& mail,
                                           const PrepBarriers& bars, int group, int groups) {
  const int chains = c.lanes * c.heads, depth = c.depth;
  const int chain = group % chains, step = (groups - 1 - chain) / chains + 1;
  const uint32_t* consumed = p.consumed + chain * 2;
  const auto announce = [&](int turn) {
    const int at = group / chains + turn * step;
    const Place place = place_of(c, p, chain, at);
    Item item{-1, 0, {0, 0}};
    if (place.chunk >= 0) item = {at, place.head, p.chunk_info[place.chunk]};
    mail.items[turn % kMailSlots] = item;
    mbarrier_arrive(bars.announced + turn % kMailSlots * 8);
  };
  announce(0);
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    const int at = mail.items[turn % kMailSlots].at, slot = chain * depth + at % depth;
    if (at < 0) break;
    announce(turn + 1);
    mbarrier_wait(bars.complete, turn & 1);
#ifdef KADENCE_DEBUG_WAITS
    int polls = 0;
#endif
    while (kProbe != 1 &&
           static_cast<int>(min(ld_relaxed_gpu(consumed), ld_relaxed_gpu(consumed + 1))) < at - depth + 1) {
      __nanosleep(32);
#ifdef KADENCE_DEBUG_WAITS
      if (++polls > (1 << 23)) __trap();
#endif
    }
    fence_proxy_async_global();
    bulk_store(p.slots + static_cast<size_t>(slot) * Slot::kBytes, base, Slot::kBytes);
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(bars.free);
    bulk_wait<0>();
    fence_proxy_async_global();
    st_release_gpu(p.ready + slot, static_cast<uint32_t>(at + 1));
  }
}

template <KdaGate kGate, bool kExact, bool kDecayF32>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ char raw_shared[];
  const uint32_t shared = (shared_address(raw_shared) + 1023) & ~1023u;
  const int tid = threadIdx.x, group = tid >> 7;
  char* aligned = raw_shared + (shared - shared_address(raw_shared));
  int* schedule = reinterpret_cast<int*>(aligned + kSharedSchedule);
  for (int i = tid; i < static_cast<int>(sizeof(Schedule) / 4); i += kThreads)
    schedule[i] = reinterpret_cast<const int*>(p.schedule)[i];
  if (tid == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      mbarrier_init(shared + kSharedBarriers + i * 8, 1);
      mbarrier_init(shared + kSharedBarriers + (kScanStages + i) * 8, 4);
    }
    for (int g = 0; g < kPrepGroups; ++g) {
      const PrepBarriers bars(shared, g);
      for (int i = 0; i < kMailSlots; ++i) mbarrier_init(bars.announced + i * 8, 1);
      mbarrier_init(bars.complete, 4);
      mbarrier_init(bars.free, 1);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const Schedule& c = *reinterpret_cast<const Schedule*>(schedule);
  const int cta = blockIdx.x, chain = cta >> 1, half = cta & 1;
  if (group == 0) {
    setmaxnreg_inc<kScanRegisters>();
    if (kProbe != 1 && cta < c.scan_ctas) scan_chain(p, c, shared, chain, half, tid);
  } else if (group == 3) {
    setmaxnreg_dec<kMoveRegisters>();
    const int warp = (tid >> 5) & 3;
    if (warp == 0) {
      if (kProbe != 1 && cta < c.scan_ctas) load_stages(p, c, shared, chain, half, tid & 31);
    } else if (warp <= kPrepGroups && (tid & 31) == 0) {
      const int offset = kSharedScan + (warp - 1) * Prep::kBytes;
      if (kProbe != 2 && cta >= c.prep_first && c.longest > 0)
        move_slots(p, c, shared + offset, *reinterpret_cast<Mail*>(aligned + offset + Prep::kMail),
                   PrepBarriers(shared, warp - 1),
                   (warp - 1) * (static_cast<int>(gridDim.x) - c.prep_first) + cta - c.prep_first,
                   kPrepGroups * (static_cast<int>(gridDim.x) - c.prep_first));
    }
  } else {
    setmaxnreg_inc<kPrepRegisters>();
    const int t = tid & 127, ctas = gridDim.x, offset = kSharedScan + (group - 1) * Prep::kBytes;
    zero_spans(p, c, (group - 1) * ctas + cta, kPrepGroups * ctas, t);
    if (kProbe != 2 && cta >= c.prep_first && c.longest > 0)
      prepare<kGate, kExact, kDecayF32>(p, shared + offset,
                                        *reinterpret_cast<const Mail*>(aligned + offset + Prep::kMail),
                                        PrepBarriers(shared, group - 1), t, group);
  }
}

}  // namespace kadence::ops::cuda::sm90::extend
