// Rows of the metadata, read and judged on the device by a kernel of one CTA that runs before the windows.
#pragma once

#include "ops/cuda/common/status.cuh"
#include "ops/cuda/conv1d/rows.cuh"
#include "ops/cuda/sm80/extend_chunked/config.h"
#include "ops/cuda/sm80/extend_chunked/warp.cuh"

namespace kadence::ops::cuda::sm80 {

// Sums `x` over the CTA's threads before this one. `scratch` holds kPlanThreads / 32 + 1.
__device__ __forceinline__ int exclusive_sum(int x, int* scratch, int* total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = kPlanThreads / 32;
  int sum = x;
  for (int d = 1; d < 32; d <<= 1) {
    const int y = __shfl_up_sync(kAllLanes, sum, d);
    if (lane >= d) sum += y;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < warps; ++i) {
    before += i < warp ? scratch[i] : 0;
    all += scratch[i];
  }
  __syncthreads();
  *total = all;
  return before + sum - x;
}

// Rows of about equal length share a bucket; long ones come first.
inline constexpr int kBuckets = 128;
__device__ __forceinline__ int bucket_of(int chunks) {  // chunks >= 1
  const int log = 31 - __clz(chunks);
  const int quarter = log >= 2 ? (chunks >> (log - 2)) & 3 : 0;
  return kBuckets - 1 - (4 * log + quarter);
}

__global__ void __launch_bounds__(kPlanThreads) rows_kernel(const __grid_constant__ RowsParams p) {
  __shared__ int scratch[kPlanThreads / 32 + 1], bucket[kBuckets], spans, empty_rows, first_bad;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  RowTable table;
  table.meta = p.meta, table.seq_int64 = p.seq_int64, table.tokens = p.tokens;
  table.in_slots = p.in_slots, table.out_slots = p.out_slots, table.ckpt_slots = p.ckpt_slots;
  table.max_checkpoints = p.max_checkpoints;
  const Tables& t = p.tables;
  const int rows = static_cast<int>(row_count(table));
  const int checkpoints = rows > 0 ? max(checkpoint_count(table, rows), 0) : 0;
  if (tid == 0) spans = 0, empty_rows = 0, first_bad = rows;
  for (int i = tid; i < kBuckets; i += kPlanThreads) bucket[i] = 0;

  // Judgement: orderly metadata in parallel, offsets or lists that step back by one thread.
  bool disorder = false;
  for (int i = tid; i < rows; i += kPlanThreads) {
    disorder |= seq_at(table, i) < 0 || seq_at(table, i + 1) < seq_at(table, i);
    if (p.meta.ckpt_begin) disorder |= p.meta.ckpt_begin[i] < 0 || p.meta.ckpt_begin[i + 1] < p.meta.ckpt_begin[i];
  }
  disorder = __syncthreads_or(disorder);
  const auto add_span = [&](int64_t begin, int64_t end) {
    if (end > p.tokens) end = p.tokens;
    if (end > begin) t.spans[atomicAdd(&spans, 1)] = {begin, end};
  };
  if (disorder) {
    if (tid == 0) {
      int64_t covered = 0;
      for (int i = 0; i < rows; ++i) {
        const KdaRowStatus status = judge_row(table, i, checkpoints, covered);
        t.judged[i] = static_cast<int32_t>(status);
        if (status != KdaRowStatus::kOk) {
          first_bad = min(first_bad, i);
          continue;
        }
        add_span(covered, seq_at(table, i));
        covered = seq_at(table, i + 1);
      }
      add_span(covered, p.tokens);
    }
    __syncthreads();
  } else {
    for (int i = tid; i < rows; i += kPlanThreads) {
      const int32_t in = p.meta.state_in[i], out = p.meta.state_out[i];
      KdaRowStatus status = KdaRowStatus::kOk;
      if (seq_at(table, i + 1) > p.tokens)
        status = KdaRowStatus::kBadOffsets;
      else if (in < -1 || in >= p.in_slots)
        status = KdaRowStatus::kBadStateIn;
      else if (out < -1 || out >= p.out_slots)
        status = KdaRowStatus::kBadStateOut;
      else if (p.meta.ckpt_begin && p.meta.ckpt_begin[i + 1] > checkpoints)
        status = KdaRowStatus::kBadCheckpoint;
      t.judged[i] = static_cast<int32_t>(status);
    }
    __syncthreads();
    for (int m = tid; m < checkpoints; m += kPlanThreads) {
      int lo = 0, hi = rows;  // the last row that begins at or before m
      while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        (p.meta.ckpt_begin[mid] <= m ? lo : hi) = mid;
      }
      const int32_t begin = p.meta.ckpt_begin[lo], end = p.meta.ckpt_begin[lo + 1];
      if (m < begin || m >= end || end > checkpoints || t.judged[lo] != 0) continue;
      if (bad_depth(table, m, begin, seq_at(table, lo + 1) - seq_at(table, lo)))
        t.judged[lo] = static_cast<int32_t>(KdaRowStatus::kBadCheckpoint);  // by several threads, the same value
    }
    __syncthreads();
    for (int i = tid; i < rows; i += kPlanThreads)
      if (t.judged[i] != 0) {
        atomicMin(&first_bad, i);
        add_span(seq_at(table, i), seq_at(table, i + 1));
      }
    if (tid == 0) {
      add_span(0, rows > 0 ? seq_at(table, 0) : p.tokens);
      if (rows > 0) add_span(seq_at(table, rows), p.tokens);
    }
    __syncthreads();
  }
  if (tid == 0 && first_bad < rows) report_row(p.meta.status, first_bad, t.judged[first_bad]);

