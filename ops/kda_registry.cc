// The table of KDA backends. Adding one is one line here; nothing registers itself.
#include "base/error.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {

constexpr const KdaBackend* kTable[] = {
#ifdef KADENCE_CUDA
    &cuda::kSm90Backend,           // the order is that of choice
    &cuda::kSm80Backend,           //
    &cuda::kSm80RecurrentBackend,  //
#endif
    &cpu::kBackend,        //
    &reference::kBackend,  //
};

const char* kind_name(device::DeviceKind kind) { return kind == device::DeviceKind::kCpu ? "a CPU" : "a CUDA device"; }

}  // namespace

std::span<const KdaBackend* const> kda_table() { return kTable; }

const KdaBackend* find_kda_backend(std::string_view name) {
  for (const KdaBackend* backend : kTable)
    if (name == backend->info.name) return backend;
  return nullptr;
}

std::span<const KdaBackendInfo> kda_backends() {
  static const std::vector<KdaBackendInfo> infos = [] {
    std::vector<KdaBackendInfo> v;
    for (const KdaBackend* backend : kTable) v.push_back(backend->info);
    return v;
  }();
  return infos;
}

std::vector<std::string> kda_backend_misses(const std::string& name, const KdaProblem& problem,
                                            const device::DeviceInfo& device) {
  const KdaBackend* backend = find_kda_backend(name);
  if (!backend) return {"a backend named " + name + " in this build"};
  if (backend->info.kind != device.kind)
    return {std::string(kind_name(device.kind)) + " (it runs on " + kind_name(backend->info.kind) + ")"};
  std::vector<std::string> misses;
  if (problem.phase == KdaPhase::kExtend && !backend->info.extend) misses.push_back("extend");
  if (problem.phase == KdaPhase::kStep && !backend->info.step) misses.push_back("step");
  if (problem.phase == KdaPhase::kVerify && !backend->info.verify) misses.push_back("verify and commit");
  // Checked here for every backend, so that a batch with checkpoints cannot reach one that would not write them.
  if (problem.bounds.max_checkpoints > 0 && !backend->info.checkpoints)
    misses.push_back("checkpoints (bounds.max_checkpoints = 0 runs without)");
  for (std::string& miss : backend->misses(problem, device)) misses.push_back(std::move(miss));
  return misses;
}

}  // namespace kadence::ops
