// The choices of launch shapes and the refusals of step, verify and the convolution. No GPU needed.
#include <gtest/gtest.h>

#include "ops/cuda/conv1d/launch.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/verify_commit/config.h"

namespace kadence::ops::cuda::sm90 {
namespace {

device::DeviceInfo h200() {
  device::DeviceInfo d;
  d.kind = device::DeviceKind::kCuda, d.name = "H200", d.sm_major = 9, d.sm_count = 132,
  d.shared_bytes_per_block = 227 * 1024;
  return d;
}

KdaProblem problem(KdaPhase phase, int rows, int H, int HV) {
  KdaProblem p;
  p.phase = phase, p.H = H, p.HV = HV, p.K = p.V = 128, p.io = p.decay = DType::kBF16;
  p.bounds = {rows, rows, 0};
  return p;
}

TEST(StepPlan, EveryChoiceIsALaunchThatExists) {
  for (int K : {64, 128, 256})
    for (DType in : {DType::kF32, DType::kBF16, DType::kF16})
      for (DType out : {DType::kF32, DType::kBF16, DType::kF16})
        for (bool fused : {false, true})
          for (auto [H, HV] : {std::pair{1, 1}, {12, 12}, {64, 64}, {2, 4}, {1, 8}, {4, 64}})
            for (int rows : {1, 2, 8, 31, 32, 128, 256, 4096})
              for (int cluster : {1, kMaxClusterCtas}) {
                KdaProblem p = problem(KdaPhase::kStep, rows, H, HV);
                p.K = p.V = K, p.state_in = in, p.state_out = out, p.fused_step = fused;
                if (!step_problem_misses(p).empty()) continue;
                const StepChoice c = choose_step(p, 132, cluster);
                SCOPED_TRACE(testing::Message() << "K " << K << " HV " << HV << " rows " << rows << " iterations "
                                                << c.iterations << " warps " << c.warps);
                EXPECT_EQ(decode_step_choice(encode(c)).iterations, c.iterations);
                EXPECT_EQ(decode_step_choice(encode(c)).warps, c.warps);
                EXPECT_EQ(decode_step_choice(encode(c)).fusion, c.fusion);
                EXPECT_EQ(c.fusion != StepFusion::kNone, fused);
                EXPECT_EQ(K % step_rows_per_cta(K, c.iterations, c.warps), 0);
                // Instances: inst/*.cu.
                if (K == 64) {
                  EXPECT_EQ(c.iterations, 1);
                }
                if (K == 256) {
                  EXPECT_EQ(c.iterations, 4);
                }
                if (in != out) {
                  EXPECT_EQ(c.iterations, 2);
                }
                EXPECT_TRUE(c.warps == 4 || (c.warps == 8 && K == 128 && c.iterations == 4 && in == out &&
                                             c.fusion == StepFusion::kOneLaunch));
                if (c.fusion == StepFusion::kOneLaunch) {
                  EXPECT_LE(HV / H * step_splits(K, K, c.iterations, c.warps), cluster);
                }
              }
}

TEST(StepPlan, SmallBatchesAreSpreadOverMoreCtas) {
  const auto ctas = [](int rows, int H) {
    const StepChoice c = choose_step(problem(KdaPhase::kStep, rows, H, H), 132);
    return rows * H * step_splits(128, 128, c.iterations);
  };
  EXPECT_GE(ctas(1, 12), 90);  // of 132 multiprocessors
  EXPECT_GE(ctas(1, 32), 120);
  EXPECT_EQ(choose_step(problem(KdaPhase::kStep, 128, 32, 32), 132).iterations, 2);
}

TEST(StepPlan, WorkspaceOnlyForThreeLaunches) {
  KdaPlan plan;
  plan.device_ = h200();
  plan.problem_ = problem(KdaPhase::kStep, 8, 1, 16);
  plan.problem_.fused_step = true;
  plan_step(plan);
  EXPECT_EQ(decode_step_choice(plan.variant_).fusion, StepFusion::kThreeLaunches);
  EXPECT_GE(plan.workspace_bytes_, size_t{8} * (2 * 128 + 16 * 128 + 16 * 128) * 4);
  plan.problem_ = problem(KdaPhase::kStep, 8, 16, 16);
  plan.problem_.fused_step = true;
  plan_step(plan);
  EXPECT_EQ(decode_step_choice(plan.variant_).fusion, StepFusion::kOneLaunch);
  EXPECT_EQ(plan.workspace_bytes_, 0u);
}

TEST(StepPlan, RefusalsNameWhatIsMissing) {
  KdaProblem p = problem(KdaPhase::kStep, 1, 1, 1);
  EXPECT_TRUE(step_misses(p, h200()).empty());
  device::DeviceInfo old = h200();
  old.sm_major = 8;
  ASSERT_EQ(step_misses(p, old).size(), 1u);
  EXPECT_NE(step_misses(p, old)[0].find("8.0"), std::string::npos);
  p.K = p.V = 96;
  ASSERT_EQ(step_misses(p, h200()).size(), 1u);
  EXPECT_NE(step_misses(p, h200())[0].find("96"), std::string::npos);
  p.K = 64, p.V = 128;
  EXPECT_EQ(step_misses(p, h200()).size(), 1u);
  p.V = 64, p.state_out = DType::kBF16;
  EXPECT_EQ(step_misses(p, h200()).size(), 1u);
}

TEST(VerifyPlan, ScratchHoldsEveryNode) {
  KdaPlan plan;
  plan.device_ = h200();
  plan.problem_ = problem(KdaPhase::kVerify, 5, 2, 4);
  plan.problem_.D = 7;
  plan_verify(plan);
  EXPECT_EQ(ScratchLayout::of(2, 4, 128, 128).record, 2 * 128 + 4 * 128 + 4 * 128);
  EXPECT_GE(plan.scratch_bytes_, size_t{5} * 7 * (2 + 4 + 4) * 128 * 4);
  EXPECT_EQ(plan.scratch_bytes_ % kWorkspaceAlign, 0u);
  EXPECT_EQ(plan.workspace_bytes_, 0u);
  const VerifyChoice c = decode_verify_choice(plan.variant_);
  EXPECT_TRUE(c.round_states);
  plan.options_.verify_matches_step = false;
  plan_verify(plan);
  EXPECT_FALSE(decode_verify_choice(plan.variant_).round_states);
}

TEST(VerifyPlan, ChoicesExistAndFitSharedMemory) {
  for (int K : {64, 128, 256})
    for (int rows : {1, 8, 32, 256})
      for (int D : {1, 8, 64}) {
        KdaProblem p = problem(KdaPhase::kVerify, rows, 12, 12);
        p.K = p.V = K, p.D = D;
        const VerifyChoice c = choose_verify(p, {}, 132);
        EXPECT_EQ(K % step_rows_per_cta(K, c.verify_iterations, c.verify_warps), 0);
        EXPECT_TRUE(c.verify_warps == 4 || (c.verify_warps == 8 && K == 128 && c.verify_iterations == 4));
        const size_t bytes =
            verify_shared_bytes(K, step_rows_per_cta(K, c.verify_iterations, c.verify_warps), D) + 1024;
        EXPECT_EQ(verify_misses(p, h200()).empty(), bytes <= 227 * 1024) << "K " << K << " D " << D;
      }
  // A device with less shared memory refuses long drafts by name, and still takes short ones.
  device::DeviceInfo small = h200();
  small.shared_bytes_per_block = 99 * 1024;
  KdaProblem p = problem(KdaPhase::kVerify, 32, 12, 12);
  p.D = 8;
  EXPECT_TRUE(verify_misses(p, small).empty());
  p.D = 64;
  ASSERT_EQ(verify_misses(p, small).size(), 1u);
  EXPECT_NE(verify_misses(p, small)[0].find("D = 64"), std::string::npos);
}

TEST(ConvPlan, TilesFillTheDeviceAndGrow) {
  int before = 0;
  for (int64_t tokens : {1, 64, 1000, 8192, 131072, 1048576}) {
    const int tile = conv_tile_tokens(tokens, 5, 132);
    EXPECT_GE(tile, 16);
    EXPECT_LE(tile, 256);
    EXPECT_GE(tile, before);
    before = tile;
  }
  EXPECT_EQ(conv_tile_tokens(1, 1, 132), 16);
  EXPECT_EQ(conv_tile_tokens(1048576, 5, 132), 256);
}

}  // namespace
}  // namespace kadence::ops::cuda::sm90
