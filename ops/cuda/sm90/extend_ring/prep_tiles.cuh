// Where preparation's threads find elements of its tiles in shared memory.
#pragma once

#include "ops/cuda/sm90/extend_ring/params.h"

namespace kadence::ops::cuda::sm90::extend {

// Lane l's four channels in row r of a tile of 128-byte rows whose key halves are half_bytes apart.
__device__ __forceinline__ uint32_t place_in_tile(uint32_t tile, int half_bytes, int r, int l) {
  return tile + (l >> 4) * half_bytes + r * 128 + ((((l & 15) >> 1) ^ (r & 7)) << 4) + (l & 1) * 8;
}
// Row i of column j in a 16 x 16 block of -L.
__device__ __forceinline__ constexpr int lower_place(int j, int i) {
  return j * 64 + (((i >> 2) ^ (j >> 1)) & 3) * 16 + (i & 3) * 4;
}

}  // namespace kadence::ops::cuda::sm90::extend
