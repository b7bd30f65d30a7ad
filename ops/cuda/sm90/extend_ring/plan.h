// Host side of extend: what is decided from host facts alone. Pure functions, tested without a GPU.
#pragma once

#include <string>
#include <vector>

#include "ops/cuda/sm90/extend_ring/config.h"
#include "ops/kda.h"

namespace kadence::ops::cuda::sm90::extend {

// Which instance of the kernel runs.
enum class Flavor : int32_t {
  kBounded,       // bounded gate whose 16-token halves stay within the anchors' range whatever the input
  kBoundedExact,  // bounded gate below that: the exact path is compiled in and taken by the chunks that need it
  kSoftplus,
  kGiven,
};
struct Variant {
  Flavor flavor;
  bool decay_fp32;
};
Variant choose_variant(const KdaProblem& problem);
inline int32_t encode(Variant v) { return static_cast<int32_t>(v.flavor) * 2 + v.decay_fp32; }
inline Variant decode(int32_t v) { return {static_cast<Flavor>(v / 2), (v & 1) != 0}; }

// Features of an extend problem that these kernels lack on `device`; empty = they can run it.
std::vector<std::string> misses(const KdaProblem& problem, const device::DeviceInfo& device);

// How heads and rows are dealt to CTAs. block_tokens limits the ring of a chain (0 = as long as the cache allows).
Shape choose_shape(const KdaProblem& problem, int sm_count, int32_t block_tokens);
Workspace layout_workspace(const KdaProblem& problem, const Shape& shape);

void plan_extend(KdaPlan& plan);
void run_extend(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);

}  // namespace kadence::ops::cuda::sm90::extend
