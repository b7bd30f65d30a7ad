// The arithmetic of the short convolution, per instruction set.
#pragma once

#include "ops/conv1d.h"

namespace kadence::ops::cpu {

// y_t[c] = silu(bias[c] + sum_j weight[c,j] * x_{t+j}[c]) for t < tokens and channels [first, first + channels).
// x[0..tokens+2] point at the raw inputs at channel `first`, oldest first, so that x[t+3] is token t; null = zeros.
// Token t goes to y + t * y_stride bytes, channel `first` first.
using ConvKernel = void (*)(const Conv1dArgs& conv, const void* const* x, int tokens, int first, int channels, void* y,
                            int64_t y_stride);
ConvKernel conv_kernel(device::Isa isa);

}  // namespace kadence::ops::cpu
