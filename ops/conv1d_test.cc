// Convolution, its windows, and slot copies.
#include "ops/conv1d.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "ops/testing/compare.h"
#include "ops/testing/guarded.h"
#include "ops/testing/kda_inputs.h"
#include "ops/testing/kda_oracle.h"
#include "ops/testing/targets.h"

namespace kadence::ops::testing {
namespace {

std::vector<float> normals(int64_t n, uint64_t seed, DType dtype = DType::kF32) {
  base::Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = round_to(static_cast<float>(rng.normal()), dtype);
  return v;
}
double allowed(DType t) { return t == DType::kF32 ? 1e-6 : t == DType::kBF16 ? 0.75 * 0x1p-8 : 0.75 * 0x1p-11; }
WindowView view_of(const GuardedTensor& pool) {
  WindowView v;
  v.base = pool.data(), v.dtype = pool.dtype(), v.slots = pool.rows(), v.slot_pitch = pool.pitch();
  return v;
}
std::vector<float> window_after(const std::vector<float>& x, const std::vector<float>& old, int64_t depth, int C) {
  std::vector<float> all = old.empty() ? std::vector<float>(static_cast<size_t>(3 * C), 0.0f) : old;
  all.insert(all.end(), x.begin(), x.begin() + depth * C);
  return {all.end() - 3 * C, all.end()};
}

class Conv : public ::testing::TestWithParam<Target> {
 protected:
  Conv() : stream_(device::Stream::cpu(2, GetParam().isa)) {}
  Conv1dArgs args(const GuardedTensor& x, const GuardedTensor& y, int C, DType dtype) {
    weight_ = normals(C * 4, 1), bias_ = normals(C, 2);
    d_weight_ = DeviceArray<float>(stream_, weight_), d_bias_ = DeviceArray<float>(stream_, bias_);
    Conv1dArgs a;
    a.x = x.const_tokens(), a.y = y.tokens(), a.dtype = dtype, a.channels = C, a.weight = d_weight_.data(),
    a.bias = d_bias_.data();
    return a;
  }
  device::Stream stream_;
  std::vector<float> weight_, bias_;
  DeviceArray<float> d_weight_, d_bias_;
};

TEST_P(Conv, ExtendMatchesTheSumAndLeavesWindowsAtCheckpoints) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int C : {16, 48, 40, 776}) {
      const std::vector<int64_t> lengths{130, 0, 1, 2, 3, 64, 70};
      std::vector<int64_t> begin{0};
      for (int64_t n : lengths) begin.push_back(begin.back() + n);
      const int64_t T = begin.back() + 2;
      GuardedTensor x(stream_, T, C, C + 8, dtype), y(stream_, T, C, C + 8, dtype),
          pool(stream_, 24, 3 * C, 3 * C + 8, dtype);
      std::vector<std::vector<float>> inputs, windows;
      std::vector<int32_t> in, out, ckpt_begin{0}, depth, slot;
      for (size_t i = 0; i < lengths.size(); ++i) {
        inputs.push_back(normals(lengths[i] * C, 10 + i, dtype));
        windows.push_back(i == 2 ? std::vector<float>() : normals(3 * C, 30 + i, dtype));
        for (int64_t t = 0; t < lengths[i]; ++t) x.fill_row(begin[i] + t, &inputs[i][static_cast<size_t>(t * C)]);
        in.push_back(i == 2 ? -1 : static_cast<int32_t>(i));
        if (in.back() >= 0) pool.fill_row(in.back(), windows[i].data());
        out.push_back(i == 1 || i == 3 ? in.back() : static_cast<int32_t>(10 + i));  // some in place
        for (int32_t d = 64; d <= lengths[i]; d += 64)
          depth.push_back(d), slot.push_back(static_cast<int32_t>(18 + slot.size()));
        ckpt_begin.push_back(static_cast<int32_t>(depth.size()));
      }
      x.upload(stream_), pool.upload(stream_);
      KdaProblem p;
      p.H = p.HV = 1, p.K = p.V = 16;
      p.bounds = {static_cast<int32_t>(lengths.size()), T, static_cast<int32_t>(depth.size())};
      const KdaPlan plan = plan_kda(p, stream_.info(), {.backend = GetParam().backend});
      const device::Buffer buffer = poisoned_buffer(stream_, plan.metadata_bytes());
      KdaHostMetadata m;
      m.seq_begin = begin, m.state_in = in, m.state_out = out, m.ckpt_begin = ckpt_begin, m.ckpt_depth = depth,
      m.ckpt_slot = slot;
      m.tokens = T, m.state_in_slots = m.state_out_slots = m.ckpt_slots = 24;
      Conv1dExtendArgs a;
      a.conv = args(x, y, C, dtype), a.tokens = T, a.metadata = upload(plan, m, buffer.data(), stream_);
      a.window_in = a.window_out = a.checkpoints = view_of(pool);
      run_conv1d(plan, a, stream_);
      y.download(stream_), pool.download(stream_);
      EXPECT_EQ(y.damage("y"), "");
      EXPECT_EQ(pool.damage("windows"), "");
      for (size_t i = 0; i < lengths.size(); ++i) {
        std::vector<float> got;
        for (int64_t t = begin[i]; t < begin[i + 1]; ++t) {
          const std::vector<float> r = y.row(t);
          got.insert(got.end(), r.begin(), r.end());
        }
        EXPECT_EQ(exceeds(compare(got, oracle_conv(inputs[i], windows[i], weight_, bias_, C), 1, C,
                                  dtype == DType::kF16 ? 0x1p-25 : 0),
                          allowed(dtype), "y"),
                  "")
            << C;
        EXPECT_EQ(pool.row(out[i]), window_after(inputs[i], windows[i], lengths[i], C)) << "row " << i;
        for (int32_t c = ckpt_begin[i]; c < ckpt_begin[i + 1]; ++c)
          EXPECT_EQ(pool.row(slot[static_cast<size_t>(c)]),
                    window_after(inputs[i], windows[i], depth[static_cast<size_t>(c)], C))
              << "checkpoint " << c;
      }
      for (int64_t t = begin.back(); t < T; ++t) EXPECT_EQ(y.row(t), std::vector<float>(static_cast<size_t>(C), 0.0f));
    }
  }
}

