#include <algorithm>

#include "ops/cuda/conv1d/launch.h"

namespace kadence::ops::cuda {

int conv_tile_tokens(int64_t tokens, int channel_blocks, int sm_count) {
  for (int tile : {256, 128, 64, 32}) {
    if ((tokens + tile - 1) / tile * std::max(1, channel_blocks) >= 4LL * sm_count) return tile;
  }
  return 16;
}

}  // namespace kadence::ops::cuda
