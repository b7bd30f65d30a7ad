// What the Hopper extend plan promises without a GPU: bounded memory, variants, refusals.
#include "ops/cuda/sm90/extend_ring/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/kda_layout.h"

namespace kadence::ops::cuda::sm90::extend {
namespace {

KdaProblem problem_of(int heads, int64_t tokens, int rows) {
  KdaProblem p;
  p.H = p.HV = heads, p.K = p.V = 128, p.io = p.decay = DType::kBF16;
  p.bounds = {rows, tokens, 0};
  return p;
}

device::DeviceInfo hopper() {
  device::DeviceInfo d;
  d.kind = device::DeviceKind::kCuda, d.name = "cuda:0", d.sm_major = 9, d.sm_count = 132,
  d.shared_bytes_per_block = 232448;
  return d;
}

TEST(ExtendPlan, WorkspaceIsBoundedWhateverTheLength) {
  for (int heads : {1, 4, 12, 32, 64, 96})
    for (int rows : {1, 8, 300, 4096})
      for (int64_t tokens : {1, 64, 8192, 131072, 1048576}) {
        const KdaProblem p = problem_of(heads, tokens, rows);
        const Shape s = choose_shape(p, 132, 0);
        EXPECT_LE(layout_workspace(p, s).bytes, size_t{64} << 20) << heads << " heads, " << rows << " rows";
        EXPECT_EQ(
            layout_workspace(p, s).bytes,
            layout_workspace(problem_of(heads, 64, rows), choose_shape(problem_of(heads, 64, rows), 132, 0)).bytes);
      }
}

TEST(ExtendPlan, EveryScannerHasARingAndSomeCtasPrepare) {
  for (int sms : {4, 78, 114, 132})
    for (int heads : {1, 12, 96, 128})
      for (int block : {0, 64, 192, 512, 1 << 20}) {
        const KdaProblem p = problem_of(heads, 4096, 40);
        const Shape s = choose_shape(p, sms, block);
        EXPECT_GE(s.max_scanners, 1);
        EXPECT_LE(s.max_scanners, kMaxScanners);
        EXPECT_LT(s.max_scanners, s.ctas);
        EXPECT_GE(s.ring_slots / s.max_scanners, 6) << "stages hold slots while the next are written";
        EXPECT_LE(s.ring_slots, std::max(kMaxRingSlots, 6 * s.max_scanners));
        EXPECT_LE(s.max_depth, kMaxDepth);
      }
}

TEST(ExtendPlan, PartsOfTheWorkspaceDoNotOverlap) {
  const KdaProblem p = problem_of(12, 100000, 77);
  const Shape s = choose_shape(p, 132, 0);
  const Workspace w = layout_workspace(p, s);
  EXPECT_EQ(w.slots, 0u);
  EXPECT_GE(w.schedule, static_cast<size_t>(s.ring_slots) * Slot::kBytes);
  EXPECT_GE(w.rows, w.schedule + sizeof(Schedule));
  EXPECT_GE(w.spans, w.rows + 77 * sizeof(RowInfo));
  EXPECT_GE(w.ready, w.spans + 78 * sizeof(Span));
  EXPECT_GE(w.consumed, w.ready + static_cast<size_t>(s.max_scanners) * kReadyPitch * 4);
  EXPECT_GE(w.bytes, w.consumed + static_cast<size_t>(s.max_scanners) * kConsumedPitch * 4);
  for (size_t at : {w.schedule, w.rows, w.spans, w.ready, w.consumed}) EXPECT_EQ(at % kWorkspaceAlign, 0u);
}

TEST(ExtendPlan, GatesThatNeedItTakeTheExactPath) {
  KdaProblem p = problem_of(2, 64, 1);
  p.lower_bound = -5.0f;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kBounded);
  p.lower_bound = -5.5f;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kBoundedExact);
  p.gate = KdaGate::kSoftplus;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kSoftplus);
  p.gate = KdaGate::kGivenLogDecay, p.decay = DType::kF32;
  EXPECT_EQ(choose_variant(p).flavor, Flavor::kGiven);
  EXPECT_TRUE(choose_variant(p).decay_fp32);
  for (Flavor f : {Flavor::kBounded, Flavor::kBoundedExact, Flavor::kSoftplus, Flavor::kGiven})
    for (bool fp32 : {false, true}) {
      const Variant v = decode(encode({f, fp32}));
      EXPECT_EQ(v.flavor, f);
      EXPECT_EQ(v.decay_fp32, fp32);
    }
}

TEST(ExtendPlan, SaysWhatItLacks) {
  KdaProblem p = problem_of(2, 64, 1);
  EXPECT_THAT(misses(p, hopper()), ::testing::IsEmpty());
  device::DeviceInfo ampere = hopper();
  ampere.sm_major = 8;
  EXPECT_THAT(misses(p, ampere), ::testing::ElementsAre(::testing::HasSubstr("compute capability 9.0")));
  p.K = p.V = 64, p.io = p.decay = DType::kF32;
  EXPECT_THAT(misses(p, hopper()),
              ::testing::ElementsAre(::testing::HasSubstr("K = 64"), ::testing::HasSubstr("float32")));
}

}  // namespace
}  // namespace kadence::ops::cuda::sm90::extend
