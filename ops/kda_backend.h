// What a KDA backend provides. The constexpr table of kda_registry.cc lists all backends; nothing registers itself.
#pragma once

#include <string>
#include <vector>

#include "ops/conv1d.h"
#include "ops/kda.h"

namespace kadence::ops {

struct KdaBackend {
  KdaBackendInfo info;
  // Features that the backend lacks for `problem` on `device`, in words a user understands; empty = it can run.
  std::vector<std::string> (*misses)(const KdaProblem& problem, const device::DeviceInfo& device);
  // Fills in workspace_bytes_, scratch_bytes_, block_tokens_, isa_ and variant_ of a validated plan.
  void (*plan)(KdaPlan& plan);
  void (*extend)(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);
  void (*step)(const KdaPlan& plan, const KdaStepArgs& args, device::Stream& stream);
  void (*verify)(const KdaPlan& plan, const KdaVerifyArgs& args, device::Stream& stream);
  void (*commit)(const KdaPlan& plan, const KdaCommitArgs& args, device::Stream& stream);
};

// Each lives in its folder. reference and cpu: kind kCpu; those of sm80 and sm90: kind kCuda, only with KADENCE_CUDA.
namespace reference {
extern const KdaBackend kBackend;
}
namespace cpu {
extern const KdaBackend kBackend;
}
namespace cuda {
extern const KdaBackend kSm80Backend, kSm80RecurrentBackend, kSm90Backend;
// The other operators on a CUDA stream; the public functions of conv1d.h and kda.h dispatch to these.
void conv1d_extend(const KdaPlan& plan, const Conv1dExtendArgs& args, device::Stream& stream);
void conv1d_step(const Conv1dStepArgs& args, device::Stream& stream);
void conv1d_verify(const Conv1dVerifyArgs& args, device::Stream& stream);
void state_copy(const StateCopyArgs& args, device::Stream& stream);
}  // namespace cuda
namespace cpu {
void conv1d_extend(const KdaPlan& plan, const Conv1dExtendArgs& args, device::Stream& stream);
void conv1d_step(const Conv1dStepArgs& args, device::Stream& stream);
void conv1d_verify(const Conv1dVerifyArgs& args, device::Stream& stream);
void state_copy(const StateCopyArgs& args, device::Stream& stream);
}  // namespace cpu

}  // namespace kadence::ops
