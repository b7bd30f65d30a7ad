// Shapes and memory layouts of the Hopper extend kernel; the symbols are those of README.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kadence::ops::cuda::sm90::extend {

inline constexpr int kChunk = 32;  // tokens of one chunk; two chunks make a cell of the 64-token grid
inline constexpr int kDim = 128;   // K = V

// --- a factor slot, the same bytes in global and in shared memory ----------------------------------------------------
// bf16 unless said otherwise; all tiles in the swizzles that wgmma reads.
struct Slot {
  static constexpr int kKeyQuery = 0;  // key half h at 8192 h: 64 rows of 128 B; rows 0-31 -kd[token], 32-63 qd[token]
  static constexpr int kUpdate = 16384;  // key half h at 4096 h: 32 rows of 128 B, W[token][64 keys]
  static constexpr int kMix = 24576;     // 32 rows of 64 B, M'[i][j], 64-byte swizzle
  static constexpr int kDecay = 26624;   // fp32[128], 2^(sum of the chunk's log2 decay)
  static constexpr int kBytes = 27136;   // what travels
  static constexpr int kPadded = 27648;  // room in shared memory (a multiple of 1024)
};

// --- shared memory of one CTA ----------------------------------------------------------------------------------------
inline constexpr int kScanStages = 3;
inline constexpr int kPrepGroups = 2;  // warpgroups that prepare
struct Scan {
  static constexpr int kValues = Slot::kPadded;  // 32 rows of 128 B: V of 64 value channels
  static constexpr int kStageBytes = Slot::kPadded + 4096;
  static constexpr int kOutBytes = 4 * 1024;  // 1 KB a warp
};
// Of one preparing warpgroup: its slot image first, then temporaries.
struct Prep {
  static constexpr int kUpdateKeys = Slot::kPadded;       // fp16, key half h at 4096 h: 32 rows, k 2^(c_end - c)
  static constexpr int kCornerKeys = kUpdateKeys + 8192;  // bf16, half h at 2048 h: 16 rows, k 2^(c_15 - c)
  static constexpr int kSecondHalf = kCornerKeys + 4096;  // bf16, half h at 2048 h: -k, then q (+4096), anchored at 16
  static constexpr int kLower = kSecondHalf + 8192;       // fp32, two 16 x 16 blocks of -L by columns
  static constexpr int kCorner = kLower + 2048;           // fp16, 16 rows of 48 B: block (1,0) of -L
  static constexpr int kInverse = kCorner + 768;          // fp16, 32 rows of 80 B: T^T
  static constexpr int kGroupSums = kInverse + 2560;      // fp32[4][128]: log2 decay of each warp's tokens
  static constexpr int kBeta = kGroupSums + 2048;         // fp32[32], twice: by the turn's parity
  static constexpr int kNorms = kBeta + 256;              // fp32[64]: of k, of q (exact path)
  static constexpr int kMixExact = kNorms + 256;          // fp16, two blocks of 16 rows of 48 B (exact path)
  static constexpr int kMail = kMixExact + 1536;          // Mail, see kernel.cuh
  static constexpr int kMailBytes = 128;
  static constexpr int kBytes = (kMail + kMailBytes + 1023) / 1024 * 1024;
  // Overlays: k 2^-p until W is written; tables of the exact path under the slot.
  static constexpr int kInverseKeys = Slot::kUpdate;
  static constexpr int kExactDecay = 0;              // fp32[32][128]
  static constexpr int kExactKeys = 16384;           // bf16[32][128]
  static constexpr int kExactQueries = kSecondHalf;  // bf16[32][128]
};
inline constexpr int kSharedScan = kScanStages * Scan::kStageBytes;
inline constexpr int kSharedOut = kSharedScan + kPrepGroups * Prep::kBytes;
inline constexpr int kSharedBarriers = kSharedOut + Scan::kOutBytes;
inline constexpr int kMailSlots = 4;                        // items announced to a preparing warpgroup at a time
inline constexpr int kPrepBarriers = (kMailSlots + 2) * 8;  // bytes: items announced; image complete; image free
inline constexpr int kSharedPrepBarriers = kSharedBarriers + 2 * kScanStages * 8;
inline constexpr int kSharedSchedule = kSharedPrepBarriers + kPrepGroups * kPrepBarriers;

// --- threads ---------------------------------------------------------------------------------------------------------
inline constexpr int kThreads = 512;  // warpgroup 0 scans, 1 and 2 prepare, 3 moves data
inline constexpr int kScanRegisters = 208, kPrepRegisters = 136, kMoveRegisters = 32;
static_assert(kScanRegisters + kPrepGroups * kPrepRegisters + kMoveRegisters <= 512);

// --- workspace -------------------------------------------------------------------------------------------------------
inline constexpr int kMaxLanes = 128;
inline constexpr int kMaxDepth = 32;        // slots of one chain; a warp polls them at once
inline constexpr int kMaxRingSlots = 1056;  // 28.7 MB: stays in the L2 cache

// A row that is computed, in order; written by extend_rows, read by extend_ring.
struct RowInfo {
  int32_t token, len;            // first token, tokens
  int32_t state_in, state_out;   // -1 = zeros, no store
  int32_t ckpt_begin, ckpt_end;  // entries of the checkpoint list
  int32_t chunk;                 // chunks of the rows before
  int32_t weight;                // cost of the rows before, in chunks
};
struct ChunkInfo {
  int32_t token, count;  // first token; 1..32 tokens
};
struct Span {
  int32_t begin, end;  // tokens
};
// What extend_rows decides. A lane is a run of rows that are scanned one after another; chain = lane * heads + head.
struct Schedule {
  int32_t rows, chunks, spans, lanes;
  int32_t heads;       // heads scanned at once
  int32_t passes;      // times that a lane's rows are walked, each for other heads
  int32_t depth;       // slots of a chain's ring
  int32_t longest;     // chunks of the longest lane
  int32_t scan_ctas;   // CTAs 0 .. scan_ctas - 1 scan half a chain each
  int32_t prep_first;  // first CTA that prepares
  int32_t pad[6];
  int32_t lane_row[kMaxLanes + 1];
  int32_t lane_chunk[kMaxLanes + 1];
};

inline constexpr int kSharedBytes =
    kSharedSchedule + static_cast<int>(sizeof(Schedule)) + 1024;  // 1 KB to align the base
static_assert(kSharedBytes <= 232448);

// Offsets inside the workspace; a function of host facts alone.
struct Workspace {
  size_t slots = 0, schedule = 0, rows = 0, spans = 0, chunks = 0, ready = 0, consumed = 0, bytes = 0;
};

// Host facts of a launch, decided by the plan.
struct Shape {
  int32_t heads = 0;       // HV
  int32_t passes = 0;      // ceil(2 HV / CTAs)
  int32_t pass_heads = 0;  // ceil(HV / passes)
  int32_t max_lanes = 0;
  int32_t ring_slots = 0;  // of all chains
  int32_t max_depth = 0;
  int32_t ctas = 0;
};

}  // namespace kadence::ops::cuda::sm90::extend
