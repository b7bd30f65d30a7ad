// The chunked extend kernels on emulated warps: the conformance table against float64, and what must hold to the bit.
#define KADENCE_EMULATED_SWITCH
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ops/cuda/sm80/emulated/warps.h"
#include "ops/cuda/sm80/extend_chunked/kernel.cuh"
#include "ops/cuda/sm80/extend_chunked/plan.h"
#include "ops/cuda/sm80/extend_chunked/rows.cuh"
#include "ops/kda_table.h"
#include "ops/testing/kda_conformance.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::ops {

// A table of this backend alone, in place of kda_registry.cc.
namespace {

std::vector<std::string> no_misses(const KdaProblem&, const device::DeviceInfo&) { return {}; }

void emulated_extend(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream&) {
  namespace sm80 = cuda::sm80;
  if (args.tokens == 0 && args.metadata.rows == 0) return;
  const sm80::Call call = sm80::make_call(plan, args);
  cuda::emulated::run(1, sm80::kPlanThreads, 0, [&] { sm80::rows_kernel(call.rows); });
  const bool half = plan.problem().io == DType::kF16, wide = plan.problem().decay == DType::kF32;
  for (int32_t i = 0; i <= call.windows; ++i) {
    const sm80::WindowParams p = call.launch(i);
    cuda::emulated::run(static_cast<unsigned>(p.scan_ctas + p.prep_ctas), sm80::kThreads, sm80::kSharedBytes, [&] {
      if (half) {
        wide ? sm80::window_kernel<__half, true>(p) : sm80::window_kernel<__half, false>(p);
      } else {
        wide ? sm80::window_kernel<__nv_bfloat16, true>(p) : sm80::window_kernel<__nv_bfloat16, false>(p);
      }
    });
  }
}

const KdaBackend kEmulated = {
    {"sm80", device::DeviceKind::kCpu, true, false, false, true, "emulated"},
    no_misses,
    cuda::sm80::plan_chunked,
    emulated_extend,
    nullptr,
    nullptr,
    nullptr,
};
constexpr const KdaBackend* kTable[] = {&kEmulated};

}  // namespace

std::span<const KdaBackend* const> kda_table() { return kTable; }
const KdaBackend* find_kda_backend(std::string_view name) { return name == kEmulated.info.name ? &kEmulated : nullptr; }
std::span<const KdaBackendInfo> kda_backends() { return {&kEmulated.info, 1}; }
std::vector<std::string> kda_backend_misses(const std::string&, const KdaProblem&, const device::DeviceInfo&) {
  return {};
}

namespace testing {
namespace {

class Emulated : public ::testing::Test {
 protected:
  Emulated() : stream_(device::Stream::cpu(1)) {
    limits_ = limits_of("sm80");
    limits_.io = {DType::kBF16, DType::kF16};
  }
  // Every `step`-th case; KADENCE_ALL_CASES=1 runs all.
  void run(const std::vector<KdaCase>& cases, size_t step) {
    if (std::getenv("KADENCE_ALL_CASES")) step = 1;
    for (size_t i = 0; i < cases.size(); i += step) {
      if (const char* f = std::getenv("KADENCE_CASES"); f && cases[i].name.find(f) == std::string::npos) continue;
      Measured m;
      for (const std::string& fault : check_case(stream_, "sm80", cases[i], limits_, &m)) ADD_FAILURE() << fault;
      if (std::getenv("KADENCE_PRINT"))
        std::printf("%-44s out %.2e state %.2e checkpoint %.2e\n", cases[i].name.c_str(), m.out, m.state, m.checkpoint);
    }
  }
  device::Stream stream_;
  KdaLimits limits_;
};

TEST_F(Emulated, InputFamilies) { run(family_cases(limits_), 8); }
TEST_F(Emulated, Lengths) { run(length_cases(limits_), 5); }
TEST_F(Emulated, PairwiseAxes) { run(pairwise_cases(limits_), 6); }

}  // namespace
}  // namespace testing
}  // namespace kadence::ops
