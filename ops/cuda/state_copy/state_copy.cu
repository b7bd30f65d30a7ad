// Copies and clears of whole slots over all layers: one launch for the copies, one for the clears.
#include <cstdint>

#include "ops/cuda/sm90/step_core/host.h"
#include "ops/kda_backend.h"

namespace kadence::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;  // 16-byte words in flight per thread

// A pool as bytes. `words` of 16 bytes, then `tail` single bytes (sizes that are no multiple of 16, or odd addresses).
struct Pool {
  char* base = nullptr;
  int64_t slots = 0, slot_bytes = 0, layer_bytes = 0;  // pitches
  int64_t words = 0, tail = 0;
  int32_t layers = 0;
};
struct CopyParams {
  Pool states, windows;
  const int32_t* src = nullptr;  // null = clear
  const int32_t* dst = nullptr;
  int32_t count = 0;
};

__device__ void move(const Pool& pool, int64_t src, int64_t dst, bool clear, int64_t layer, int64_t block) {
  char* to = pool.base + layer * pool.layer_bytes + dst * pool.slot_bytes;
  const char* from = pool.base + layer * pool.layer_bytes + src * pool.slot_bytes;
  const int64_t start = block * kThreads * kUnroll + threadIdx.x;
  uint4 v[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t w = start + i * kThreads;
    v[i] = make_uint4(0, 0, 0, 0);
    if (w < pool.words && !clear) v[i] = reinterpret_cast<const uint4*>(from)[w];
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t w = start + i * kThreads;
    if (w < pool.words) reinterpret_cast<uint4*>(to)[w] = v[i];
  }
  if (block == 0)
    for (int64_t b = pool.words * 16 + threadIdx.x; b < pool.words * 16 + pool.tail; b += kThreads)
      to[b] = clear ? 0 : from[b];
}

// grid: x = 32 KB blocks of a state, then of a window; y = layers; z = list entries.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ CopyParams p, int32_t state_blocks) {
  const bool window = blockIdx.x >= state_blocks;
  const Pool& pool = window ? p.windows : p.states;
  if (blockIdx.y >= pool.layers) return;
  for (int64_t i = blockIdx.z; i < p.count; i += gridDim.z) {
    const bool clear = p.src == nullptr;
    const int64_t dst = p.dst[i], src = clear ? 0 : p.src[i];
    if (dst < 0 || dst >= pool.slots || src < 0 || src >= pool.slots || (!clear && src == dst)) continue;
    move(pool, src, dst, clear, blockIdx.y, window ? blockIdx.x - state_blocks : blockIdx.x);
  }
}

Pool make_pool(void* base, int64_t slots, int64_t slot_pitch, int64_t layers, int64_t layer_pitch, int64_t elements,
               int64_t size) {
  Pool p;
  p.base = static_cast<char*>(base);
  if (!base) return p;
  p.slots = slots, p.slot_bytes = slot_pitch * size, p.layer_bytes = layer_pitch * size,
  p.layers = static_cast<int32_t>(layers);
  const int64_t bytes = elements * size;
  const bool aligned = (reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(p.slot_bytes) |
                        static_cast<uintptr_t>(p.layer_bytes)) %
                           16 ==
                       0;
  p.words = aligned ? bytes / 16 : 0;
  p.tail = bytes - p.words * 16;
  return p;
}

int64_t blocks(const Pool& p) {
  return p.base ? std::max<int64_t>(1, (p.words + kThreads * kUnroll - 1) / (kThreads * kUnroll)) : 0;
}

}  // namespace

void state_copy(const StateCopyArgs& args, device::Stream& stream) {
  LaunchScope scope(stream);
  CopyParams p;
  const StateView& s = args.states;
  const WindowView& w = args.windows;
  p.states = make_pool(s.base, s.slots, s.slot_pitch, s.layers, s.layer_pitch,
                       static_cast<int64_t>(args.HV) * args.V * args.K, static_cast<int64_t>(base::size_of(s.dtype)));
  p.windows =
      make_pool(w.base, w.slots, w.slot_pitch, w.layers, w.layer_pitch,
                static_cast<int64_t>(kConvWindow) * args.conv_channels, static_cast<int64_t>(base::size_of(w.dtype)));
  const int64_t state_blocks = blocks(p.states), x = state_blocks + blocks(p.windows);
  const int32_t layers = std::max(p.states.layers, p.windows.layers);
  auto launch = [&](const int32_t* src, const int32_t* dst, int32_t count, const char* what) {
    if (count == 0 || x == 0 || layers == 0) return;
    p.src = src, p.dst = dst, p.count = count;
    const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(layers),
                    static_cast<unsigned>(std::min<int64_t>(count, kMaxGridY)));
    copy_kernel<<<grid, kThreads, 0, scope.stream()>>>(p, static_cast<int32_t>(state_blocks));
    check_launch(what);
  };
  launch(args.src, args.dst, args.copies, "state copy kernel launch");
  launch(nullptr, args.clear, args.clears, "state clear kernel launch");
}

}  // namespace kadence::ops::cuda
