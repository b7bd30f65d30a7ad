// Times the KDA operators on a stream. Prints nothing; `kadence bench ops` and bench/ format the rows.
#pragma once

#include <string>
#include <vector>

#include "ops/kda.h"

namespace kadence::ops::testing {

struct KdaBenchOptions {
  std::string backend = "auto";
  int32_t H = 12, HV = 12, K = 128, V = 128;
  DType io = DType::kF32, state = DType::kF32;
  std::vector<int64_t> lengths{2048};          // rows of extend
  std::vector<int32_t> step_rows{1, 8};        // batch sizes of step; each uses its own slots
  int64_t step_pool_bytes = int64_t{1} << 30;  // one step over so many bytes of states, 0 = skip
  int32_t draft_tokens = 4;                    // verify, 0 = skip
  int32_t checkpoint_every = 1024;             // tokens; 0 = none
  int repeats = 15;                            // of each measurement; the median is what counts
  double seconds = 2.0;      // per row of the table; a row ends after that, but never within a call: one is timed
  int64_t memory_bytes = 0;  // most that one row may take, 0 = no bound
};

struct KdaBenchRow {
  std::string op;                                 // "extend bounded", "step", ...
  std::string shape;                              // "H=12 K=128 V=128 float32, 1 row of 2048"
  std::string backend;                            // what ran, with the instruction set
  int calls = 0;                                  // timed, after one that warms up
  double median_us = 0, low_us = 0, high_us = 0;  // of one call; low and high: 10 % and 90 % of the repeats
  double floor_us = 0;  // no implementation of the same arithmetic and traffic can be faster on this machine
  std::string
      floor;  // which limit: "memory" (copy of the same bytes) or "arithmetic" (multiply-adds at the peak measured)
  double per_unit_us = 0;  // median / units
  std::string unit;        // "token and head" or "state"
  double over_floor() const { return floor_us > 0 ? median_us / floor_us : 0; }
};

// Peak and copy are measured in the same run, interleaved with the operators. Everything is planned before anything is
// timed: Error{kUnsupported} for shapes that `backend` does not run (naming --backend), Error{kOutOfRange} for a row
// above memory_bytes.
std::vector<KdaBenchRow> bench_kda(device::Stream& stream, const KdaBenchOptions& options);

}  // namespace kadence::ops::testing
