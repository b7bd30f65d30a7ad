// Rows of KDA inputs for tests and benchmarks. A row is made from its own seed, so the same row can be put into any
// batch; its values are already rounded to the dtypes that the operator will read, so oracles and kernels see the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/kda.h"

namespace kadence::ops::testing {

// What the gate gets: logits, or with kGivenLogDecay the log decay that such logits would give.
enum class GateFamily {
  kNormal,       // logits N(0,1)
  kWeak,         // N(-7,1): hardly any decay
  kChannelBias,  // per channel N(-7,1), per token + 0.1 N
  kOff,          // -12: decay is 1 to five digits
  kSaturated,    // +8
  kWide,         // N(0,8)
  kSlowChannel,  // +8, but one channel of K at -9
  kHandOff,      // +4 in one half of the channels and -9 in the other, halves swapped every 48 tokens
  kNone,         // exactly no decay: given 0, or logits -200
  kExtreme,      // -50, -1000 and -inf per token and channel at random (given or softplus); bounded: +-30
};
enum class BetaFamily { kNormal, kHigh, kLow, kZero, kOne };  // kZero and kOne are exact only when beta is given
enum class KeyFamily { kNormal, kUniform, kIdentical, kRecurring, kNearParallel, kOneHot, kZeroRows, kTiny, kHuge };
enum class StateFamily { kNone, kNormal, kLarge };

const char* to_string(GateFamily f);
const char* to_string(BetaFamily f);
const char* to_string(KeyFamily f);
const char* to_string(StateFamily f);

struct KdaFamilies {
  GateFamily gate = GateFamily::kNormal;
  BetaFamily beta = BetaFamily::kNormal;
  KeyFamily key = KeyFamily::kNormal;
  StateFamily state = StateFamily::kNormal;
  float v_scale = 1.0f;
};

// Parameters that all rows of a problem share.
struct KdaWeights {
  std::vector<float> A_log;    // [HV]; empty with kGivenLogDecay
  std::vector<float> dt_bias;  // [HV,K]; empty = none
};

struct KdaRowData {
  int64_t len = 0;
  std::vector<float> q, k;           // [len,H,K]
  std::vector<float> v;              // [len,HV,V]
  std::vector<float> decay;          // [len,HV,K]
  std::vector<float> beta;           // [len,HV]
  std::vector<float> state;          // [HV,V,K], empty = none (-1)
  std::vector<int32_t> checkpoints;  // depths
};

// Rounds through a dtype.
float round_to(float x, DType dtype);
KdaWeights make_weights(const KdaProblem& problem, uint64_t seed, bool with_bias = true);
KdaRowData make_row(const KdaProblem& problem, const KdaFamilies& families, int64_t len, uint64_t seed);
// Tokens [begin, end) of a row, with `state` as the initial state and no checkpoints.
KdaRowData slice_row(const KdaProblem& problem, const KdaRowData& row, int64_t begin, int64_t end,
                     std::vector<float> state);

}  // namespace kadence::ops::testing
