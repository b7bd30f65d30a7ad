// A row's bits depend on the row alone. All comparisons here are exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/compare.h"
#include "ops/testing/kda_batch.h"
#include "ops/testing/kda_oracle.h"
#include "ops/testing/targets.h"

namespace kadence::ops::testing {
namespace {

KdaProblem problem_of(KdaGate gate = KdaGate::kBounded, int H = 1, int HV = 2, int K = 32, int V = 64) {
  KdaProblem p;
  p.gate = gate, p.H = H, p.HV = HV, p.K = K, p.V = V;
  return p;
}

std::vector<const KdaRowData*> pointers(const std::vector<KdaRowData>& rows) {
  std::vector<const KdaRowData*> p;
  for (const KdaRowData& r : rows) p.push_back(&r);
  return p;
}

class Bits : public ::testing::TestWithParam<Target> {
 protected:
  Bits() : stream_(device::Stream::cpu(1, GetParam().isa)) { layout_.options.backend = GetParam().backend; }
  // The row run alone.
  RowResult alone(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row, const BatchLayout& layout) {
    BatchResult r = run_extend(stream_, p, w, {&row}, layout);
    EXPECT_TRUE(r.faults.empty()) << r.faults[0];
    EXPECT_EQ(r.backend, GetParam().backend);
    EXPECT_EQ(r.isa, GetParam().isa);
    return r.rows[0];
  }
  RowResult alone(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row) { return alone(p, w, row, layout_); }
  device::Stream stream_;
  BatchLayout layout_;
};

TEST_P(Bits, BatchCompositionOrderAndLayoutDoNotMatter) {
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kGivenLogDecay}) {
    const KdaProblem p = problem_of(gate);
    const KdaWeights w = make_weights(p, 1);
    std::vector<KdaRowData> rows;
    for (int64_t len : {130, 1, 0, 64, 77, 200, 16, 63}) {
      rows.push_back(make_row(p, {}, len, static_cast<uint64_t>(10 + len)));
      if (len >= 64) rows.back().checkpoints = {64};
    }
    rows[4].state.clear();
    std::vector<RowResult> expected;
    for (const KdaRowData& r : rows) expected.push_back(alone(p, w, r));
    std::vector<int> order{0, 1, 2, 3, 4, 5, 6, 7};
    for (int shuffle = 0; shuffle < 3; ++shuffle) {
      std::vector<const KdaRowData*> batch;
      for (int i : order) batch.push_back(&rows[static_cast<size_t>(i)]);
      BatchLayout layout = layout_;
      layout.seq_int64 = shuffle == 1, layout.pitch_pad = 16 * shuffle, layout.device_metadata = shuffle == 2,
      layout.in_place = shuffle == 1;
      layout.slot_seed = static_cast<uint64_t>(shuffle + 5), layout.odd_beta = shuffle > 0;
      const BatchResult got = run_extend(stream_, p, w, batch, layout);
      for (const std::string& f : got.faults) ADD_FAILURE() << f;
      for (size_t i = 0; i < batch.size(); ++i)
        EXPECT_TRUE(got.rows[i] == expected[static_cast<size_t>(order[i])])
            << "row " << order[i] << " shuffle " << shuffle;
      std::next_permutation(order.begin(), order.end());
      std::rotate(order.begin(), order.begin() + 3, order.end());
    }
  }
}

TEST_P(Bits, BlockSizeDoesNotMatterAndSizesTheWorkspace) {
  const KdaProblem p = problem_of();
  const KdaWeights w = make_weights(p, 2);
  KdaRowData row = make_row(p, {}, 2150, 3), small = make_row(p, {}, 70, 4);
  row.checkpoints = {64, 128, 1024, 2048, 2112};
  std::vector<RowResult> first;
  std::vector<size_t> bytes;
  for (int block : {64, 128, 1024, 2048, 0}) {
    BatchLayout layout = layout_;
    layout.options.extend_block_tokens = block;
    const BatchResult got = run_extend(stream_, p, w, {&row, &small}, layout);
    for (const std::string& f : got.faults) ADD_FAILURE() << f;
    if (first.empty()) first = got.rows;
    EXPECT_TRUE(got.rows[0] == first[0]) << block;
    EXPECT_TRUE(got.rows[1] == first[1]) << block;
    bytes.push_back(got.workspace_bytes);
    // The same for any number of tokens.
    KdaProblem bounds = with_bounds(p, {&row, &small}, 0);
    bounds.bounds.max_tokens = 1 << 20;
    EXPECT_EQ(plan_kda(bounds, stream_.info(), layout.options).workspace_bytes(), got.workspace_bytes);
  }
  if (GetParam().backend == "cpu") {
    EXPECT_LT(bytes[0], bytes[1]);
    EXPECT_LT(bytes[1], bytes[2]);
    EXPECT_LT(bytes[2], bytes[3]);
  }
}

