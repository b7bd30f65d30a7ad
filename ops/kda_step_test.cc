// Step, verify, commit.
#include <gtest/gtest.h>

#include "ops/testing/compare.h"
#include "ops/testing/kda_batch.h"
#include "ops/testing/kda_oracle.h"
#include "ops/testing/targets.h"

namespace kadence::ops::testing {
namespace {

struct StepCase {
  KdaGate gate;
  DType io, state;
  int H, HV, K, V;
};
const StepCase kCases[] = {
    {KdaGate::kBounded, DType::kF32, DType::kF32, 1, 2, 128, 128},
    {KdaGate::kSoftplus, DType::kF32, DType::kF32, 2, 2, 64, 16},
    {KdaGate::kGivenLogDecay, DType::kF32, DType::kF32, 1, 1, 16, 32},
    {KdaGate::kBounded, DType::kBF16, DType::kF32, 1, 2, 64, 64},
    {KdaGate::kSoftplus, DType::kF32, DType::kBF16, 1, 1, 32, 64},
    {KdaGate::kBounded, DType::kF16, DType::kF16, 2, 4, 32, 32},
    {KdaGate::kBounded, DType::kF32, DType::kF32, 1, 1, 256, 64},
};

KdaProblem problem_of(const StepCase& c) {
  KdaProblem p;
  p.gate = c.gate, p.io = p.decay = c.io, p.state_in = p.state_out = c.state;
  p.H = c.H, p.HV = c.HV, p.K = c.K, p.V = c.V;
  return p;
}
double rounding(DType t) { return t == DType::kF32 ? 0 : t == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

class Decode : public ::testing::TestWithParam<Target> {
 protected:
  Decode() : stream_(device::Stream::cpu(2, GetParam().isa)) { layout_.options.backend = GetParam().backend; }
  device::Stream stream_;
  BatchLayout layout_;
};

TEST_P(Decode, StepsMatchTheRecurrence) {
  for (const StepCase& c : kCases) {
    const KdaProblem p = problem_of(c);
    const KdaWeights w = make_weights(p, 1);
    std::vector<KdaRowData> data;
    std::vector<const KdaRowData*> rows;
    for (int64_t len : {7, 1, 0, 20}) data.push_back(make_row(p, {}, len, static_cast<uint64_t>(len + 1)));
    for (const KdaRowData& r : data) rows.push_back(&r);
    const BatchResult got = run_steps(stream_, p, w, rows, layout_);
    for (const std::string& f : got.faults) ADD_FAILURE() << f;
    EXPECT_EQ(got.backend, GetParam().backend);
    for (size_t i = 0; i < data.size(); ++i) {
      const OracleResult want = oracle_recurrence(p, w, data[i], c.state);
      // One unit in the last place of a rounded state may flip where fp32 and fp64 fall on different sides.
      EXPECT_EQ(exceeds(compare(got.rows[i].out, want.out, p.HV, p.V, rounding(c.io) * 1e-3),
                        1e-6 + rounding(c.io) + 0.2 * rounding(c.state), "out"),
                "")
          << i;
      EXPECT_EQ(exceeds(compare(got.rows[i].state, want.state, p.HV, int64_t{p.V} * p.K),
                        1e-6 + 0.2 * rounding(c.state), "state"),
                "")
          << i;
    }
  }
}

TEST_P(Decode, StepAndExtendAgree) {
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    KdaProblem p;
    p.gate = gate, p.H = 1, p.HV = 2, p.K = p.V = 64;
    const KdaWeights w = make_weights(p, 2);
    const KdaRowData row = make_row(p, {}, 80, 3);
    const BatchResult steps = run_steps(stream_, p, w, {&row}, layout_),
                      extend = run_extend(stream_, p, w, {&row}, layout_);
    const std::vector<double> out(extend.rows[0].out.begin(), extend.rows[0].out.end()),
        state(extend.rows[0].state.begin(), extend.rows[0].state.end());
    EXPECT_EQ(exceeds(compare(steps.rows[0].out, out, p.HV, p.V), 1e-6, "out"), "");
    EXPECT_EQ(exceeds(compare(steps.rows[0].state, state, p.HV, int64_t{p.V} * p.K), 1e-6, "state"), "");
  }
}

// A chain, and a tree with branches at several depths.
const std::vector<std::vector<int32_t>> kTrees{
    {-1, 0, 1, 2, 3, 4}, {-1, 0, 0, 1, 2, -1}, {-1, -1, 1, 0, 2, 4}, {-1}, {}};

TEST_P(Decode, VerifyHasTheBitsOfStepsAlongThePathAndCommitTheirStates) {
  for (const StepCase& c : kCases) {
    KdaProblem p = problem_of(c);
    p.D = 6;
    const KdaWeights w = make_weights(p, 5);
    std::vector<KdaRowData> data;
    for (size_t i = 0; i < kTrees.size(); ++i)
      data.push_back(make_row(p, {}, static_cast<int64_t>(kTrees[i].size()), 30 + i));
    const int64_t width = int64_t{p.HV} * p.V;
    for (int32_t node : {-1, 0, 3, 5}) {
      std::vector<VerifyRow> rows;
      for (size_t i = 0; i < kTrees.size(); ++i) {
        const int32_t n = static_cast<int32_t>(kTrees[i].size());
        VerifyRow r{&data[i], kTrees[i], std::min(node, n - 1), node > 0 && n > 0 ? std::min(2, n - 1) : -1, false};
        rows.push_back(r);
      }
      rows.push_back({&data[0], kTrees[0], 2, -1, true});
      const VerifyBatch got = run_verify(stream_, p, w, rows, 0, {}, {}, layout_);
      for (const std::string& f : got.faults) ADD_FAILURE() << f;
      EXPECT_EQ(got.status[1], 0);
      for (size_t i = 0; i < kTrees.size(); ++i) {
        // Steps along the path of every node.
        const auto path_row = [&](int32_t at) {
          std::vector<int32_t> path;
          for (int32_t n = at; n >= 0; n = kTrees[i][static_cast<size_t>(n)]) path.insert(path.begin(), n);
          KdaRowData r = slice_row(p, data[i], 0, 0, data[i].state);
          for (int32_t n : path) {
            const KdaRowData one = slice_row(p, data[i], n, n + 1, {});
            r.q.insert(r.q.end(), one.q.begin(), one.q.end()), r.k.insert(r.k.end(), one.k.begin(), one.k.end()),
                r.v.insert(r.v.end(), one.v.begin(), one.v.end());
            r.decay.insert(r.decay.end(), one.decay.begin(), one.decay.end()),
                r.beta.insert(r.beta.end(), one.beta.begin(), one.beta.end());
          }
          r.len = static_cast<int64_t>(path.size());
          return r;
        };
        for (int32_t n = 0; n < static_cast<int32_t>(kTrees[i].size()); ++n) {
          const KdaRowData path = path_row(n);
          const BatchResult steps = run_steps(stream_, p, w, {&path}, layout_);
          const std::vector<float> last(steps.rows[0].out.end() - width, steps.rows[0].out.end());
          const std::vector<float> mine(got.rows[i].out.begin() + n * width, got.rows[i].out.begin() + (n + 1) * width);
          EXPECT_EQ(mine, last) << "tree " << i << " node " << n;
          if (n == rows[i].node) {
            EXPECT_EQ(got.rows[i].committed, steps.rows[0].state) << "tree " << i << " node " << n;
          }
          if (n == rows[i].track_node) {
            EXPECT_EQ(got.rows[i].tracked, steps.rows[0].state) << "tree " << i << " track " << n;
          }
        }
        if (rows[i].node < 0) {
          EXPECT_EQ(got.rows[i].committed, data[i].state);
        }
        const TreeResult want = oracle_tree(p, w, data[i], kTrees[i], c.state);
        EXPECT_EQ(exceeds(compare(got.rows[i].out, want.out, p.HV, p.V, rounding(c.io) * 1e-3),
                          1e-6 + rounding(c.io) + 0.2 * rounding(c.state), "verify"),
                  "");
      }
    }
  }
}

// Metadata read on the device: anything out of range counts as none, is reported, and nothing is written.
TEST_P(Decode, CommitOfNodesOutOfRangeIsNoneAndReported) {
  KdaProblem p;
  p.H = p.HV = 1, p.K = p.V = 16, p.D = 4;
  const KdaWeights w = make_weights(p, 7);
  const KdaRowData row = make_row(p, {}, 3, 8);
  for (int32_t node : {3, 4, 99, 1 << 30, -2}) {
    const VerifyBatch got = run_verify(stream_, p, w, {{&row, {-1, 0, 1}, node, -1, false}}, 0, {}, {}, layout_);
    EXPECT_TRUE(got.faults.empty());
    EXPECT_EQ(got.rows[0].committed, row.state) << node;
    EXPECT_EQ(got.status[1], static_cast<int32_t>(KdaRowStatus::kBadNode)) << node;
  }
  // A parent that is not before its child.
  const VerifyBatch loop = run_verify(stream_, p, w, {{&row, {-1, 1, 0}, 1, -1, false}}, 0, {}, {}, layout_);
  EXPECT_EQ(loop.rows[0].committed, row.state);
  EXPECT_EQ(loop.status[1], static_cast<int32_t>(KdaRowStatus::kBadNode));
  EXPECT_EQ(std::vector<float>(loop.rows[0].out.begin() + 16, loop.rows[0].out.begin() + 32),
            std::vector<float>(16, 0.0f));
}

TEST_P(Decode, CommitMovesTheWindowWithTheState) {
  KdaProblem p;
  p.H = p.HV = 1, p.K = p.V = 16, p.D = 5;
  const KdaWeights w = make_weights(p, 9);
  const int C = 48;
  const KdaRowData row = make_row(p, {}, 5, 10);
  const std::vector<int32_t> parent{-1, 0, 0, 2, 3};
  std::vector<float> x(5 * C), window(3 * C);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (size_t i = 0; i < window.size(); ++i) window[i] = -1.0f - static_cast<float>(i);
  const auto expected = [&](int32_t node) {
    std::vector<std::vector<float>> seen;
    for (int j = 0; j < 3; ++j) seen.emplace_back(window.begin() + j * C, window.begin() + (j + 1) * C);
    std::vector<int32_t> path;
    for (int32_t n = node; n >= 0; n = parent[static_cast<size_t>(n)]) path.insert(path.begin(), n);
    for (int32_t n : path) seen.emplace_back(x.begin() + n * C, x.begin() + (n + 1) * C);
    std::vector<float> last;
    for (size_t j = seen.size() - 3; j < seen.size(); ++j) last.insert(last.end(), seen[j].begin(), seen[j].end());
    return last;
  };
  for (int32_t node : {-1, 0, 1, 2, 3, 4})
    for (int32_t track : {-1, 0, 3}) {
      const VerifyBatch got =
          run_verify(stream_, p, w, {{&row, parent, node, track, false}}, C, {x}, {window}, layout_);
      for (const std::string& f : got.faults) ADD_FAILURE() << f;
      EXPECT_EQ(got.rows[0].window, expected(node)) << node;
      if (track >= 0) {
        EXPECT_EQ(got.rows[0].tracked_window, expected(track)) << track;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Decode, ::testing::ValuesIn(cpu_targets()), target_name);

}  // namespace
}  // namespace kadence::ops::testing
