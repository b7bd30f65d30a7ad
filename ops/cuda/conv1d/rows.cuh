// Reading the rows of device metadata: every value is checked before it is used. The rules are those of
// ops/kda_rows.h, for many threads.
#pragma once

#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cuda {

struct RowTable {
  KdaMetadata meta;
  bool seq_int64 = false;
  int64_t tokens = 0;
  int64_t in_slots = 0, out_slots = 0, ckpt_slots = 0;
  int32_t max_checkpoints = 0;  // length of the checkpoint arrays
};

__device__ __forceinline__ int64_t row_count(const RowTable& p) {
  if (!p.meta.rows_device) return p.meta.rows;
  const int64_t actual = *p.meta.rows_device;
  return actual < 0 ? 0 : actual < p.meta.rows ? actual : p.meta.rows;
}

__device__ __forceinline__ int64_t seq_at(const RowTable& p, int64_t i) {
  return p.seq_int64 ? static_cast<const int64_t*>(p.meta.seq_begin)[i]
                     : static_cast<const int32_t*>(p.meta.seq_begin)[i];
}

// Checkpoints of all rows: entries beyond are never read.
__device__ __forceinline__ int32_t checkpoint_count(const RowTable& p, int64_t rows) {
  if (!p.meta.ckpt_begin) return 0;
  const int32_t total = p.meta.ckpt_begin[rows];
  return total < p.max_checkpoints ? total : p.max_checkpoints;
}

__device__ __forceinline__ bool bad_depth(const RowTable& p, int32_t m, int32_t first, int64_t length) {
  const int64_t depth = p.meta.ckpt_depth[m];
  const int32_t slot = p.meta.ckpt_slot[m];
  return depth <= 0 || depth % kChunkTokens != 0 || depth > length || slot < -1 || slot >= p.ckpt_slots ||
         (m > first && p.meta.ckpt_depth[m - 1] >= depth);
}

// Whether the offsets, slots and checkpoints of row i are right; serial. `covered` = end of the last good row before.
__device__ inline KdaRowStatus judge_row(const RowTable& p, int64_t i, int32_t checkpoints, int64_t covered) {
  const int64_t begin = seq_at(p, i), end = seq_at(p, i + 1);
  if (begin < covered || end < begin || end > p.tokens) return KdaRowStatus::kBadOffsets;
  const int32_t in = p.meta.state_in[i], out = p.meta.state_out[i];
  if (in < -1 || in >= p.in_slots) return KdaRowStatus::kBadStateIn;
  if (out < -1 || out >= p.out_slots) return KdaRowStatus::kBadStateOut;
  if (p.meta.ckpt_begin) {
    const int32_t c0 = p.meta.ckpt_begin[i], c1 = p.meta.ckpt_begin[i + 1];
    if (c0 < 0 || c1 < c0 || c1 > checkpoints) return KdaRowStatus::kBadCheckpoint;
    for (int32_t m = c0; m < c1; ++m)
      if (bad_depth(p, m, c0, end - begin)) return KdaRowStatus::kBadCheckpoint;
  }
  return KdaRowStatus::kOk;
}

}  // namespace kadence::ops::cuda
