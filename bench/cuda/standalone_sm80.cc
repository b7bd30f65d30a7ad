// As standalone.cc, for a program with the extend kernels of ops/cuda/sm80 alone.
#include <array>

#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {
constexpr std::array<const KdaBackend*, 2> kTable{&cuda::kSm80Backend, &cuda::kSm80RecurrentBackend};
[[noreturn]] void absent() { base::throw_error(base::ErrorCode::kUnsupported, "not linked into this program"); }
}  // namespace

namespace reference {
const KdaBackend kBackend = {};
}

std::span<const KdaBackend* const> kda_table() { return kTable; }
const KdaBackend* find_kda_backend(std::string_view name) {
  for (const KdaBackend* backend : kTable)
    if (name == backend->info.name) return backend;
  return nullptr;
}
std::vector<std::string> kda_backend_misses(const std::string& name, const KdaProblem& problem,
                                            const device::DeviceInfo& device) {
  const KdaBackend* backend = find_kda_backend(name);
  return backend ? backend->misses(problem, device) : std::vector<std::string>{"a backend named " + name};
}

namespace cpu {
void conv1d_extend(const KdaPlan&, const Conv1dExtendArgs&, device::Stream&) { absent(); }
void conv1d_step(const Conv1dStepArgs&, device::Stream&) { absent(); }
void conv1d_verify(const Conv1dVerifyArgs&, device::Stream&) { absent(); }
void state_copy(const StateCopyArgs&, device::Stream&) { absent(); }
}  // namespace cpu
namespace cuda {
void conv1d_extend(const KdaPlan&, const Conv1dExtendArgs&, device::Stream&) { absent(); }
void conv1d_step(const Conv1dStepArgs&, device::Stream&) { absent(); }
void conv1d_verify(const Conv1dVerifyArgs&, device::Stream&) { absent(); }
void state_copy(const StateCopyArgs&, device::Stream&) { absent(); }
namespace sm90 {
std::vector<std::string> step_problem_misses(const KdaProblem&) { return {}; }
std::vector<std::string> verify_problem_misses(const KdaProblem&, const device::DeviceInfo&) {
  return {"verify (not linked)"};
}
void plan_portable_step(KdaPlan&) { absent(); }
void plan_verify(KdaPlan&) { absent(); }
void run_step(const KdaPlan&, const KdaStepArgs&, device::Stream&) { absent(); }
void run_verify(const KdaPlan&, const KdaVerifyArgs&, device::Stream&) { absent(); }
void run_commit(const KdaPlan&, const KdaCommitArgs&, device::Stream&) { absent(); }
}  // namespace sm90
}  // namespace cuda

}  // namespace kadence::ops
