// Which CPU backends and instruction sets this machine can test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace kadence::ops::testing {

struct Target {
  std::string backend;
  device::Isa isa;
};

// The cpu backend at every instruction set of this machine, fastest first, then the reference.
inline std::vector<Target> cpu_targets(bool with_reference = true) {
  std::vector<Target> targets;
  const device::Isa best = device::resolve_isa(device::Isa::kAuto);
  for (device::Isa isa : {device::Isa::kAvx512, device::Isa::kAvx2, device::Isa::kBaseline})
    if (isa <= best) targets.push_back({"cpu", isa});
  if (with_reference) targets.push_back({"reference", best});
  return targets;
}

inline std::string target_name(const ::testing::TestParamInfo<Target>& info) {
  return info.param.backend + "_" + device::to_string(info.param.isa);
}

}  // namespace kadence::ops::testing
