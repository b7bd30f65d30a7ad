// Reads the metadata of one extend call on the device: judges the rows, deals them to scanners, lists the token spans
// that belong to no good row, and clears the rings' flags. One CTA.
#pragma once

#include <climits>

#include "ops/cuda/common/status.cuh"
#include "ops/cuda/sm90/extend_ring/deal.h"
#include "ops/cuda/sm90/extend_ring/params.h"
#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {

inline constexpr int kRowThreads = 1024;
static_assert(kMaxScanners < kRowThreads);

struct RowSums {
  int32_t rows, chunks, weight;
};
__device__ __forceinline__ RowSums operator+(RowSums a, RowSums b) {
  return {a.rows + b.rows, a.chunks + b.chunks, a.weight + b.weight};
}
__device__ __forceinline__ RowSums shuffle_up(RowSums x, int d) {
  return {__shfl_up_sync(~0u, x.rows, d), __shfl_up_sync(~0u, x.chunks, d), __shfl_up_sync(~0u, x.weight, d)};
}

// Exclusive prefix over the CTA; *total gets the sum. `scratch` has room for 33 entries.
__device__ __forceinline__ RowSums exclusive_sum(RowSums x, RowSums* scratch, RowSums* total) {
  const int l = threadIdx.x & 31, w = threadIdx.x >> 5;
  RowSums inclusive = x;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const RowSums y = shuffle_up(inclusive, d);
    if (l >= d) inclusive = inclusive + y;
  }
  if (l == 31) scratch[w] = inclusive;
  __syncthreads();
  if (w == 0) {
    RowSums s = scratch[l], sum = s;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const RowSums y = shuffle_up(sum, d);
      if (l >= d) sum = sum + y;
    }
    scratch[l] = {sum.rows - s.rows, sum.chunks - s.chunks, sum.weight - s.weight};
    if (l == 31) scratch[32] = sum;
  }
  __syncthreads();
  const RowSums before = scratch[w];
  *total = scratch[32];
  __syncthreads();
  return {before.rows + inclusive.rows - x.rows, before.chunks + inclusive.chunks - x.chunks,
          before.weight + inclusive.weight - x.weight};
}

struct RowReader {
  const RowsParams& p;
  const int rows, total_ckpts;
  __device__ int64_t offset(int i) const {
    return p.seq_int64 ? static_cast<const int64_t*>(p.seq_begin)[i] : static_cast<const int32_t*>(p.seq_begin)[i];
  }
  // Offsets and slots; the checkpoint entries are judged elsewhere.
  __device__ KdaRowStatus judge(int i, int64_t covered) const {
    const int64_t begin = offset(i), end = offset(i + 1);
    if (begin < covered || end < begin || end > p.tokens) return KdaRowStatus::kBadOffsets;
    if (p.state_in[i] < -1 || p.state_in[i] >= p.in_slots) return KdaRowStatus::kBadStateIn;
    if (p.state_out[i] < -1 || p.state_out[i] >= p.out_slots) return KdaRowStatus::kBadStateOut;
    if (p.ckpt_begin) {
      const int32_t b = p.ckpt_begin[i], e = p.ckpt_begin[i + 1];
      if (b < 0 || e < b || e > total_ckpts) return KdaRowStatus::kBadCheckpoint;
    }
    return KdaRowStatus::kOk;
  }
  __device__ bool good_checkpoint(int64_t length, int first, int m) const {
    const int64_t depth = p.ckpt_depth[m], previous = m > first ? p.ckpt_depth[m - 1] : 0;
    return depth > previous && depth % kChunkTokens == 0 && depth <= length && p.ckpt_slot[m] >= -1 &&
           p.ckpt_slot[m] < p.ckpt_slots;
  }
};

