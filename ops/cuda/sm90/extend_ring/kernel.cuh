// The extend kernel: some CTAs prepare factor slots, the others scan them. Slots travel through rings in global memory
// that stay in the L2 cache. README.md has the protocol and why it cannot deadlock.
#pragma once

#include "ops/cuda/sm90/extend_ring/prep.cuh"
#include "ops/cuda/sm90/extend_ring/store.cuh"

namespace kadence::ops::cuda::sm90::extend {

// For measurements only: 1 = preparation alone, 2 = scan alone over whatever the ring holds.
#ifndef KADENCE_EXTEND_PROBE
#define KADENCE_EXTEND_PROBE 0
#endif
inline constexpr int kProbe = KADENCE_EXTEND_PROBE;

// A chunk of a stream. count 0: the stream has ended.
struct Place {
  int head = 0, token = 0, count = 0;
};
// Chunk `number` of all items, by one warp: the row is the last one whose chunks begin at or before it.
__device__ __forceinline__ Place place_of(const RingParams& p, int rows, int number, int l) {
  int low = 0, size = rows;  // the row is in [low, low + size)
  while (size > 1) {
    const int step = (size + 31) / 32, mine = low + l * step;
    const bool before = mine < low + size && p.row_info[mine].chunk * p.heads <= number;
    const int hits = __popc(__ballot_sync(~0u, before));  // at least lane 0's
    const int end = low + size;
    low += (hits - 1) * step;
    size = min(step, end - low);
  }
  const RowInfo& row = p.row_info[low];
  const int chunks = (row.len + kChunk - 1) / kChunk, rest = number - row.chunk * p.heads, head = rest / chunks,
            at = (rest - head * chunks) * kChunk;
  return {head, row.token + at, min(kChunk, row.len - at)};
}

// Asks for the initial state of an item, or for one half of it, to be in the L2 cache when its scan begins.
__device__ __forceinline__ void prefetch_state(const RingParams& p, int slot, int head, int half, int width, int l) {
  if (slot < 0) return;
  const int64_t size = p.state_in.dtype == static_cast<int>(DType::kF32) ? 4 : 2;
  const char* state = static_cast<const char*>(p.state_in.base) +
                      (slot * p.state_in.pitch + (head * 2 + half) * (kDim * kDim / 2)) * size;
  const int bytes = static_cast<int>(size) * (kDim * kDim / 2) * width;
  for (int b = l * 128; b < bytes; b += 32 * 128) prefetch_l2(state + b);
}

inline constexpr int kValuesAhead = 6;  // chunks
// --- scanning CTA, warpgroup 3, warp 0: slots and values into the stages ---------------------------------------------
__device__ __forceinline__ void load_stages(const RingParams& p, const Schedule& c, uint32_t shared, int scanner,
                                            int half, int l) {
  const uint32_t full = shared + kSharedBarriers, empty = full + kScanStages * 8;
  const int depth = c.depth, end = c.chunk[scanner + 1] - c.chunk[scanner], width = c.width;
  const uint32_t* ready = p.ready + scanner * kReadyPitch;
  const uint8_t* slots = p.slots + static_cast<size_t>(scanner) * depth * Slot::kBytes;
  uint32_t* consumed = p.consumed + scanner * kConsumedPitch + half;
  int known = 0, slot = 0, stage = 0, phase = 1;  // positions below `known` are ready
  Pieces pieces(p, c, scanner);
  Piece piece;
  bool more = pieces.next(piece);
  int token = 0, column = 0, left = 0;  // of the piece
  const uint64_t stream = policy_stream();
#ifdef KADENCE_DEBUG_WAITS
  int polls = 0;
#endif
#pragma unroll 1
  for (int at = 0; at < end; ++at) {
    while (left == 0 && more) {  // the next piece that has chunks
      token = piece.row.token + piece.begin * kChunk, left = piece.count(), column = piece.head * kDim + half * 64;
      more = pieces.next(piece);
      if (more && piece.begin == 0) prefetch_state(p, piece.row.state_in, piece.head, half, width, l);
    }
    if (kProbe != 2 && known == at) {
      do {
        const int in = slot + l;
        const bool hit =
            l < depth && ld_acquire_gpu(ready + (in >= depth ? in - depth : in)) >= static_cast<uint32_t>(at + l + 1);
        const uint32_t missing = ~__ballot_sync(~0u, hit);
        // The shuffle tells the compiler that all lanes agree, here and in what follows.
        known = __shfl_sync(~0u, known + (missing ? __ffs(missing) - 1 : 32), 0);
#ifdef KADENCE_DEBUG_WAITS
        if (++polls > (1 << 24)) __trap();
#endif
        if (known == at) __nanosleep(100);
      } while (known == at);
      __syncwarp();  // lane 0 issues what the other lanes saw
      fence_proxy_async_global();
    }
    if (at >= kScanStages) mbarrier_wait(empty + stage * 8, phase);
    if (l == 0) {
      const uint32_t at_stage = shared + stage * Scan::kStageBytes, bar = full + stage * 8;
      mbarrier_arrive_expect_tx(bar, Slot::kBytes + width * 4096);
      bulk_load(at_stage, slots + static_cast<size_t>(slot) * Slot::kBytes, Slot::kBytes, bar);
      tensor_load_2d(at_stage + Scan::kValues, &p.values, column, token, bar, stream);
      if (width == 2) tensor_load_2d(at_stage + Scan::kValues + 4096, &p.values, column + 64, token, bar, stream);
      // Values come from far away: they are asked for before their stage is free.
      if (left > kValuesAhead) {
        tensor_prefetch_2d(&p.values, column, token + kValuesAhead * kChunk);
        if (width == 2) tensor_prefetch_2d(&p.values, column + 64, token + kValuesAhead * kChunk);
      }
    }
    // A slot's place in the ring is free once it has been read into its stage. The stage that has just been freed was
    // that of chunk at - kScanStages, whose scan has used the next chunk's, too.
    if (l < width && at > kScanStages) st_relaxed_gpu(consumed + l, at - kScanStages + 2);
    __syncwarp();
    token += kChunk, --left;
    if (++slot == depth) slot = 0;
    if (++stage == kScanStages) stage = 0, phase ^= 1;
  }
}

// --- scanning CTA, warpgroups 0 and 1 --------------------------------------------------------------------------------
__device__ __forceinline__ void scan_items(const RingParams& p, const Schedule& c, uint32_t shared, int scanner,
                                           int half, int tid) {
  Scanner scan(p, shared, tid);
  Pieces pieces(p, c, scanner);
  Piece piece;
#pragma unroll 1
  while (pieces.next(piece)) {
    if (piece.row.len == 0)
      scan.copy_state(piece.row, piece.head, half);
    else
      scan.scan_piece(piece, half);
  }
}

// --- scanning CTA, warpgroup 3, warps 1 and 2 ------------------------------------------------------------------------
__device__ __forceinline__ void store_items(const RingParams& p, const Schedule& c, uint32_t shared, EventNote* notes,
                                            int scanner, int place, int half, int l) {
  Storer storer(p, c, shared, notes, scanner, place, half, l);
  Pieces pieces(p, c, scanner);
  Piece piece;
#pragma unroll 1
  while (pieces.next(piece))
    if (piece.count() > 0) storer.store_piece(piece);
  storer.finish();
}

// --- preparing CTA, warpgroups 0 to 2 --------------------------------------------------------------------------------
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

// What the mover of a preparing warpgroup tells it.
struct Mail {
  ChunkInputs items[kMailSlots];
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
  int next_count = 0;  // tokens; 0: no more items
  const auto load = [&](int turn) {
    const int slot = turn % kMailSlots;
    mbarrier_wait(bars.announced + slot * 8, turn / kMailSlots & 1);
    const ChunkInputs in = mail.items[slot];
    next_count = in.count;
    if (next_count > 0) load_raw<kGate>(raw, p, in, tid);
  };
  load(0);
#pragma unroll 1
  for (int turn = 0; next_count > 0; ++turn) {
    prep.run(
        raw, next_count, turn,
        [&] {
          if (turn > 0) mbarrier_wait(bars.free, (turn - 1) & 1);
        },
        [&] { load(turn + 1); });
    fence_proxy_async_shared();
    __syncwarp();
    if ((tid & 31) == 0) mbarrier_arrive(bars.complete);
  }
}

// --- preparing CTA, warpgroup 3: a warp hands out the items of a warpgroup and carries its slots to the rings --------
// Chunks are prepared in the order (position in the stream, scanner), dealt in turn to all warpgroups: what is scanned
// first is prepared first, and the wait for room in a ring is always for slots that were handed out before.
template <bool kDecayF32>
__device__ __forceinline__ void move_slots(const RingParams& p, const Schedule& c, uint32_t base, Mail& mail,
                                           const PrepBarriers& bars, int group, int groups, int l) {
  const int scanners = c.scanners, depth = c.depth, step_at = groups / scanners,
            step_scanner = groups - step_at * scanners;
  struct Cursor {
    int at, scanner;
  };
  const auto exists = [&](const Cursor& x) { return c.chunk[x.scanner] + x.at < c.chunk[x.scanner + 1]; };
  const auto advance = [&](Cursor& x) {  // to the next item, or past the end
    do {
      x.at += step_at, x.scanner += step_scanner;
      if (x.scanner >= scanners) x.scanner -= scanners, ++x.at;
    } while (x.at < c.longest && !exists(x));
  };
  Cursor now{group / scanners, group % scanners};
  if (now.at < c.longest && !exists(now)) advance(now);
  Cursor ahead = now;  // of the next item to announce
  const auto announce = [&](int turn) {
    Place place;
    if (ahead.at < c.longest) {
      place = place_of(p, c.rows, chunk_number(c, ahead.scanner, ahead.at), l);
      advance(ahead);
    }
    const ChunkInputs in = inputs_of<kDecayF32>(p, place.head, place.token, place.count);
    if (l == 0) {
      mail.items[turn % kMailSlots] = in;
      mbarrier_arrive(bars.announced + turn % kMailSlots * 8);
    }
    __syncwarp();
  };
  for (int turn = 0; turn < kMailSlots - 1; ++turn) announce(turn);
#pragma unroll 1
  for (int turn = 0; now.at < c.longest; ++turn, advance(now)) {
    announce(turn + kMailSlots - 1);
    if (l == 0) {
      const int slot = now.at % depth;
      const uint32_t* consumed = p.consumed + now.scanner * kConsumedPitch;
      const auto room = [&] {
        return static_cast<int>(min(ld_relaxed_gpu(consumed), ld_relaxed_gpu(consumed + 1))) - (now.at - depth + 1);
      };
      int enough = room();  // asked early: the answer takes a while
      while (!mbarrier_try_wait(bars.complete, turn & 1)) __nanosleep(100);
#ifdef KADENCE_DEBUG_WAITS
      int polls = 0;
#endif
      while (kProbe != 1 && enough < 0) {
        // About as long as the scan needs to get there: eager polls of many warps slow the whole L2 cache down.
        __nanosleep(min(-enough, 32) * 400);
        enough = room();
#ifdef KADENCE_DEBUG_WAITS
        if (++polls > (1 << 23)) __trap();
#endif
      }
      fence_proxy_async_global();
      bulk_store(p.slots + static_cast<size_t>(now.scanner * depth + slot) * Slot::kBytes, base, Slot::kBytes,
                 policy_keep());
      bulk_commit();
      bulk_wait_read<0>();
      mbarrier_arrive(bars.free);
      bulk_wait<0>();
      fence_proxy_async_global();
      st_release_gpu(p.ready + now.scanner * kReadyPitch + slot, static_cast<uint32_t>(now.at + 1));
    }
    __syncwarp();
  }
}

template <KdaGate kGate, bool kExact, bool kDecayF32>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ char raw_shared[];
  const uint32_t shared = (shared_address(raw_shared) + 1023) & ~1023u;
  char* aligned = raw_shared + (shared - shared_address(raw_shared));
  const int tid = threadIdx.x, group = tid >> 7, cta = blockIdx.x;
  int* schedule = reinterpret_cast<int*>(aligned + kSharedSchedule);
  for (int i = tid; i < static_cast<int>(sizeof(Schedule) / 4); i += kThreads)
    schedule[i] = reinterpret_cast<const int*>(p.schedule)[i];
  __syncthreads();
  const Schedule& c = *reinterpret_cast<const Schedule*>(schedule);
  if (tid == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      mbarrier_init(shared + kSharedBarriers + i * 8, 1);
      mbarrier_init(shared + kSharedBarriers + (kScanStages + i) * 8, 4 * c.width);
    }
    for (int h = 0; h < 2; ++h) {
      const StoreBarriers bars(shared, h);
      for (int i = 0; i < 2; ++i) mbarrier_init(bars.out_full + i * 8, 4), mbarrier_init(bars.out_free + i * 8, 1);
      mbarrier_init(bars.state_full, 4), mbarrier_init(bars.state_free, 1);
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
  if (cta < c.scan_ctas) {
    const int scanner = c.width == 2 ? cta : cta >> 1;
    if (group < 2) {
      setmaxnreg_inc<kScanRegisters>();
      if (kProbe != 1 && group < c.width) scan_items(p, c, shared, scanner, c.width == 2 ? group : cta & 1, tid);
    } else if (group < kMoveGroup) {
      setmaxnreg_dec<kIdleRegisters>();
    } else {
      setmaxnreg_dec<kLoadRegisters>();
      const int warp = (tid >> 5) & 3, first = c.width == 2 ? 0 : cta & 1;
      if (kProbe != 1 && warp == 0)
        load_stages(p, c, shared, scanner, first, tid & 31);
      else if (kProbe != 1 && warp <= c.width)
        store_items(p, c, shared, reinterpret_cast<EventNote*>(aligned + kSharedNotes) + 2 * (warp - 1), scanner,
                    warp - 1, first + warp - 1, tid & 31);
    }
  } else {
    const int ctas = static_cast<int>(gridDim.x) - c.scan_ctas, index = cta - c.scan_ctas;
    if (group < kPrepGroups) {
      setmaxnreg_inc<kPrepRegisters>();
      const int offset = group * Prep::kBytes;
      zero_spans(p, c, group * ctas + index, kPrepGroups * ctas, tid & 127);
      if (kProbe != 2 && c.longest > 0)
        prepare<kGate, kExact, kDecayF32>(p, shared + offset,
                                          *reinterpret_cast<const Mail*>(aligned + offset + Prep::kMail),
                                          PrepBarriers(shared, group), tid & 127, group + 1);
    } else {
      setmaxnreg_dec<kMoveRegisters>();
      const int mine = (tid >> 5) & 3, offset = mine * Prep::kBytes;
      if (kProbe != 2 && mine < kPrepGroups && c.longest > 0)
        move_slots<kDecayF32>(p, c, shared + offset, *reinterpret_cast<Mail*>(aligned + offset + Prep::kMail),
                              PrepBarriers(shared, mine), mine * ctas + index, kPrepGroups * ctas, tid & 31);
    }
  }
}

}  // namespace kadence::ops::cuda::sm90::extend
