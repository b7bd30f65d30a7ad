// What is right, in float64, from the definition alone. Two oracles that share nothing with each other or with the
// kernels: the token recurrence, and the chunk (UT) form. The second one checks the first.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/testing/kda_inputs.h"

namespace kadence::ops::testing {

struct OracleResult {
  std::vector<double> out;                  // [len,HV,V]
  std::vector<double> state;                // [HV,V,K] after the last token
  std::vector<std::vector<double>> states;  // after each depth of row.checkpoints
};

// Token by token. `state_dtype` other than kF64 rounds the state after every token (what a step sequence stores).
OracleResult oracle_recurrence(const KdaProblem& problem, const KdaWeights& weights, const KdaRowData& row,
                               DType state_dtype = DType::kF64);
// 16 tokens at a time: R = (I + diag(beta) strict_tril(A))^-1 diag(beta) (V - Kd S^T), with pairwise decays.
OracleResult oracle_chunked(const KdaProblem& problem, const KdaWeights& weights, const KdaRowData& row);
// Draft trees: token d continues from the state after parent[d] (-1 = row.state).
struct TreeResult {
  std::vector<double> out;                  // [len,HV,V]
  std::vector<std::vector<double>> states;  // after each node, [HV,V,K]
};
TreeResult oracle_tree(const KdaProblem& problem, const KdaWeights& weights, const KdaRowData& row,
                       const std::vector<int32_t>& parent, DType state_dtype);
// [len,C] inputs, [3,C] window (empty = zeros) -> silu(conv), weight [C,4], bias [C] or empty.
std::vector<double> oracle_conv(const std::vector<float>& x, const std::vector<float>& window,
                                const std::vector<float>& weight, const std::vector<float>& bias, int channels);

}  // namespace kadence::ops::testing
