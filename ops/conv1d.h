// Depthwise causal convolution of width 4 with SiLU, the short convolution before q, k and v.
//   y[t,c] = silu(bias[c] + sum_{j<4} weight[c,j] * x[t-3+j, c]),   x before the row's start = the window of state_in
// The state is the last three raw inputs (before the convolution), oldest first. Arithmetic fp32.
#pragma once

#include "ops/kda.h"

namespace kadence::ops {

struct Conv1dArgs {
  ConstTokenTensor x;             // [T,C], dtype `dtype`
  TokenTensor y;                  // [T,C]; may not alias x
  DType dtype = DType::kF32;      // of x, y and the windows: fp32 | bf16 | fp16
  int32_t channels = 0;           // C
  const float* weight = nullptr;  // [C,4], tap 3 = current token
  const float* bias = nullptr;    // [C] or null
};

// Packed rows with the metadata, null and aliasing rules of extend: windows are read at state_in, written at state_out
// and at every checkpoint. `plan` is the extend plan that the metadata belongs to.
struct Conv1dExtendArgs {
  Conv1dArgs conv;
  int64_t tokens = 0;
  KdaMetadata metadata;
  WindowView window_in, window_out, checkpoints;
};
void run_conv1d(const KdaPlan& plan, const Conv1dExtendArgs& args, device::Stream& stream);

// One token per row; slot -1 = padded row: zeros out.
struct Conv1dStepArgs {
  Conv1dArgs conv;
  int32_t rows = 0;
  const int32_t* slot_in = nullptr;
  const int32_t* slot_out = nullptr;
  WindowView window_in, window_out;
};
void run_conv1d(const Conv1dStepArgs& args, device::Stream& stream);

// Draft trees: node d of row n convolves along its ancestors, then the committed window. Nothing is stored; the raw
// inputs are what commit reads.
struct Conv1dVerifyArgs {
  Conv1dArgs conv;  // token n*D + d
  int32_t rows = 0, D = 0;
  const int32_t* n_draft = nullptr;
  const int32_t* parent = nullptr;
  const int32_t* slot_in = nullptr;
  WindowView window_in;
};
void run_conv1d(const Conv1dVerifyArgs& args, device::Stream& stream);

}  // namespace kadence::ops
