// The arithmetic of the short convolution for one token, per instruction set.
#pragma once

#include "ops/conv1d.h"

namespace kadence::ops::cpu {

// Raw inputs of the four taps at the first channel of the tile, oldest first; null = zeros.
struct ConvTaps {
  const void* x[kConvWidth];
};
// y[c] = silu(bias[c] + sum_j weight[c,j] * x_j[c]) for channels [first, first + channels); `y` points at channel first.
using ConvKernel = void (*)(const Conv1dArgs& conv, const ConvTaps& taps, int first, int channels, void* y);
ConvKernel conv_kernel(device::Isa isa);

}  // namespace kadence::ops::cpu
