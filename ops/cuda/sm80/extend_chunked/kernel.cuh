// The kernel of a window: some CTAs scan the window before, the others prepare this one. CTAs of one launch do not wait
// for each other.
#pragma once

#include "ops/cuda/sm80/extend_chunked/scan.cuh"

namespace kadence::ops::cuda::sm80 {

// What no chunk does, shared among the first launch's CTAs: zeros for tokens of no good row, states of empty rows.
template <class Io>
__device__ __noinline__ void settle_rest(const WindowParams& p, const Header& header) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t pieces = static_cast<int64_t>(p.heads) * kDim / 8;
  for (int i = 0; i < header.spans; ++i) {
    const Span span = p.tables.spans[i];
    for (int64_t at = thread; at < (span.end - span.begin) * pieces; at += threads)
      *reinterpret_cast<uint4*>(static_cast<Io*>(p.out) + (span.begin + at / pieces) * p.out_pitch + at % pieces * 8) =
          make_uint4(0, 0, 0, 0);
  }
  const int64_t halves = static_cast<int64_t>(header.empty_rows) * p.heads * 2;
  for (int64_t i = blockIdx.x; i < halves; i += gridDim.x) {
    const EmptyRow row = p.tables.empty_rows[i / 2 / p.heads];
    if (row.state_out < 0 || (row.state_in == row.state_out && p.state_in.base == p.state_out.base)) continue;
    Scanner<Io> scanner(p, nullptr, static_cast<int>(i / 2 % p.heads), static_cast<int>(i & 1));
    if (row.state_in >= 0) {
      scanner.load(p.state_in, row.state_in);
    } else {
#pragma unroll
      for (int n = 0; n < 16; ++n) scanner.s[n][0] = scanner.s[n][1] = scanner.s[n][2] = scanner.s[n][3] = 0.0f;
    }
    scanner.store(p.state_out, row.state_out);
  }
}

template <class Io, bool kDecayF32>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) window_kernel(const __grid_constant__ WindowParams p) {
  uint8_t* const shared = dynamic_shared();
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.scan_ctas) {
    const int candidate = block / (2 * p.heads), item = block % (2 * p.heads);
    Scanner<Io>(p, shared, item >> 1, item & 1).run(p.window - 1, candidate);
    return;
  }
  const Header header = *p.tables.header;
  if (p.window == 0 && (header.spans > 0 || header.empty_rows > 0)) settle_rest<Io>(p, header);
  const int item = block - p.scan_ctas, column = item / p.heads, head = item % p.heads;
  const int position = p.window * p.columns + column;
  if (item >= p.prep_ctas || position >= header.positions) return;
  const Place place = find_position(p.tables, header, p.group, position);
  const RowEntry& row = p.tables.rows[place.group * p.group + place.rank];
  const int done = place.level * kChunk;
  uint8_t* const slot =
      p.slots + (static_cast<int64_t>((p.window & 1) * p.columns + column) * p.heads + head) * Slot::kBytes;
  ChunkPrep<Io, kDecayF32>(p, shared, slot, head)
      .run(static_cast<int64_t>(row.token) + done, min(kChunk, row.len - done));
}

}  // namespace kadence::ops::cuda::sm80