__global__ void __launch_bounds__(kRowThreads, 1) rows_kernel(const __grid_constant__ RowsParams p) {
  __shared__ RowSums scratch[33];
  __shared__ int span_count;
  __shared__ Schedule schedule;
  const int tid = threadIdx.x;
  const int rows = p.rows_device ? min(max(*p.rows_device, 0), p.rows) : p.rows;
  const int total_ckpts = p.ckpt_begin && rows > 0 ? min(max(p.ckpt_begin[rows], 0), p.max_checkpoints) : 0;
  const RowReader reader{p, rows, total_ckpts};

  if (tid == 0) span_count = 0;
  for (int i = tid; i < p.shape.max_scanners * kReadyPitch; i += kRowThreads) p.ready[i] = 0;
  for (int i = tid; i < p.shape.max_scanners * kConsumedPitch; i += kRowThreads) p.consumed[i] = 0;
  for (int i = tid; i < (p.shape.max_scanners + 1) * 2; i += kRowThreads) p.handoff_flags[i] = 0;

  // Orderly metadata is judged in parallel; offsets or lists that step back are walked row by row.
  bool orderly = true;
  for (int i = tid; i < rows; i += kRowThreads) {
    orderly &= reader.offset(i + 1) >= reader.offset(i);
    if (p.ckpt_begin) orderly &= p.ckpt_begin[i] >= 0 && p.ckpt_begin[i + 1] >= p.ckpt_begin[i];
  }
  if (rows > 0) orderly &= reader.offset(0) >= 0;
  orderly = __syncthreads_and(orderly);

  // Pass 1: state_out of a bad row is marked in row_info[i].len = -status; good rows keep len.
  if (orderly) {
    for (int i = tid; i < rows; i += kRowThreads) {
      const KdaRowStatus s = reader.judge(i, 0);
      p.row_info[i].len = s == KdaRowStatus::kOk ? static_cast<int32_t>(reader.offset(i + 1) - reader.offset(i))
                                                 : -static_cast<int32_t>(s);
    }
    __syncthreads();
    for (int m = tid; m < total_ckpts; m += kRowThreads) {
      int lo = 0, hi = rows - 1;  // the row whose list holds entry m
      while (lo < hi) {
        const int mid = (lo + hi + 1) >> 1;
        if (p.ckpt_begin[mid] <= m)
          lo = mid;
        else
          hi = mid - 1;
      }
      if (m < p.ckpt_begin[lo] || m >= p.ckpt_begin[lo + 1]) continue;
      const int64_t length = reader.offset(lo + 1) - reader.offset(lo);
      // The first reason stands; concurrent writes are all this one.
      if (p.row_info[lo].len >= 0 && !reader.good_checkpoint(length, p.ckpt_begin[lo], m))
        atomicMin(&p.row_info[lo].len, -static_cast<int32_t>(KdaRowStatus::kBadCheckpoint));
    }
  } else if (tid == 0) {
    int64_t covered = 0;
    for (int i = 0; i < rows; ++i) {
      KdaRowStatus s = reader.judge(i, covered);
      if (s == KdaRowStatus::kOk && p.ckpt_begin)
        for (int m = p.ckpt_begin[i]; m < p.ckpt_begin[i + 1]; ++m)
          if (!reader.good_checkpoint(reader.offset(i + 1) - reader.offset(i), p.ckpt_begin[i], m))
            s = KdaRowStatus::kBadCheckpoint;
      if (s == KdaRowStatus::kOk) covered = reader.offset(i + 1);
      p.row_info[i].len = s == KdaRowStatus::kOk ? static_cast<int32_t>(reader.offset(i + 1) - reader.offset(i))
                                                 : -static_cast<int32_t>(s);
    }
  }
  __syncthreads();

  // Pass 2: the table of good rows, in place (a row moves to its own place or before it), and the spans between them.
  RowSums base{0, 0, 0};
  const auto add_span = [&](int64_t begin, int64_t end) {
    if (end > begin) p.spans[atomicAdd(&span_count, 1)] = {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
  };
  for (int start = 0; start < rows; start += kRowThreads) {
    const int i = start + tid;
    const int len = i < rows ? p.row_info[i].len : -1;
    const bool good = len >= 0;
    if (i < rows && !good) report_row(p.status, i, -len);
    const int chunks = good ? (len + kChunk - 1) / kChunk : 0;
    RowSums total;
    const RowSums at = base + exclusive_sum({good, chunks, good ? chunks + kRowWeight : 0}, scratch, &total);
    // In order, the end of the good row before this one is where this row's gap begins.
    if (good) {
      const int64_t begin = reader.offset(i);
      RowInfo r;
      r.token = static_cast<int32_t>(begin), r.len = len;
      r.state_in = p.state_in[i], r.state_out = p.state_out[i];
      r.ckpt_begin = p.ckpt_begin ? p.ckpt_begin[i] : 0, r.ckpt_end = p.ckpt_begin ? p.ckpt_begin[i + 1] : 0;
      r.chunk = at.chunks, r.weight = at.weight;
      p.row_info[at.rows] = r;
    }
    base = base + total;
    __syncthreads();
  }
  for (int k = tid; k < base.rows; k += kRowThreads) {
    const int64_t before = k ? static_cast<int64_t>(p.row_info[k - 1].token) + p.row_info[k - 1].len : 0;
    add_span(before, p.row_info[k].token);
  }
  if (tid == 0) {
    const int64_t last =
        base.rows ? static_cast<int64_t>(p.row_info[base.rows - 1].token) + p.row_info[base.rows - 1].len : 0;
    add_span(last, p.tokens);
  }

  // Pass 3: how many scanners, then their runs of equal weight.
  __shared__ int heaviest, best_cost, best_choice;
  if (tid == 0) heaviest = 0, best_cost = INT_MAX, best_choice = INT_MAX;
  __syncthreads();
  RowTable table{p.row_info, base.rows, p.shape.heads, base.chunks, base.weight, 0};
  for (int k = tid; k < base.rows; k += kRowThreads) atomicMax(&heaviest, table.weight_of(k));
  __syncthreads();
  table.heaviest = heaviest;
  for (int choice = 2 + tid; choice < 2 * p.shape.max_scanners + 2; choice += kRowThreads)
    atomicMin(&best_cost, cost_of(table, p.shape.ctas, choice));
  __syncthreads();
  for (int choice = 2 + tid; choice < 2 * p.shape.max_scanners + 2; choice += kRowThreads)
    if (cost_of(table, p.shape.ctas, choice) == best_cost) atomicMin(&best_choice, choice);
  __syncthreads();
  const int64_t load = base.rows > 0 ? table.load_of(best_choice >> 1) : 1;
  const int scanners = static_cast<int>((table.all() + load - 1) / load), width = best_choice & 1 ? 2 : 1;
  for (int s = tid; s <= scanners; s += kRowThreads) deal(schedule, table, s, scanners, load);
  __syncthreads();
  const bool drop = tid > 0 && tid < scanners && !cut_fits(schedule, tid);
  __syncthreads();
  if (drop) drop_cut(schedule, table, tid);
  __syncthreads();
  if (tid == 0) {
    int longest = 0;
    for (int s = 0; s < scanners; ++s) longest = max(longest, schedule.chunk[s + 1] - schedule.chunk[s]);
    schedule.rows = base.rows, schedule.spans = span_count, schedule.scanners = scanners, schedule.width = width;
    schedule.scan_ctas = width == 2 ? scanners : 2 * scanners;
    schedule.depth = scanners ? min(p.shape.max_depth, p.shape.ring_slots / scanners) : 1;
    schedule.longest = longest;
  }
  __syncthreads();
  for (int i = tid; i < static_cast<int>(sizeof(Schedule) / 4); i += kRowThreads)
    reinterpret_cast<int32_t*>(p.schedule)[i] = reinterpret_cast<const int32_t*>(&schedule)[i];
}

}  // namespace kadence::ops::cuda::sm90::extend
