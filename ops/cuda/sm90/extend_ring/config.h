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

// --- CTAs ------------------------------------------------------------------------------------------------------------
// A CTA either scans (warpgroups 0 and 1 hold one state or one half of it, warpgroup 3 loads and stores) or prepares
// (warpgroups 0 to 2 compute, warpgroup 3 moves their slots).
inline constexpr int kThreads = 512;
inline constexpr int kPrepGroups = 3;
inline constexpr int kMoveGroup = kPrepGroups;
inline constexpr int kEntryRegisters = 128;  // a thread, from the launch bounds
inline constexpr int kScanRegisters = 216, kIdleRegisters = 24, kLoadRegisters = 56;
inline constexpr int kPrepRegisters = 152, kMoveRegisters = 56;
static_assert(2 * kScanRegisters + kIdleRegisters + kLoadRegisters <= 4 * kEntryRegisters);
static_assert(kPrepGroups * kPrepRegisters + kMoveRegisters <= 4 * kEntryRegisters);

// --- shared memory ---------------------------------------------------------------------------------------------------
inline constexpr int kScanStages = 4;
struct Scan {
  static constexpr int kValues = Slot::kPadded;  // 32 rows of 128 B: V of 64 value channels; the second half 4096 on
  static constexpr int kStageBytes = Slot::kPadded + 8192;
  static constexpr int kOut = kScanStages * kStageBytes;  // twice: half h at 4096 h, 32 tokens x 64 values
  // Half h at kStateBytes h: 8 KB tiles of 64 rows x 128 B. An fp32 state passes in two rounds of 64 keys each: twice
  // the room would leave preparing CTAs too little L1 cache.
  static constexpr int kState = kOut + 2 * 8192;
  static constexpr int kStateBytes = 16384;
  static constexpr int kBytes = kState + 2 * kStateBytes;
};
// Of one preparing warpgroup: its slot image first, then temporaries.
struct Prep {
  static constexpr int kUpdateKeys = Slot::kPadded;       // fp16, key half h at 4096 h: 32 rows, k 2^(c_end - c)
  static constexpr int kCornerKeys = kUpdateKeys + 8192;  // bf16, half h at 2048 h: 16 rows, k 2^(c_15 - c)
  static constexpr int kSecondHalf = kCornerKeys + 4096;  // bf16, half h at 2048 h: -k, then q (+4096), anchored at 16
  static constexpr int kLower = kSecondHalf + 8192;       // fp32, two 16 x 16 blocks of -L by columns
  static constexpr int kCorner = kLower + 2048;           // fp16, 16 rows of 48 B: block (1,0) of -L
  static constexpr int kInverse = kCorner + 768;          // fp16, 32 rows of 80 B: T^T
  static constexpr int kBeta = kInverse + 2560;           // fp32[32], twice: by the turn's parity
  static constexpr int kNorms = kBeta + 256;              // fp32[64]: of k, of q (exact path)
  static constexpr int kMixExact = kNorms + 256;          // fp16, two blocks of 16 rows of 48 B (exact path)
  static constexpr int kMail = kMixExact + 1536;          // Mail, see kernel.cuh
  static constexpr int kMailBytes = 192;
  static constexpr int kBytes = (kMail + kMailBytes + 1023) / 1024 * 1024;
  // Overlays: k 2^-p until W is written; sums until L is; tables of the exact path under the slot.
  static constexpr int kInverseKeys = Slot::kUpdate;
  static constexpr int kGroupSums = kLower;          // fp32[4][128]: log2 decay of each warp's tokens
  static constexpr int kExactDecay = 0;              // fp32[32][128]
  static constexpr int kExactKeys = 16384;           // bf16[32][128]
  static constexpr int kExactQueries = kSecondHalf;  // bf16[32][128]
};
inline constexpr int kMailSlots = 4;  // items announced to a preparing warpgroup at a time
inline constexpr int kSharedBarriers =
    kPrepGroups * Prep::kBytes > Scan::kBytes ? kPrepGroups* Prep::kBytes : Scan::kBytes;