TEST_P(Conv, StepsAndDraftTreesHaveTheBitsOfExtend) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const int C = 72, n = 5;
    const std::vector<float> input = normals(n * C, 3, dtype), window = normals(3 * C, 4, dtype);
    GuardedTensor x(stream_, n, C, C, dtype), y(stream_, n, C, C, dtype), pool(stream_, 4, 3 * C, 3 * C, dtype);
    for (int t = 0; t < n; ++t) x.fill_row(t, &input[static_cast<size_t>(t * C)]);
    pool.fill_row(1, window.data()), pool.fill_row(2, window.data());
    x.upload(stream_), pool.upload(stream_);
    KdaProblem p;
    p.H = p.HV = 1, p.K = p.V = 16, p.bounds = {1, n, 0};
    const KdaPlan plan = plan_kda(p, stream_.info(), {.backend = GetParam().backend});
    const device::Buffer buffer = poisoned_buffer(stream_, plan.metadata_bytes());
    const std::vector<int64_t> begin{0, n};
    const std::vector<int32_t> in{1}, none{-1};
    KdaHostMetadata m;
    m.seq_begin = begin, m.state_in = in, m.state_out = none, m.tokens = n, m.state_in_slots = m.state_out_slots = 4;
    Conv1dExtendArgs e;
    e.conv = args(x, y, C, dtype), e.tokens = n, e.metadata = upload(plan, m, buffer.data(), stream_),
    e.window_in = e.window_out = view_of(pool);
    run_conv1d(plan, e, stream_);
    y.download(stream_);
    std::vector<std::vector<float>> whole;
    for (int t = 0; t < n; ++t) whole.push_back(y.row(t));

    // Steps, with a padded row beside: token t is row 0, row 1 is padding.
    for (int t = 0; t < n; ++t) {
      GuardedTensor sx(stream_, 2, C, C, dtype), sy(stream_, 2, C, C, dtype);
      sx.fill_row(0, &input[static_cast<size_t>(t * C)]);
      sx.upload(stream_);
      const DeviceArray<int32_t> slots(stream_, {2, -1});
      Conv1dStepArgs s;
      s.conv = args(sx, sy, C, dtype), s.rows = 2, s.slot_in = s.slot_out = slots.data(),
      s.window_in = s.window_out = view_of(pool);
      run_conv1d(s, stream_);
      sy.download(stream_);
      EXPECT_EQ(sy.row(0), whole[static_cast<size_t>(t)]) << t;
      EXPECT_EQ(sy.row(1), std::vector<float>(static_cast<size_t>(C), 0.0f));
    }
    pool.download(stream_);
    EXPECT_EQ(pool.row(2), window_after(input, window, n, C));
    EXPECT_EQ(pool.row(1), window);
    EXPECT_TRUE(pool.untouched(0) && pool.untouched(3));

    // A chain as a draft, with a sibling of token 1 that sees the same input: same bits. Row 1 is padded.
    GuardedTensor vx(stream_, 12, C, C, dtype), vy(stream_, 12, C, C, dtype);
    for (int t = 0; t < n; ++t) vx.fill_row(t, &input[static_cast<size_t>(t * C)]);
    vx.fill_row(5, &input[static_cast<size_t>(C)]);
    vx.upload(stream_);
    const DeviceArray<int32_t> drafts(stream_, {6, 6}), parent(stream_, {-1, 0, 1, 2, 3, 0, -1, 0, 1, 2, 3, 0}),
        slots(stream_, {1, -1});
    Conv1dVerifyArgs v;
    v.conv = args(vx, vy, C, dtype), v.rows = 2, v.D = 6, v.n_draft = drafts.data(), v.parent = parent.data(),
    v.slot_in = slots.data(), v.window_in = view_of(pool);
    run_conv1d(v, stream_);
    vy.download(stream_);
    for (int t = 0; t < n; ++t) EXPECT_EQ(vy.row(t), whole[static_cast<size_t>(t)]) << t;
    EXPECT_EQ(vy.row(5), whole[1]);
    for (int t = 6; t < 12; ++t) EXPECT_EQ(vy.row(t), std::vector<float>(static_cast<size_t>(C), 0.0f));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Conv, ::testing::ValuesIn(cpu_targets(false)), target_name);

