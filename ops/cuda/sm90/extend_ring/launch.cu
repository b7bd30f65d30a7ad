#include <atomic>

#include "ops/cuda/common/check.h"
#include "ops/cuda/sm90/extend_ring/launch.h"

namespace kadence::ops::cuda::sm90::extend {
namespace {

RingKernel instance(Variant v) {
  switch (v.flavor) {
    case Flavor::kBounded:
      return bounded_kernel(v.decay_fp32);
    case Flavor::kBoundedExact:
      return bounded_exact_kernel(v.decay_fp32);
    case Flavor::kSoftplus:
      return softplus_kernel(v.decay_fp32);
    case Flavor::kGiven:
      return given_kernel(v.decay_fp32);
  }
  base::throw_error(base::ErrorCode::kInternal, "no extend kernel for variant " + std::to_string(encode(v)));
}

// Raises the kernel's shared memory limit, once a device and kernel.
void allow_shared(RingKernel kernel, Variant v, int ordinal) {
  static std::atomic<uint64_t> done[8];
  const uint64_t bit = uint64_t{1} << (ordinal & 63);
  std::atomic<uint64_t>& mine = done[encode(v)];
  if (mine.load(std::memory_order_acquire) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "extend kernel: shared memory");
  mine.fetch_or(bit, std::memory_order_release);
}

}  // namespace

void launch_ring(Variant variant, const RingParams& params, int ctas, device::Stream& stream) {
  const RingKernel kernel = instance(variant);
  allow_shared(kernel, variant, stream.info().ordinal);
  // Cooperative: CTAs wait for each other, so all of them must be resident.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = &attribute, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, params), "extend kernel");
}

}  // namespace kadence::ops::cuda::sm90::extend
