// The conformance table that every KDA backend must pass, on any device.
#pragma once

#include <string>
#include <vector>

#include "ops/testing/kda_batch.h"

namespace kadence::ops::testing {

struct KdaCase {
  std::string name;
  KdaProblem problem;  // phase kExtend
  KdaFamilies families;
  std::vector<int64_t> lengths;
  int checkpoint_every = 64;  // depths of every row; 0 = none
  BatchLayout layout;
  bool bias = true;
  uint64_t seed = 1;
};

// What the shapes and dtypes of a backend are limited to; cases are made inside them.
struct KdaLimits {
  std::vector<int> K{16, 32, 64, 128, 256}, V{16, 32, 64, 128, 256};
  std::vector<DType> io{DType::kF32, DType::kBF16, DType::kF16};
  bool equal_kv = false;  // only K == V
  bool fp32 = true;       // arithmetic good to 1e-5 where nothing is stored in fewer bits
};
KdaLimits limits_of(const std::string& backend);

// Named cases, one for each row of the table of input families, at the backend's main shape.
std::vector<KdaCase> family_cases(const KdaLimits& limits);
// Every pair of axis values at least once, small shapes.
std::vector<KdaCase> pairwise_cases(const KdaLimits& limits);
// Every length of 1..200 and the ragged mixtures.
std::vector<KdaCase> length_cases(const KdaLimits& limits);

struct Tolerance {
  double out, state, checkpoint;
};
// Of a backend of fp32 arithmetic (limits.fp32) or of bf16 operands with fp32 accumulation.
Tolerance tolerance_of(const KdaCase& c, const KdaLimits& limits);

// Runs the case on `backend` and compares out, state and checkpoints with the float64 recurrence. Empty = passed.
// `measured` gets the errors if given.
struct Measured {
  double out = 0, state = 0, checkpoint = 0;
};
std::vector<std::string> check_case(device::Stream& stream, const std::string& backend, const KdaCase& c,
                                    const KdaLimits& limits, Measured* measured = nullptr);

}  // namespace kadence::ops::testing