TEST(StateCopy, CopiesThenClearsAllLayers) {
  device::Stream s = device::Stream::cpu(2);
  const int64_t n = 2 * 16 * 16, slots = 6, layers = 3, C = 24;
  GuardedTensor states(s, slots * layers, n, n + 16, DType::kF32),
      windows(s, slots * layers, 3 * C, 3 * C + 8, DType::kBF16);
  const auto state_value = [](int64_t row) { return static_cast<float>(row + 1); };
  for (int64_t r = 0; r < slots * layers; ++r) {
    states.fill_row(r, std::vector<float>(static_cast<size_t>(n), state_value(r)).data());
    windows.fill_row(r, std::vector<float>(static_cast<size_t>(3 * C), state_value(r)).data());
  }
  states.upload(s), windows.upload(s);
  const DeviceArray<int32_t> src(s, {0, 1, -1, 2}), dst(s, {3, 4, 5, -1}), clear(s, {5, -1, 99});
  StateCopyArgs a;
  a.states = {states.data(), DType::kF32, slots, n + 16, static_cast<int32_t>(layers), slots * (n + 16)};
  a.windows = {windows.data(), DType::kBF16, slots, 3 * C + 8, static_cast<int32_t>(layers), slots * (3 * C + 8)};
  a.HV = 2, a.V = a.K = 16, a.conv_channels = C, a.src = src.data(), a.dst = dst.data(), a.copies = 4,
  a.clear = clear.data(), a.clears = 3;
  run_state_copy(a, s);
  states.download(s), windows.download(s);
  EXPECT_EQ(states.damage("states") + windows.damage("windows"), "");
  for (int64_t layer = 0; layer < layers; ++layer)
    for (int64_t slot = 0; slot < slots; ++slot) {
      const float want = slot == 5   ? 0
                         : slot >= 3 ? state_value(layer * slots + slot - 3)
                                     : state_value(layer * slots + slot);
      EXPECT_EQ(states.row(layer * slots + slot), std::vector<float>(static_cast<size_t>(n), want))
          << layer << " " << slot;
      EXPECT_EQ(windows.row(layer * slots + slot), std::vector<float>(static_cast<size_t>(3 * C), want))
          << layer << " " << slot;
    }
}

}  // namespace
}  // namespace kadence::ops::testing