TEST_P(Bits, SplitOnTheGridEqualsOneRun) {
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    const KdaProblem p = problem_of(gate);
    const KdaWeights w = make_weights(p, 4);
    KdaRowData row = make_row(p, {}, 330, 5);
    row.checkpoints = {64, 128, 192, 256, 320};
    const RowResult whole = alone(p, w, row);
    const size_t width = static_cast<size_t>(p.HV) * p.V;
    for (size_t c = 0; c < row.checkpoints.size(); ++c) {
      const int64_t at = row.checkpoints[c];
      // The checkpoint is the final state of the prefix run, and the rest resumed from it is the rest of the whole.
      const RowResult prefix = alone(p, w, slice_row(p, row, 0, at, row.state));
      EXPECT_EQ(prefix.state, whole.checkpoints[c]) << at;
      EXPECT_TRUE(std::equal(prefix.out.begin(), prefix.out.end(), whole.out.begin())) << at;
      const RowResult rest = alone(p, w, slice_row(p, row, at, row.len, whole.checkpoints[c]));
      EXPECT_EQ(rest.state, whole.state) << at;
      EXPECT_TRUE(std::equal(rest.out.begin(), rest.out.end(), whole.out.begin() + static_cast<int64_t>(at * width)))
          << at;
    }
  }
}

// A token's output may not depend on what comes later, not even on a NaN in its own chunk.
TEST_P(Bits, LaterTokensDoNotMatter) {
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    const KdaProblem p = problem_of(gate);
    const KdaWeights w = make_weights(p, 6);
    const KdaRowData row = make_row(p, {}, 100, 7);
    const RowResult whole = alone(p, w, row);
    const int64_t width = int64_t{p.HV} * p.V;
    for (int64_t keep : {1, 5, 16, 23, 64, 70, 99}) {
      const RowResult prefix = alone(p, w, slice_row(p, row, 0, keep, row.state));
      EXPECT_TRUE(std::equal(prefix.out.begin(), prefix.out.end(), whole.out.begin())) << keep;
      KdaRowData poisoned = row;
      for (std::vector<float>* t : {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.decay, &poisoned.beta})
        std::fill(t->begin() + static_cast<int64_t>(t->size()) / row.len * keep, t->end(), NAN);
      const RowResult got = alone(p, w, poisoned);
      EXPECT_TRUE(std::equal(got.out.begin(), got.out.begin() + keep * width, whole.out.begin())) << keep;
    }
  }
}

TEST_P(Bits, ThreadsDoNotMatter) {
  for (int V : {64, 128}) {
    const KdaProblem p = problem_of(KdaGate::kBounded, 1, 1, 64, V);
    const KdaWeights w = make_weights(p, 8);
    KdaRowData row = make_row(p, {}, 2000, 9), other = make_row(p, {}, 300, 10);
    row.checkpoints = {1024};
    for (const std::vector<const KdaRowData*>& batch :
         {std::vector<const KdaRowData*>{&row}, std::vector<const KdaRowData*>{&other, &row}}) {
      const BatchResult one = run_extend(stream_, p, w, batch, layout_);
      for (int threads : {2, 3, 5}) {
        device::Stream many = device::Stream::cpu(threads, GetParam().isa);
        const BatchResult got = run_extend(many, p, w, batch, layout_);
        for (const std::string& f : got.faults) ADD_FAILURE() << f;
        for (size_t i = 0; i < batch.size(); ++i)
          EXPECT_TRUE(got.rows[i] == one.rows[i]) << threads << " threads, V " << V;
      }
    }
  }
}