inline constexpr int kPrepBarriers = (kMailSlots + 2) * 8;  // bytes: items announced; image complete; image free
inline constexpr int kSharedPrepBarriers = kSharedBarriers + 2 * kScanStages * 8;
inline constexpr int kStoreBarriers = 48;  // bytes a half: outputs complete, free (two each); state complete, free
inline constexpr int kSharedStoreBarriers = kSharedPrepBarriers + kPrepGroups * kPrepBarriers;
inline constexpr int kNoteBytes = 48;  // two EventNotes, of half h at kNoteBytes h
inline constexpr int kSharedNotes = kSharedStoreBarriers + 2 * kStoreBarriers;
inline constexpr int kSharedSchedule = kSharedNotes + 2 * kNoteBytes;

// --- workspace -------------------------------------------------------------------------------------------------------
inline constexpr int kMaxScanners = 128;
inline constexpr int kMaxDepth = 48;  // slots of one scanner's ring
// 16 MB: more would be evicted by what streams through the L2 cache, and come back from memory.
inline constexpr int kMaxRingSlots = 600;
// Words from a scanner's flags to the next's: whole cache lines, since many CTAs poll them.
inline constexpr int kReadyPitch = 64, kConsumedPitch = 32;
static_assert(kMaxDepth <= kReadyPitch);

// A row that is computed, in order; written by extend_rows, read by extend_ring.
struct RowInfo {
  int32_t token, len;            // first token, tokens
  int32_t state_in, state_out;   // -1 = zeros, no store
  int32_t ckpt_begin, ckpt_end;  // entries of the checkpoint list
  int32_t chunk;                 // chunks of the rows before
  int32_t weight;                // cost of the rows before, in chunks
};
struct Span {
  int32_t begin, end;  // tokens
};
// What extend_rows decides. An item is a row and a value head, numbered row * heads + head; a chunk of an item is
// numbered in the same order. A scanner walks a run of chunks, its stream. Where a run begins inside an item, that part
// closes the stream, and its beginning opens the stream of the scanner before: all scanners have the same load, and
// the state has time to get from one to the other.
struct Schedule {
  int32_t rows, spans;
  int32_t scanners;
  int32_t width;  // warpgroups of a scanning CTA at work: 2 = a scanner is one CTA, 1 = two CTAs of half a state each
  int32_t scan_ctas;  // CTAs 0 .. scan_ctas - 1 scan, the others prepare
  int32_t depth;      // slots of a scanner's ring
  int32_t longest;    // chunks of the longest stream
  int32_t pad;
  int32_t item[kMaxScanners + 1];   // where a scanner's run begins: item,
  int32_t cut[kMaxScanners + 1];    // chunks of the item that belong to the scanner before,
  int32_t tail[kMaxScanners + 1];   // and the others if cut > 0, else 0
  int32_t chunk[kMaxScanners + 1];  // number of the run's first chunk
};
// Measured cost of a chunk and head in nanoseconds, for the choice of `scanners` and `width` alone.
inline constexpr int kCostScanWhole = 900, kCostScanHalf = 545, kCostPrep = 1950;
inline constexpr int kRowWeight = 6;  // of loading and storing a state, in chunks
inline constexpr int kMinPiece = 8;   // chunks on each side of a cut

inline constexpr int kSharedBytes =
    kSharedSchedule + static_cast<int>(sizeof(Schedule)) + 1024;  // 1 KB to align the base
static_assert(kSharedBytes <= 232448);

// Offsets inside the workspace; a function of host facts alone.
struct Workspace {
  size_t slots = 0, handoff = 0, schedule = 0, rows = 0, spans = 0, ready = 0, consumed = 0, flags = 0, bytes = 0;
};

// Host facts of a launch, decided by the plan.
struct Shape {
  int32_t heads = 0;  // HV
  int32_t ctas = 0;
  int32_t max_scanners = 0;
  int32_t ring_slots = 0;  // of all scanners
  int32_t max_depth = 0;
};

}  // namespace kadence::ops::cuda::sm90::extend
