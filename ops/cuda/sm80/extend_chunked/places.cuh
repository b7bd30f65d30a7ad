// How the kernels of the windows find their places in the tables of rows.cuh.
#pragma once

#include "ops/cuda/sm80/extend_chunked/config.h"
#include "ops/cuda/sm80/extend_chunked/warp.cuh"

namespace kadence::ops::cuda::sm80 {

// First i of [0, n) for which pred(i), or n; pred is false up to some i and true from there on. By a whole warp.
template <class Pred>
__device__ __forceinline__ int warp_partition(int n, Pred pred) {
  const int lane = threadIdx.x & 31;
  int lo = 0, hi = n;
  while (hi > lo) {
    const int step = (hi - lo + 31) / 32, at = lo + (lane + 1) * step - 1;  // the last of this lane's share
    const unsigned found = __ballot_sync(kAllLanes, at >= hi || pred(at));
    const int share = found ? __ffs(static_cast<int>(found)) - 1 : 32;
    hi = min(hi, lo + (share + 1) * step - 1);
    lo = min(hi, lo + share * step);
  }
  return lo;
}

// A position, seen from its group. Uniform over the warp.
struct Place {
  int group, level, rank;  // chunk `level` of the group's row `rank`
  int active;              // rows of the group with a chunk on this level
};
__device__ __forceinline__ Place find_position(const Tables& t, const Header& header, int group_rows, int position) {
  const int lane = threadIdx.x & 31;
  Place p;
  p.group =
      header.groups == 1 ? 0 : warp_partition(header.groups, [&](int i) { return t.group_begin[i + 1] > position; });
  const int at = position - (p.group > 0 ? t.group_begin[p.group] : 0), first = p.group * group_rows;
  int below = 0, chunks = 0;
  if (lane < group_rows && first + lane < header.rows) {
    const RowEntry& e = t.rows[first + lane];
    below = e.below, chunks = e.chunks;
  }
  p.active = __popc(__ballot_sync(kAllLanes, below > at));
  // The levels from the length of the next shorter row on have this many rows.
  const int next = p.active & 31, base = __shfl_sync(kAllLanes, below, next),
            level = __shfl_sync(kAllLanes, chunks, next);
  const int into = at - (p.active < 32 ? base : 0);
  p.level = (p.active < 32 ? level : 0) + into / p.active;
  p.rank = into % p.active;
  return p;
}

}  // namespace kadence::ops::cuda::sm80
