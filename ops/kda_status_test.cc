// Device metadata that the host never sees: a bad row is skipped, its outputs are zeros, nothing is stored, and the
// first bad row is reported. Other rows have the bits of a run without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "ops/conv1d.h"
#include "ops/testing/kda_batch.h"
#include "ops/testing/targets.h"

namespace kadence::ops::testing {
namespace {

constexpr int kSlots = 8, kTokens = 210, kWidth = 16;

struct Raw {
  std::vector<int32_t> begin{0, 70, 140, 200}, in{0, 1, -1}, out{2, 3, 4}, ckpt_begin{0, 1, 2, 2}, depth{64, 64},
      slot{5, 6};
  int32_t rows_device = 3;
};
struct Result {
  std::vector<std::vector<float>> out, pool, y, windows;
  std::vector<int32_t> status, conv_status;
  std::string damage;
};

class Status : public ::testing::TestWithParam<Target> {
 protected:
  Status() : stream_(device::Stream::cpu(2, GetParam().isa)) {
    p_.H = p_.HV = 1, p_.K = p_.V = kWidth;
    p_.bounds = {4, kTokens, 4};
    w_ = make_weights(p_, 1);
    row_ = make_row(p_, {}, kTokens, 2);
  }
  Result run(const Raw& raw) {
    const KdaPlan plan = plan_kda(p_, stream_.info(), {.backend = GetParam().backend});
    GuardedTensor tensors[5], out(stream_, kTokens, kWidth, kWidth, DType::kF32),
        pool(stream_, kSlots, kWidth * kWidth, kWidth * kWidth, DType::kF32);
    GuardedTensor y(stream_, kTokens, kWidth, kWidth, DType::kF32),
        windows(stream_, kSlots, 3 * kWidth, 3 * kWidth, DType::kF32);
    const std::vector<float>* from[] = {&row_.q, &row_.k, &row_.v, &row_.decay, &row_.beta};
    for (int i = 0; i < 5; ++i) {
      const int64_t width = static_cast<int64_t>(from[i]->size()) / kTokens;
      tensors[i] = GuardedTensor(stream_, kTokens, width, width, DType::kF32);
      for (int64_t t = 0; t < kTokens; ++t) tensors[i].fill_row(t, from[i]->data() + t * width);
      tensors[i].upload(stream_);
    }
    for (int s = 0; s < kSlots; ++s) {
      pool.fill_row(s, std::vector<float>(kWidth * kWidth, static_cast<float>(s)).data());
      windows.fill_row(s, std::vector<float>(3 * kWidth, static_cast<float>(s)).data());
    }
    pool.upload(stream_), windows.upload(stream_);
    const DeviceArray<int32_t> begin(stream_, raw.begin), in(stream_, raw.in), out_slot(stream_, raw.out),
        ckpt_begin(stream_, raw.ckpt_begin), depth(stream_, raw.depth), slot(stream_, raw.slot),
        rows(stream_, {raw.rows_device}), status(stream_, {0, 0}), conv_status(stream_, {0, 0});
    const device::Buffer workspace = poisoned_buffer(stream_, plan.workspace_bytes());
    KdaExtendArgs a;
    a.q = tensors[0].const_tokens(), a.k = tensors[1].const_tokens(), a.v = tensors[2].const_tokens(),
    a.decay = tensors[3].const_tokens(), a.beta = tensors[4].const_tokens();
    a.out = out.tokens(), a.tokens = kTokens, a.A_log = w_.A_log.data(), a.dt_bias = w_.dt_bias.data(),
    a.workspace = workspace.data();
    KdaMetadata& m = a.metadata;
    m.seq_begin = begin.data(), m.state_in = in.data(), m.state_out = out_slot.data(), m.ckpt_begin = ckpt_begin.data(),
    m.ckpt_depth = depth.data();
    m.ckpt_slot = slot.data(), m.rows = static_cast<int32_t>(raw.in.size()), m.rows_device = rows.data(),
    m.status = status.data();
    a.state_in = a.state_out = a.checkpoints = {pool.data(), DType::kF32, kSlots, kWidth * kWidth};
    run_kda(plan, a, stream_);
    const std::vector<float> weight(kWidth * 4, 0.5f);
    const DeviceArray<float> d_weight(stream_, weight);
    Conv1dExtendArgs c;
    c.conv.x = tensors[0].const_tokens(), c.conv.y = y.tokens(), c.conv.channels = kWidth,
    c.conv.weight = d_weight.data();
    c.tokens = kTokens, c.metadata = m, c.metadata.status = conv_status.data();
    c.window_in = c.window_out = c.checkpoints = {windows.data(), DType::kF32, kSlots, 3 * kWidth};
    run_conv1d(plan, c, stream_);
    Result r;
    for (GuardedTensor* t : {&out, &pool, &y, &windows}) t->download(stream_);
    for (int t = 0; t < kTokens; ++t) r.out.push_back(out.row(t)), r.y.push_back(y.row(t));
    for (int s = 0; s < kSlots; ++s) r.pool.push_back(pool.row(s)), r.windows.push_back(windows.row(s));
    r.status = status.download(stream_), r.conv_status = conv_status.download(stream_);
    r.damage = out.damage("out") + pool.damage("pool") + y.damage("y") + windows.damage("windows");
    return r;
  }
  // Rows in `bad` must have been skipped, the first one reported as `reason`; the others are as in the clean run.
  void expect_skipped(const Raw& raw, const std::vector<int>& bad, KdaRowStatus reason) {
    const Raw clean_raw;
    const Result clean = run(clean_raw), got = run(raw);
    EXPECT_EQ(clean.status[1], 0);
    EXPECT_EQ(got.damage, "");
    EXPECT_EQ(got.status, (std::vector<int32_t>{bad[0], static_cast<int32_t>(reason)}));
    EXPECT_EQ(got.conv_status, got.status);
    const std::vector<float> zeros(kWidth, 0.0f);
    std::vector<bool> written(kSlots, false);
    for (int i = 0; i < 3; ++i) {
      const bool skipped = std::count(bad.begin(), bad.end(), i) > 0;
      for (int t = clean_raw.begin[static_cast<size_t>(i)]; t < clean_raw.begin[static_cast<size_t>(i) + 1]; ++t) {
        EXPECT_EQ(got.out[static_cast<size_t>(t)], skipped ? zeros : clean.out[static_cast<size_t>(t)]) << t;
        EXPECT_EQ(got.y[static_cast<size_t>(t)], skipped ? zeros : clean.y[static_cast<size_t>(t)]) << t;
      }
      if (skipped) continue;
      written[static_cast<size_t>(clean_raw.out[static_cast<size_t>(i)])] = true;
      for (int c = clean_raw.ckpt_begin[static_cast<size_t>(i)]; c < clean_raw.ckpt_begin[static_cast<size_t>(i) + 1];
           ++c)
        written[static_cast<size_t>(clean_raw.slot[static_cast<size_t>(c)])] = true;
    }
    for (size_t s = 0; s < kSlots; ++s) {
      EXPECT_EQ(got.pool[s], written[s] ? clean.pool[s] : std::vector<float>(kWidth * kWidth, static_cast<float>(s)))
          << "slot " << s;
      EXPECT_EQ(got.windows[s], written[s] ? clean.windows[s] : std::vector<float>(3 * kWidth, static_cast<float>(s)))
          << "window " << s;
    }
    for (size_t t = 200; t < kTokens; ++t) EXPECT_EQ(got.out[t], zeros);
  }
  device::Stream stream_;
  KdaProblem p_;
  KdaWeights w_;
  KdaRowData row_;
};

TEST_P(Status, BadSlots) {
  for (int32_t slot : {-2, kSlots, 1 << 30, INT32_MIN}) {
    Raw in, out;
    in.in[1] = slot;
    out.out[1] = slot;
    expect_skipped(in, {1}, KdaRowStatus::kBadStateIn);
    expect_skipped(out, {1}, KdaRowStatus::kBadStateOut);
  }
}
TEST_P(Status, BadCheckpoints) {
  for (int32_t depth : {0, -64, 63, 65, 128, INT32_MAX}) {
    Raw raw;
    raw.depth[1] = depth;
    expect_skipped(raw, {1}, KdaRowStatus::kBadCheckpoint);
  }
  for (int32_t slot : {-2, kSlots, INT32_MAX}) {
    Raw raw;
    raw.slot[0] = slot;
    expect_skipped(raw, {0}, KdaRowStatus::kBadCheckpoint);
  }
  Raw wild;
  wild.ckpt_begin = {0, 1000, 2, 2};
  expect_skipped(wild, {0, 1}, KdaRowStatus::kBadCheckpoint);
  Raw endless;
  endless.ckpt_begin = {0, 1, 2, INT32_MAX};
  expect_skipped(endless, {2}, KdaRowStatus::kBadCheckpoint);
}
TEST_P(Status, BadOffsets) {
  Raw past, back;
  past.begin = {0, 70, 140, kTokens + 1};
  expect_skipped(past, {2}, KdaRowStatus::kBadOffsets);
  // Row 1 ends before it starts, and row 2 would overlap row 0: both are skipped.
  back.begin = {0, 70, 60, 200};
  expect_skipped(back, {1, 2}, KdaRowStatus::kBadOffsets);
  Raw negative;
  negative.begin = {-5, 70, 140, 200};
  expect_skipped(negative, {0}, KdaRowStatus::kBadOffsets);
}
TEST_P(Status, TheDeviceSaysHowManyRows) {
  const Raw raw;
  Raw fewer = raw;
  fewer.rows_device = 2;
  const Result whole = run(raw), got = run(fewer);
  EXPECT_EQ(got.status[1], 0);
  const std::vector<float> zeros(kWidth, 0.0f);
  for (size_t t = 0; t < kTokens; ++t) EXPECT_EQ(got.out[t], t < 140 ? whole.out[t] : zeros) << t;
  EXPECT_EQ(got.pool[4], std::vector<float>(kWidth * kWidth, 4.0f));
  // More than the launch bound counts as the bound; fewer than none as none.
  fewer.rows_device = 1000;
  EXPECT_EQ(run(fewer).out, whole.out);
  fewer.rows_device = -3;
  for (const std::vector<float>& row : run(fewer).out) EXPECT_EQ(row, zeros);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Status, ::testing::ValuesIn(cpu_targets()), target_name);

}  // namespace
}  // namespace kadence::ops::testing
