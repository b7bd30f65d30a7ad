// How items are dealt to scanners. Pure functions: extend_rows runs them on the device, plan_test.cc on the host.
#pragma once

#include "ops/cuda/sm90/extend_ring/config.h"

#ifdef __CUDACC__
#define KADENCE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KADENCE_HOST_DEVICE inline
#endif

namespace kadence::ops::cuda::sm90::extend {

// The table of good rows.
struct RowTable {
  const RowInfo* info;
  int32_t rows, heads;
  int32_t chunks, weight;  // of all rows and one head
  int32_t heaviest;        // weight of the heaviest row

  KADENCE_HOST_DEVICE int chunks_of(int row) const { return row < rows ? (info[row].len + kChunk - 1) / kChunk : 0; }
  KADENCE_HOST_DEVICE int weight_of(int row) const { return chunks_of(row) + kRowWeight; }
  KADENCE_HOST_DEVICE int64_t all() const { return static_cast<int64_t>(weight) * heads; }
  // Weight of a run when n scanners share all items. An item is cut in two at most, so that no run may be lighter than
  // the heaviest item.
  KADENCE_HOST_DEVICE int64_t load_of(int n) const {
    const int64_t share = (all() + n - 1) / n;
    return share > heaviest ? share : heaviest;
  }
};

inline constexpr int32_t kImpossible = 0x7fffffff;
// Choice 2 n + 1: n scanners of whole states; 2 n: of two halves. Its cost in microseconds is that of the slower side,
// and a little of the other's; kImpossible if there are not enough items or CTAs.
KADENCE_HOST_DEVICE int32_t cost_of(const RowTable& t, int ctas, int choice) {
  const int n = choice >> 1, whole = choice & 1, left = ctas - (whole ? n : 2 * n);
  if (n > static_cast<int64_t>(t.rows) * t.heads || left < 1 || kPrepGroups * left < n) return kImpossible;
  const int64_t scan = t.load_of(n) * (whole ? kCostScanWhole : kCostScanHalf),
                prep = static_cast<int64_t>(t.chunks) * t.heads * kCostPrep / left;
  const int64_t cost = (scan > prep ? scan + prep / 8 : prep + scan / 8) / 1000;
  return cost < kImpossible ? static_cast<int32_t>(cost) : kImpossible - 1;
}

KADENCE_HOST_DEVICE void place_boundary(Schedule& c, const RowTable& t, int s, int item, int cut) {
  const int row = item / t.heads, head = item - row * t.heads, own = t.chunks_of(row);
  c.item[s] = item, c.cut[s] = cut, c.tail[s] = cut > 0 ? own - cut : 0;
  c.chunk[s] = (row < t.rows ? t.info[row].chunk : t.chunks) * t.heads + head * own + cut;
}

// Where the run of scanner s begins; s = scanners: where the last one ends. All boundaries can be placed at once.
KADENCE_HOST_DEVICE void deal(Schedule& c, const RowTable& t, int s, int scanners, int64_t load) {
  if (s == 0 || s == scanners) return place_boundary(c, t, s, s == 0 ? 0 : t.rows * t.heads, 0);
  const int64_t target = s * load;
  int low = 0, high = t.rows - 1;  // the last row that begins at or before the target
  while (low < high) {
    const int mid = (low + high + 1) >> 1;
    if (static_cast<int64_t>(t.info[mid].weight) * t.heads <= target)
      low = mid;
    else
      high = mid - 1;
  }
  const int64_t rest = target - static_cast<int64_t>(t.info[low].weight) * t.heads;
  const int own = t.weight_of(low), chunks = t.chunks_of(low), past = static_cast<int>(rest / own),
            head = past < t.heads ? past : t.heads - 1, item = low * t.heads + head,
            within = static_cast<int>(rest - static_cast<int64_t>(head) * own);
  int cut = within - kRowWeight;  // chunks before the boundary
  bool whole = false;             // the item stays with the scanner before
  if (chunks < 2 * kMinPiece)
    cut = 0, whole = 2 * within >= own;
  else if (cut < kMinPiece)
    cut = 0;
  else if (cut > chunks - kMinPiece)
    whole = true;
  if (whole)
    place_boundary(c, t, s, item + 1, 0);
  else
    place_boundary(c, t, s, item, cut);
}

// The first part of a cut item opens the stream of scanner s - 1 and the rest closes that of s. It must lie before it
// in position, since chunks are prepared in that order; otherwise the item stays whole. Judged for all s before any is
// changed, this never makes another cut wrong.
KADENCE_HOST_DEVICE bool cut_fits(const Schedule& c, int s) {
  return c.cut[s] <= c.chunk[s + 1] - c.chunk[s] - c.tail[s];
}
KADENCE_HOST_DEVICE void drop_cut(Schedule& c, const RowTable& t, int s) { place_boundary(c, t, s, c.item[s] + 1, 0); }

// Number of chunk `at` of a scanner's stream among the chunks of all items in order.
KADENCE_HOST_DEVICE int chunk_number(const Schedule& c, int scanner, int at) {
  const int begin = c.chunk[scanner], end = c.chunk[scanner + 1], head = c.cut[scanner + 1], tail = c.tail[scanner];
  if (at < head) return end - head + at;
  const int middle = end - begin - head - tail;
  return at - head < middle ? begin + tail + at - head : begin + at - head - middle;
}

}  // namespace kadence::ops::cuda::sm90::extend