TEST_P(Bits, AbsentStateEqualsZeroStateAndSharedStatesAreSafe) {
  const KdaProblem p = problem_of();
  const KdaWeights w = make_weights(p, 11);
  KdaRowData none = make_row(p, {}, 90, 12);
  none.state.clear();
  KdaRowData zeros = none;
  zeros.state.assign(static_cast<size_t>(p.HV) * p.V * p.K, 0.0f);
  EXPECT_TRUE(alone(p, w, none) == alone(p, w, zeros));
  std::vector<KdaRowData> rows;
  for (int i = 0; i < 3; ++i) {
    rows.push_back(make_row(p, {}, 40 + i, 20 + static_cast<uint64_t>(i)));
    rows.back().state = rows[0].state;
  }
  BatchLayout shared = layout_;
  shared.share_state_in = true;
  const BatchResult got = run_extend(stream_, p, w, pointers(rows), shared);
  for (const std::string& f : got.faults) ADD_FAILURE() << f;
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(got.rows[i] == alone(p, w, rows[i]));
}

TEST_P(Bits, EmptyRowsCopyConvertOrLeaveTheState) {
  KdaProblem p = problem_of();
  const KdaWeights w = make_weights(p, 13);
  KdaRowData row = make_row(p, {}, 0, 14), none = row;
  none.state.clear();
  EXPECT_EQ(alone(p, w, row).state, row.state);
  EXPECT_EQ(alone(p, w, none).state, std::vector<float>(row.state.size(), 0.0f));
  BatchLayout in_place = layout_;
  in_place.in_place = true;
  EXPECT_EQ(alone(p, w, row, in_place).state, row.state);
  p.state_out = DType::kBF16;
  BatchLayout two_pools = layout_;
  two_pools.one_pool = false;
  std::vector<float> rounded = row.state;
  for (float& x : rounded) x = round_to(x, DType::kBF16);
  EXPECT_EQ(alone(p, w, row, two_pools).state, rounded);
}

// A power of two commutes with every rounding: the outputs scale exactly.
TEST_P(Bits, LinearInValuesAndState) {
  const KdaProblem p = problem_of();
  const KdaWeights w = make_weights(p, 15);
  const KdaRowData row = make_row(p, {}, 70, 16);
  KdaRowData scaled = row;
  for (float& x : scaled.v) x *= 8;
  for (float& x : scaled.state) x *= 8;
  RowResult a = alone(p, w, row);
  const RowResult b = alone(p, w, scaled);
  for (float& x : a.out) x *= 8;
  for (float& x : a.state) x *= 8;
  EXPECT_TRUE(a == b);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Bits, ::testing::ValuesIn(cpu_targets()), target_name);

// Different instruction sets are different arithmetic, but the plan's choice is what runs.
TEST(Isa, EachInstructionSetRunsItsOwnCode) {
  const KdaProblem p = problem_of(KdaGate::kBounded, 1, 1, 128, 128);
  const KdaWeights w = make_weights(p, 1);
  const KdaRowData row = make_row(p, {}, 64, 2);
  std::vector<std::vector<float>> outs;
  for (const Target& t : cpu_targets(false)) {
    device::Stream s = device::Stream::cpu(1, t.isa);
    BatchLayout layout;
    layout.options.backend = "cpu";
    outs.push_back(run_extend(s, p, w, {&row}, layout).rows[0].out);
  }
  // Sums over 128 channels run over 16, 8 or 4 lanes: some last bits must differ.
  for (size_t i = 1; i < outs.size(); ++i) EXPECT_NE(outs[i], outs[0]);
}

// The same input a hundred times, with scratch full of different garbage, has one result.
TEST(Determinism, RepeatsHaveOneResult) {
  device::Stream s = device::Stream::cpu(2);
  const KdaProblem p = problem_of(KdaGate::kBounded, 2, 2, 32, 32);
  const KdaWeights w = make_weights(p, 17);
  std::vector<KdaRowData> rows;
  for (int64_t len : {200, 63, 1, 129}) rows.push_back(make_row(p, {}, len, static_cast<uint64_t>(len)));
  const BatchResult first = run_extend(s, p, w, pointers(rows));
  for (int i = 0; i < 50; ++i) {
    const BatchResult got = run_extend(s, p, w, pointers(rows));
    for (size_t r = 0; r < rows.size(); ++r) ASSERT_TRUE(got.rows[r] == first.rows[r]) << i;
  }
}

}  // namespace
}  // namespace kadence::ops::testing
