// Run-time dispatch of Highway kernels by the stream's instruction set rather than by what the machine could run.
// Include after hwy/highway.h, in the HWY_ONCE section of a kernel file.
#pragma once

#include <hwy/highway.h>

#include "device/device.h"

namespace kadence::ops {

// Highway's targets that an instruction set stands for. Baseline keeps to 128-bit vectors.
inline int64_t highway_targets(device::Isa isa) {
  static const int64_t supported = hwy::SupportedTargets();  // asks the CPU, which a virtual machine makes slow
  int64_t allowed = supported;
#if HWY_ARCH_X86
  constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;
  if (isa == device::Isa::kAvx2) allowed &= ~kAvx512Targets;
  if (isa == device::Isa::kBaseline) allowed &= ~(kAvx512Targets | HWY_AVX2);
#endif
  return allowed;
}

// Entry of a HWY_EXPORT table for `isa`; specific to the targets that the including file compiles.
#if HWY_IDE || ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0)
#define KADENCE_NN_DISPATCH(func, isa) (static_cast<void>(isa), HWY_DISPATCH_TABLE(func)[0])
#else
#define KADENCE_NN_DISPATCH(func, isa)                                                                  \
  (HWY_DISPATCH_TABLE(func)[hwy::Num0BitsBelowLS1Bit_Nonzero64(static_cast<uint64_t>(                   \
      (HWY_CHOSEN_TARGET_SHIFT(::kadence::ops::highway_targets(isa)) | HWY_CHOSEN_TARGET_MASK_SCALAR) & \
      HWY_CHOSEN_TARGET_MASK_TARGETS & ~int64_t{1}))])
#endif

}  // namespace kadence::ops
