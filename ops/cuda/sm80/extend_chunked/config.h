// Sizes, layouts and arguments of the chunked extend kernels; symbols and the algebra are in ../README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cuda::sm80 {

inline constexpr int kChunk = 32;  // tokens; two chunks make a cell of the 64-token grid
inline constexpr int kDim = 128;   // K = V
inline constexpr int kThreads = 128;
inline constexpr int kPlanThreads = 512;
inline constexpr int kStages = 2;     // slots in shared memory of a scanning CTA
inline constexpr int kCtasPerSm = 2;  // what the registers are dealt for: a third costs spills, see ../README.md

// Factors of one chunk and value head: the same bytes in global and in shared memory.
struct Slot {
  // fp16 rows of 128 keys, one a token. The 16-byte units of odd rows are swapped by 4 (see row_unit), so that eight
  // lanes that read two rows at once touch all banks.
  static constexpr int kKeys = 0;          // -k 2^(c - m)
  static constexpr int kQueries = 8192;    // q 2^(c - m)
  static constexpr int kUpdate = 16384;    // W as B fragments: 16 bytes at [token block 2][tile pair 8][lane 32]
  static constexpr int kMix = 24576;       // M' in fp16 as B fragments: blocks (0,0), (1,0), (1,1), [lane 32] each
  static constexpr int kDecay = 26112;     // fp32[128], 2^c_e
  static constexpr int kExponent = 26624;  // int32[32]: m + kExponentBias, + kFineFlag if W is fp16, else bf16
  static constexpr int kBytes = 26752;
};
inline constexpr int kExponentBias = 64, kFineFlag = 256;
inline constexpr int kLowestExponent = -24;        // of m
inline constexpr int kLowestUpdateExponent = -13;  // of n; T 2^(n_i - n_j) stays in fp16

// Shared memory of a preparing CTA. Tiles are rows of 256 bytes, swapped like a slot's.
struct Prep {
  static constexpr int kKeys = 0;             // k 2^p of 32 tokens
  static constexpr int kQueries = 8192;       // q 2^p
  static constexpr int kInverseKeys = 16384;  // k 2^-p
  static constexpr int kCornerKeys = 24576;   // k 2^(c_15 - c), 16 tokens
  // fp16, k 2^(c_e - c - n), units in the order of tiles, swapped by token % 8
  static constexpr int kUpdateKeys = 28672;
  static constexpr int kLower = 36864;           // fp32, two 16 x 16 blocks of -L by columns
  static constexpr int kCorner = 38912;          // fp16, 16 rows of 48 B: block (1,0) of -L
  static constexpr int kInverse = 39680;         // fp16, 32 rows of 80 B: T^T
  static constexpr int kInverseLifted = 42240;   // the same, T[i][j] 2^(n_i - n_j)
  static constexpr int kBeta = 44800;            // fp32[32]
  static constexpr int kSums = 44928;            // fp32[4][128]: log2 decay of each warp's tokens
  static constexpr int kMixExact = 46976;        // fp16, two blocks of 16 rows of 48 B (exact path)
  static constexpr int kNorms = 48512;           // fp32[64]: of k, of q (exact path)
  static constexpr int kUpdateExponent = 48768;  // int32[32]: n
  static constexpr int kDiagonal = 48896;        // fp32[32]: q k of a token
  static constexpr int kBytes = 49024;
  // Tables of the exact path, before the tiles are written.
  static constexpr int kExactDecay = 0;        // fp32[32][128]: 2^g
  static constexpr int kExactKeys = 16384;     // as stored, [32][128]
  static constexpr int kExactQueries = 28672;  // as stored, [32][128]
};
// A stage of a scanning CTA: a slot, then the values of 64 channels: 32 rows of 128 bytes, a warp's 32 of row r at
// 32 (w ^ (r % 4)).
struct Stage {
  static constexpr int kValues = Slot::kBytes;
  static constexpr int kBytes = Slot::kBytes + 4096;
};
inline constexpr int kSharedBytes = kStages * Stage::kBytes > Prep::kBytes ? kStages* Stage::kBytes : Prep::kBytes;
static_assert(kSharedBytes <= 99 * 1024, "sm_89 and sm_120 have no more");

// --- rows and windows ------------------------------------------------------------------------------------------------
// Good rows with tokens are dealt to groups of `group` rows, long ones first, sorted inside their group. A group's
// chunks are numbered level by level: chunk 0 of its rows, chunk 1 of those that have one, ... Positions run through
// group after group; a window is `columns` successive positions (times the value heads).
struct RowEntry {
  int32_t token, len;     // first token, tokens
  int32_t chunks, below;  // chunks; positions of the group on levels below `chunks`
  int32_t state_in, state_out;
  int32_t ckpt_begin, ckpt_end;
};
struct Span {
  int64_t begin, end;  // tokens that belong to no good row
};
struct EmptyRow {
  int32_t state_in, state_out;
};
struct Header {
  int32_t rows, groups, positions, spans, empty_rows, pad[3];
};
struct Tables {
  Header* header = nullptr;
  RowEntry* rows = nullptr;        // [max_rows]
  int32_t* group_begin = nullptr;  // [groups + 1] positions
  Span* spans = nullptr;           // [max_rows + 2]
  EmptyRow* empty_rows = nullptr;  // [max_rows]
  int32_t* judged = nullptr;       // [max_rows] KdaRowStatus
};

// Host facts of a plan's runs.
struct Shape {
  int32_t heads = 0;     // HV
  int32_t columns = 0;   // positions of a window
  int32_t group = 0;     // rows of a group
  int32_t buffers = 0;   // windows of slots in memory, 1 or 2
  bool carries = false;  // some row may cross from a window to the next
};
// Offsets in the workspace.
struct Workspace {
  size_t header = 0, rows = 0, group_begin = 0, spans = 0, empty_rows = 0, judged = 0, slots = 0, carry = 0, bytes = 0;
};
inline constexpr int kMaxGroup = 32;  // a warp's lanes look at a group

// --- arguments of the kernels ----------------------------------------------------------------------------------------
struct StatePool {
  void* base;
  int64_t pitch;  // elements from a slot to the next
  DType dtype;
};
struct RowsParams {
  KdaMetadata meta;
  int64_t tokens, in_slots, out_slots, ckpt_slots;
  int32_t max_checkpoints, group;
  bool seq_int64;
  Tables tables;
};
struct WindowParams {
  const void *q, *k, *v, *decay, *beta;
  int64_t q_pitch, k_pitch, v_pitch, decay_pitch, beta_pitch, out_pitch;  // elements
  const float *a_log, *dt_bias;
  void* out;
  float scale, lower_bound;
  KdaGate gate;
  int32_t heads, heads_per_key;  // HV, HV / H
  bool l2norm, beta_fp32, beta_given, beta_doubled;
  StatePool state_in, state_out, checkpoints;
  const int32_t *ckpt_depth, *ckpt_slot;
  Tables tables;
  int32_t group, columns;
  uint8_t* slots;                 // [2][columns][heads] slots: of even and of odd windows
  float* carry;                   // [2][group][heads] states: after even and after odd windows
  int32_t window;                 // this launch scans window - 1 and prepares window
  int32_t candidates, scan_ctas;  // rows looked at by scanning CTAs; their number: 2 * heads * candidates, or 0
  int32_t prep_ctas;              // heads * columns, or 0
};

}  // namespace kadence::ops::cuda::sm80
