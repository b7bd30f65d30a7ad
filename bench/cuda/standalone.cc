// What a program with the Hopper kernels alone, or with KADENCE_BENCH_PORTABLE the portable ones, links in place of the
// full backend table (ops/kda_registry.cc) and of the CPU operators, so that it builds on a machine with nothing but
// nvcc and a C++ compiler.
#include <array>

#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {
#ifdef KADENCE_BENCH_PORTABLE
constexpr std::array<const KdaBackend*, 2> kTable{&cuda::kSm80Backend, &cuda::kSm80RecurrentBackend};
#else
constexpr std::array<const KdaBackend*, 1> kTable{&cuda::kSm90Backend};
#endif
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

// Weak: the real ones win when they are linked too.
namespace cuda {
#define KADENCE_WEAK __attribute__((weak))
KADENCE_WEAK void conv1d_extend(const KdaPlan&, const Conv1dExtendArgs&, device::Stream&) { absent(); }
KADENCE_WEAK void conv1d_step(const Conv1dStepArgs&, device::Stream&) { absent(); }
KADENCE_WEAK void conv1d_verify(const Conv1dVerifyArgs&, device::Stream&) { absent(); }
KADENCE_WEAK void state_copy(const StateCopyArgs&, device::Stream&) { absent(); }
namespace sm90 {
KADENCE_WEAK std::vector<std::string> step_misses(const KdaProblem&, const device::DeviceInfo&) {
  return {"step (not linked)"};
}
KADENCE_WEAK std::vector<std::string> verify_misses(const KdaProblem&, const device::DeviceInfo&) {
  return {"verify (not linked)"};
}
KADENCE_WEAK std::vector<std::string> step_problem_misses(const KdaProblem&) { return {"step (not linked)"}; }
KADENCE_WEAK std::vector<std::string> verify_problem_misses(const KdaProblem&, const device::DeviceInfo&) {
  return {"verify (not linked)"};
}
KADENCE_WEAK void plan_portable_step(KdaPlan&) { absent(); }
KADENCE_WEAK void plan_step(KdaPlan&) { absent(); }
KADENCE_WEAK void plan_verify(KdaPlan&) { absent(); }
KADENCE_WEAK void run_step(const KdaPlan&, const KdaStepArgs&, device::Stream&) { absent(); }
KADENCE_WEAK void run_verify(const KdaPlan&, const KdaVerifyArgs&, device::Stream&) { absent(); }
KADENCE_WEAK void run_commit(const KdaPlan&, const KdaCommitArgs&, device::Stream&) { absent(); }
}  // namespace sm90
}  // namespace cuda

}  // namespace kadence::ops
