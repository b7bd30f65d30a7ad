#include <atomic>

#include "ops/cuda/common/check.h"
#include "ops/cuda/sm80/extend_chunked/plan.h"
#include "ops/cuda/sm80/extend_chunked/rows.cuh"
#include "ops/cuda/sm90/step_core/host.h"

namespace kadence::ops::cuda::sm80 {
namespace {

// Raises the kernel's shared memory limit, once a device and kernel.
void allow_shared(WindowKernel kernel, int index, int ordinal) {
  static std::atomic<uint64_t> done[4];
  const uint64_t bit = uint64_t{1} << (ordinal & 63);
  if (done[index].load(std::memory_order_acquire) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "extend window kernel: shared memory");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "extend window kernel: carveout");
  done[index].fetch_or(bit, std::memory_order_release);
}

}  // namespace

void run_chunked(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream) {
  if (args.tokens == 0 && args.metadata.rows == 0) return;
  const KdaProblem& problem = plan.problem();
  const bool half = problem.io == DType::kF16, wide = problem.decay == DType::kF32;
  const WindowKernel kernel = half ? f16_kernel(wide) : bf16_kernel(wide);
  LaunchScope scope(stream);
  allow_shared(kernel, 2 * half + wide, stream.info().ordinal);
  const Call call = make_call(plan, args);
  rows_kernel<<<1, kPlanThreads, 0, scope.stream()>>>(call.rows);
  check_launch("extend rows kernel");
  for (int32_t i = 0; i <= call.windows; ++i) {
    const WindowParams p = call.launch(i);
    kernel<<<static_cast<unsigned>(p.scan_ctas + p.prep_ctas), kThreads, kSharedBytes, scope.stream()>>>(p);
    check_launch("extend window kernel");
  }
}

}  // namespace kadence::ops::cuda::sm80