  // Deal the good rows to places by length.
  const auto length = [&](int i) { return static_cast<int>(seq_at(table, i + 1) - seq_at(table, i)); };
  for (int i = tid; i < rows; i += kPlanThreads) {
    if (t.judged[i] != 0) continue;
    const int len = length(i);
    if (len > 0)
      atomicAdd(&bucket[bucket_of((len + kChunk - 1) / kChunk)], 1);
    else
      t.empty_rows[atomicAdd(&empty_rows, 1)] = {p.meta.state_in[i], p.meta.state_out[i]};
  }
  __syncthreads();
  int count;
  {
    const int mine = tid < kBuckets ? bucket[tid] : 0, before = exclusive_sum(mine, scratch, &count);
    if (tid < kBuckets) bucket[tid] = before;
  }
  __syncthreads();
  for (int i = tid; i < rows; i += kPlanThreads) {
    const int len = t.judged[i] == 0 ? length(i) : 0;
    if (len == 0) continue;
    RowEntry e;
    e.token = static_cast<int32_t>(seq_at(table, i)), e.len = len, e.chunks = (len + kChunk - 1) / kChunk, e.below = 0;
    e.state_in = p.meta.state_in[i], e.state_out = p.meta.state_out[i];
    e.ckpt_begin = p.meta.ckpt_begin ? p.meta.ckpt_begin[i] : 0;
    e.ckpt_end = p.meta.ckpt_begin ? p.meta.ckpt_begin[i + 1] : 0;
    t.rows[atomicAdd(&bucket[bucket_of(e.chunks)], 1)] = e;
  }
  __syncthreads();

  // Sort each group by length and number its levels; a warp a group.
  const int groups = (count + p.group - 1) / p.group;
  for (int g = warp; g < groups; g += kPlanThreads / 32) {
    const int first = g * p.group, size = min(p.group, count - first);
    RowEntry e{};
    if (lane < size) e = t.rows[first + lane];
    __syncwarp();
    int rank = 0, below = 0;
    for (int j = 0; j < size; ++j) {
      const int other = __shfl_sync(kAllLanes, e.chunks, j);
      rank += other > e.chunks || (other == e.chunks && j < lane);
      below += min(other, e.chunks);
    }
    if (lane < size) {
      e.below = below;
      t.rows[first + rank] = e;
    }
    int all = lane < size ? e.chunks : 0;
    for (int d = 16; d > 0; d >>= 1) all += __shfl_xor_sync(kAllLanes, all, d);
    if (lane == 0) t.group_begin[g + 1] = all;
  }
  __syncthreads();
  int positions = 0;
  for (int start = 0; start < groups; start += kPlanThreads) {
    const int g = start + tid, mine = g < groups ? t.group_begin[g + 1] : 0;
    int total;
    const int before = exclusive_sum(mine, scratch, &total);
    if (g < groups) t.group_begin[g + 1] = positions + before + mine;
    positions += total;
  }
  if (tid == 0) {
    t.group_begin[0] = 0;
    t.header->rows = count, t.header->groups = groups, t.header->positions = positions;
    t.header->spans = spans, t.header->empty_rows = empty_rows;
  }
}

}  // namespace kadence::ops::cuda::sm80
