#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/math.h"
#include "base/result.h"
#include "base/rng.h"

namespace kadence::base {
namespace {

// Nearest value of a format by search over all 65536 patterns: slow, and independent of the conversion under test.
template <class Decode>
float nearest(float f, Decode decode) {
  float best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  uint32_t best_bits = 0;
  for (uint32_t b = 0; b < 65536; ++b) {
    const float x = decode(static_cast<uint16_t>(b));
    if (!std::isfinite(x)) continue;
    const double d = std::fabs(static_cast<double>(x) - f);
    if (d < best_distance || (d == best_distance && (b & 1u) == 0 && (best_bits & 1u) == 1))
      best = x, best_distance = d, best_bits = b;
  }
  return best;
}

TEST(DType, F16RoundTripsEveryPattern) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float f = f16_to_f32(static_cast<uint16_t>(b));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    } else {
      EXPECT_EQ(f32_to_f16(f), b);
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  Rng rng(7);
  for (int i = 0; i < 60; ++i) {
    const float f = static_cast<float>(rng.normal() * std::exp2(rng.normal() * 6));
    EXPECT_EQ(f16_to_f32(f32_to_f16(f)), nearest(f, f16_to_f32)) << f;
    EXPECT_EQ(bf16_to_f32(f32_to_bf16(f)), nearest(f, bf16_to_f32)) << f;
  }
  EXPECT_EQ(f16_to_f32(f32_to_f16(1 + 0x1p-11f + 0x1p-23f)), 1 + 0x1p-10f);  // must not pass through bf16
  EXPECT_EQ(f16_to_f32(f32_to_f16(1 + 0x1p-11f)), 1.0f);                     // tie to even
  EXPECT_TRUE(std::isinf(f16_to_f32(f32_to_f16(65520.0f))));
  EXPECT_EQ(f16_to_f32(f32_to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
}

TEST(DType, NamesAndErrors) {
  EXPECT_EQ(parse_float_dtype("bf16"), DType::kBF16);
  EXPECT_EQ(parse_float_dtype("float32"), DType::kF32);
  try {
    parse_float_dtype("int8");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("got int8"), std::string::npos);
  }
}

TEST(Rng, DrawsDependOnSeedAndIndexOnly) {
  EXPECT_EQ(draw_u64(3, 9), draw_u64(3, 9));
  std::unordered_set<uint64_t> seen;
  for (uint64_t s = 0; s < 50; ++s)
    for (uint64_t i = 0; i < 50; ++i) seen.insert(draw_u64(s, i));
  EXPECT_EQ(seen.size(), 2500u);
  double sum = 0, squares = 0;
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const double x = rng.normal();
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.03);
  EXPECT_NEAR(squares / 20000, 1, 0.05);
}

TEST(Result, CarriesValueOrReason) {
  Result<int> good(3);
  EXPECT_EQ(good.value(), 3);
  auto bad = Result<int>::failure("pool full");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.reason(), "pool full");
  EXPECT_THROW(bad.value(), Error);
}

TEST(Ids, DoNotMixAndDefaultToNone) {
  EXPECT_FALSE(SlotId().valid());
  EXPECT_TRUE(SlotId(0).valid());
  static_assert(!std::is_convertible_v<SlotId, PageId>);
}

TEST(Math, Rounding) {
  EXPECT_EQ(ceil_div(65, 64), 2);
  EXPECT_EQ(round_up(65, 64), 128);
  EXPECT_EQ(round_down(127, 64), 64);
}

TEST(Log, GoesToTheSinkOnly) {
  std::string seen;
  set_log_sink([&](LogLevel, const std::string& m) { seen = m; });
  log(LogLevel::kInfo, "hello");
  set_log_sink({});
  log(LogLevel::kInfo, "dropped");
  EXPECT_EQ(seen, "hello");
}

TEST(VirtualClock, MovesOnlyWhenTold) {
  VirtualClock c;
  EXPECT_EQ(c.now(), 0);
  c.advance(1.5);
  EXPECT_EQ(c.now(), 1.5);
}

}  // namespace
}  // namespace kadence::base
