// Runs the public operators on rows of test data, on any stream, inside guarded and poisoned memory, and hands back
// what each row got.
#pragma once

#include <string>
#include <vector>

#include "ops/conv1d.h"
#include "ops/testing/guarded.h"
#include "ops/testing/kda_inputs.h"

namespace kadence::ops::testing {

// How a batch lies in memory and how it is run; none of it may change a row's result.
struct BatchLayout {
  KdaOptions options;
  int pitch_pad = 0;  // extra elements per token in every tensor (a multiple of 16; beta gets 1 when odd_beta)
  bool odd_beta = false;
  bool seq_int64 = false;
  bool one_pool = true;          // state_in, state_out and checkpoints are one memory (needs one dtype)
  bool in_place = false;         // a row's state_out is its state_in slot (needs one_pool)
  bool share_state_in = false;   // rows with equal initial states may read one slot (only when not in place)
  bool device_metadata = false;  // raw device arrays instead of upload()
  int tail_tokens = 3;           // tokens after the last row: poisoned inputs, zeros expected
  int slot_pad = 16;             // extra elements per slot
  uint64_t slot_seed = 1;        // order of the slots
};

struct RowResult {
  std::vector<float> out;    // [len,HV,V]
  std::vector<float> state;  // [HV,V,K]
  std::vector<std::vector<float>> checkpoints;
  bool operator==(const RowResult& o) const;  // bit for bit
};

struct BatchResult {
  std::vector<RowResult> rows;
  std::vector<std::string> faults;  // guards, untouched slots, tails: empty = clean
  std::string backend;              // of the plan
  device::Isa isa = device::Isa::kBaseline;
  size_t workspace_bytes = 0;
};

BatchResult run_extend(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                       const std::vector<const KdaRowData*>& rows, const BatchLayout& layout = {});

// Runs row.len steps for every row (rows of different lengths end as padded rows), in place.
BatchResult run_steps(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                      const std::vector<const KdaRowData*>& rows, const BatchLayout& layout = {});

// One verify call with row.len nodes per row, then one commit.
struct VerifyRow {
  const KdaRowData* data = nullptr;
  std::vector<int32_t> parent;  // [len]
  int32_t node = -1;            // to commit
  int32_t track_node = -1;      // to snapshot
  bool padded = false;          // slot -1
};
struct VerifyResult {
  std::vector<float> out;                     // [len,HV,V]
  std::vector<float> committed, tracked;      // states; committed = the old one when node is -1; tracked empty if none
  std::vector<float> window, tracked_window;  // [3,C] when channels > 0
};
struct VerifyBatch {
  std::vector<VerifyResult> rows;
  std::vector<std::string> faults;
  std::vector<int32_t> status;
};
// channels > 0 also commits windows of `channels`; conv_x[row] is [len,C], windows[row] is [3,C].
VerifyBatch run_verify(device::Stream& stream, const KdaProblem& problem, const KdaWeights& weights,
                       const std::vector<VerifyRow>& rows, int channels = 0,
                       const std::vector<std::vector<float>>& conv_x = {},
                       const std::vector<std::vector<float>>& windows = {}, const BatchLayout& layout = {});

// The problem with bounds that hold the batch.
KdaProblem with_bounds(KdaProblem problem, const std::vector<const KdaRowData*>& rows, int tail_tokens);

}  // namespace kadence::ops::testing
