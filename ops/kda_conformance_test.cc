// The conformance table on every CPU backend and instruction set of this machine.
#include "ops/testing/kda_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/testing/compare.h"
#include "ops/testing/kda_oracle.h"
#include "ops/testing/pairwise.h"
#include "ops/testing/targets.h"

namespace kadence::ops::testing {
namespace {

class Conformance : public ::testing::TestWithParam<Target> {
 protected:
  Conformance() : stream_(device::Stream::cpu(2, GetParam().isa)) {}
  void run(const std::vector<KdaCase>& cases) {
    const KdaLimits limits = limits_of(GetParam().backend);
    Measured worst;
    for (const KdaCase& c : cases)
      for (const std::string& fault : check_case(stream_, GetParam().backend, c, limits, &worst))
        ADD_FAILURE() << fault;
    RecordProperty("out", std::to_string(worst.out));
    RecordProperty("state", std::to_string(worst.state));
  }
  device::Stream stream_;
};

TEST_P(Conformance, InputFamilies) { run(family_cases(limits_of(GetParam().backend))); }
TEST_P(Conformance, Lengths) { run(length_cases(limits_of(GetParam().backend))); }
TEST_P(Conformance, PairwiseAxes) { run(pairwise_cases(limits_of(GetParam().backend))); }

INSTANTIATE_TEST_SUITE_P(Cpu, Conformance, ::testing::ValuesIn(cpu_targets()), target_name);

// The oracles check each other: they share no code and no formula.
TEST(Oracle, RecurrenceAndChunkFormAgree) {
  for (const KdaCase& c : family_cases(limits_of("cpu"))) {
    if (c.lengths[0] > 400) continue;
    const KdaWeights w = make_weights(c.problem, 3);
    KdaRowData row = make_row(c.problem, c.families, 83, 4);
    row.checkpoints = {64};
    const OracleResult a = oracle_recurrence(c.problem, w, row), b = oracle_chunked(c.problem, w, row);
    const auto as_float = [](const std::vector<double>& v) { return std::vector<float>(v.begin(), v.end()); };
    EXPECT_EQ(exceeds(compare(as_float(b.out), a.out, c.problem.HV, c.problem.V), 1e-7, c.name + " out"), "");
    EXPECT_EQ(exceeds(compare(as_float(b.state), a.state, c.problem.HV, int64_t{c.problem.V} * c.problem.K), 1e-7,
                      c.name + " state"),
              "");
    EXPECT_EQ(exceeds(compare(as_float(b.states[0]), a.states[0], c.problem.HV, int64_t{c.problem.V} * c.problem.K),
                      1e-7, c.name + " checkpoint"),
              "");
  }
}

TEST(Pairwise, CoversEveryPair) {
  const std::vector<int> sizes{3, 4, 2, 5};
  const auto rows = pairwise_cover(sizes);
  EXPECT_LT(rows.size(), 35u);
  for (size_t a = 0; a < sizes.size(); ++a)
    for (size_t b = a + 1; b < sizes.size(); ++b)
      for (int x = 0; x < sizes[a]; ++x)
        for (int y = 0; y < sizes[b]; ++y)
          EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const auto& r) { return r[a] == x && r[b] == y; }));
}

TEST(Compare, NanAndInfNeverPass) {
  const std::vector<double> want{1, 2, 3, 4};
  EXPECT_EQ(exceeds(compare({1, 2, 3, 4}, want, 1, 2), 1e-9, ""), "");
  EXPECT_NE(exceeds(compare({1, 2, 3, NAN}, want, 1, 2), 1e9, ""), "");
  EXPECT_NE(exceeds(compare({1, 2, 3, INFINITY}, want, 1, 2), 1e9, ""), "");
  EXPECT_NE(exceeds(compare({1, 2, 3, 4.1f}, want, 1, 2), 1e-3, ""), "");
  EXPECT_NE(exceeds(compare({0, 0, 1e-3f, 0}, {0, 0, 0, 0}, 2, 1), 1e-3, ""), "");  // zero must be zero
}

}  // namespace
}  // namespace kadence::ops::testing
