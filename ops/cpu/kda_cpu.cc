#include "ops/kda_backend.h"

namespace kadence::ops::cpu {
namespace {
std::vector<std::string> misses(const KdaProblem& p, const device::DeviceInfo& d) { return reference::kBackend.misses(p, d); }
void plan(KdaPlan& p) { reference::kBackend.plan(p); }
void extend(const KdaPlan& p, const KdaExtendArgs& a, device::Stream& s) { reference::kBackend.extend(p, a, s); }
void step(const KdaPlan& p, const KdaStepArgs& a, device::Stream& s) { reference::kBackend.step(p, a, s); }
void verify(const KdaPlan& p, const KdaVerifyArgs& a, device::Stream& s) { reference::kBackend.verify(p, a, s); }
void commit(const KdaPlan& p, const KdaCommitArgs& a, device::Stream& s) { reference::kBackend.commit(p, a, s); }
}  // namespace

const KdaBackend kBackend = {{"cpu", device::DeviceKind::kCpu, true, true, true, true, "SIMD kernels (baseline, AVX2, AVX-512), fp32 arithmetic"},
                             misses, plan, extend, step, verify, commit};
}  // namespace kadence::ops::cpu
