// Helpers of the tests of kadence_ops_nn.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/device.h"

namespace kadence::ops::testing {

// Fills what must not be read.
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Fills what must not be written; a number, because results of poisoned inputs are NaN.
inline constexpr float kGuard = -123456.75f;

inline std::vector<float> normals(size_t n, uint64_t seed, double scale = 1) {
  base::Rng rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal() * scale);
  return v;
}

inline bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// The instruction set under test: KADENCE_TEST_ISA, which CTest sets to run a binary a second time, or the best one.
inline device::Isa test_isa() {
  const char* name = std::getenv("KADENCE_TEST_ISA");
  return device::resolve_isa(name ? device::parse_isa(name) : device::Isa::kAuto);
}
// Every instruction set that this machine runs.
inline std::vector<device::Isa> all_isas() {
  std::vector<device::Isa> isas;
  for (const device::Isa isa : {device::Isa::kBaseline, device::Isa::kAvx2, device::Isa::kAvx512})
    if (isa <= device::resolve_isa(device::Isa::kAuto)) isas.push_back(isa);
  return isas;
}

// Units in the last place between a float and the exact value it stands for.
inline double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e30;
  if (std::isinf(got) || std::isinf(static_cast<float>(want))) return got == static_cast<float>(want) ? 0 : 1e30;
  const double unit = std::max(std::ldexp(1.0, std::ilogb(want == 0 ? 1e-300 : want) - 23), 0x1p-149);
  return std::abs(static_cast<double>(got) - want) / unit;
}

}  // namespace kadence::ops::testing
