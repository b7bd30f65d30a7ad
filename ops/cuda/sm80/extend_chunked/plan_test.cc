// Host facts to windows and workspace, and who runs what: on any machine.
#include "ops/cuda/sm80/extend_chunked/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace kadence::ops::cuda::sm80 {
namespace {

using ::testing::HasSubstr;

device::DeviceInfo ampere() {
  device::DeviceInfo d;
  d.kind = device::DeviceKind::kCuda, d.name = "an A100";
  d.sm_major = 8, d.sm_count = 108, d.shared_bytes_per_block = 166912;
  return d;
}
KdaProblem problem(int heads, int32_t rows, int64_t tokens) {
  KdaProblem p;
  p.H = p.HV = heads, p.K = p.V = 128, p.io = p.decay = p.beta = DType::kBF16;
  p.bounds = {rows, tokens, 16};
  return p;
}

TEST(ChunkedPlan, WorkspaceIsBoundedWhateverTheTokens) {
  for (int heads : {1, 2, 12, 16, 32, 64, 96, 128})
    for (int32_t rows : {1, 3, 32, 300, 2048})
      for (int64_t tokens : {int64_t{64}, int64_t{8192}, int64_t{131072}, int64_t{1} << 20})
        for (int block : {0, 64, 1024, 1 << 20}) {
          KdaOptions options;
          options.extend_block_tokens = block;
          const KdaPlan plan = plan_kda(problem(heads, rows, tokens), ampere(), options);
          EXPECT_EQ(plan.backend(), "sm80");
          EXPECT_LE(plan.workspace_bytes(), size_t{64} << 20) << heads << " heads, " << rows << " rows, " << tokens;
          EXPECT_GT(plan.block_tokens(), 0);
          if (block > 0) {
            EXPECT_LE(plan.block_tokens(), block);
          }
        }
  EXPECT_EQ(plan_kda(problem(96, 8, int64_t{1} << 20), ampere()).workspace_bytes(),
            plan_kda(problem(96, 8, int64_t{1} << 19), ampere()).workspace_bytes());
}

TEST(ChunkedPlan, ARowThatCrossesWindowsIsInEachOfThem) {
  for (int heads : {1, 12, 96, 700})
    for (int32_t rows : {1, 5, 100})
      for (int block : {0, 64, 128, 512}) {
        const Shape s = choose_shape(problem(heads, rows, 100000), block);
        EXPECT_GE(s.group, 1);
        EXPECT_LE(s.group, s.columns);
        EXPECT_LE(s.group, kMaxGroup);
      }
}

TEST(ChunkedPlan, LaunchesCoverEveryChunk) {
  const KdaProblem p = problem(12, 7, 5000);
  const KdaPlan plan = plan_kda(p, ampere(), {.backend = "sm80", .extend_block_tokens = 256});
  KdaExtendArgs a;
  a.tokens = 5000, a.metadata.rows = 7;
  const Call call = make_call(plan, a);
  // At most (5000 + 7 * 31) / 32 = 163 chunks, 8 a window.
  EXPECT_EQ(call.windows, 21);
  EXPECT_EQ(call.launch(0).scan_ctas, 0);
  EXPECT_EQ(call.launch(0).prep_ctas, 12 * 8);
  EXPECT_GT(call.launch(1).scan_ctas, 0);
  EXPECT_EQ(call.launch(call.windows).prep_ctas, 0);
  a.tokens = 0;  // empty rows alone: one launch copies their states
  EXPECT_EQ(make_call(plan, a).windows, 0);
  EXPECT_GT(make_call(plan, a).launch(0).prep_ctas, 0);
}

TEST(ChunkedPlan, WhatItLacksGoesToTheRecurrentBackend) {
  KdaProblem p = problem(2, 4, 1000);
  p.K = p.V = 64;
  EXPECT_EQ(plan_kda(p, ampere()).backend(), "sm80-recurrent");
  p = problem(2, 4, 1000);
  p.io = p.decay = DType::kF32;
  EXPECT_EQ(plan_kda(p, ampere()).backend(), "sm80-recurrent");
  EXPECT_THAT(kda_backend_misses("sm80", p, ampere())[0], HasSubstr("float32"));
  EXPECT_EQ(plan_kda(problem(2, 4, 1000), ampere(), {.backend = "sm80-recurrent"}).backend(), "sm80-recurrent");
  device::DeviceInfo turing = ampere();
  turing.sm_major = 7, turing.sm_minor = 5, turing.shared_bytes_per_block = 65536;
  EXPECT_THROW(plan_kda(problem(2, 4, 1000), turing), base::Error);
  p = problem(2, 4, 4);
  p.phase = KdaPhase::kStep, p.bounds.max_checkpoints = 0;
  EXPECT_THAT(kda_backend_misses("sm80-recurrent", p, ampere())[0], HasSubstr("step"));
  EXPECT_EQ(plan_kda(p, ampere()).backend(), "sm80");
}

}  // namespace
}  // namespace kadence::ops::cuda::sm80
