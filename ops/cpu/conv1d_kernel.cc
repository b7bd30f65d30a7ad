#include "ops/cpu/conv1d_kernel.h"

#include <cmath>

namespace kadence::ops::cpu {
namespace {

void convolve(const Conv1dArgs& conv, const ConvTaps& taps, int first, int channels, void* y) {
  for (int c = 0; c < channels; ++c) {
    float sum = conv.bias ? conv.bias[first + c] : 0.0f;
    for (int j = 0; j < kConvWidth; ++j)
      if (taps.x[j]) sum += conv.weight[(first + c) * kConvWidth + j] * base::load_f32(taps.x[j], c, conv.dtype);
    base::store_f32(y, c, conv.dtype, sum / (1.0f + std::exp(-sum)));
  }
}

}  // namespace

ConvKernel conv_kernel(device::Isa) { return convolve; }

}  // namespace kadence::ops::cpu
