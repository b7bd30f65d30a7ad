// Shared by the tests that are named after kinds of faults.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/testing/compare.h"
#include "ops/testing/kda_batch.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::ops::testing {

inline constexpr double kFp32 = 1e-5;

inline device::Stream& stream() {
  static device::Stream s = device::Stream::cpu(2);
  return s;
}
inline KdaProblem problem_of(int K, int V, int H = 1, int HV = 1) {
  KdaProblem p;
  p.H = H, p.HV = HV, p.K = K, p.V = V;
  return p;
}
inline BatchLayout on(const std::string& backend) {
  BatchLayout l;
  l.options.backend = backend;
  return l;
}
// Extends the row on both CPU backends and compares out and state with the recurrence.
inline void expect_right(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row, const std::string& what,
                         double tolerance = kFp32) {
  const OracleResult want = oracle_recurrence(p, w, row);
  for (const char* backend : {"cpu", "reference"}) {
    const BatchResult got = run_extend(stream(), p, w, {&row}, on(backend));
    for (const std::string& f : got.faults) ADD_FAILURE() << what << ": " << f;
    EXPECT_EQ(exceeds(compare(got.rows[0].out, want.out, p.HV, p.V), tolerance, what + " out"), "") << backend;
    EXPECT_EQ(exceeds(compare(got.rows[0].state, want.state, p.HV, int64_t{p.V} * p.K), tolerance, what + " state"), "")
        << backend;
  }
}
inline void fill(std::vector<float>& v, float x) { std::fill(v.begin(), v.end(), x); }
inline KdaRowData plain_row(const KdaProblem& p, int64_t len, uint64_t seed = 1) { return make_row(p, {}, len, seed); }
// Weights that change nothing: A_log 0, no bias.
inline KdaWeights unit_weights(const KdaProblem& p) {
  KdaWeights w;
  w.A_log.assign(static_cast<size_t>(p.HV), 0.0f);
  return w;
}
// One token on the path of each phase; the state it leaves.
inline std::vector<std::vector<float>> one_token_states(const KdaProblem& p, const KdaWeights& w,
                                                        const KdaRowData& row) {
  KdaProblem v = p;
  v.D = 1;
  const VerifyBatch verified = run_verify(stream(), v, w, {{&row, {-1}, 0, -1, false}});
  return {run_extend(stream(), p, w, {&row}).rows[0].state, run_steps(stream(), p, w, {&row}).rows[0].state,
          verified.rows[0].committed};
}

}  // namespace kadence::ops::testing
