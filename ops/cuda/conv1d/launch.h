// Parameters of the convolution kernels, and the launches that other leaves use.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/conv1d.h"

namespace kadence::ops::cuda {

struct ConvStepParams {
  const void* x = nullptr;
  int64_t x_pitch = 0;
  void* y = nullptr;
  int64_t y_pitch = 0;
  bool y_f32 = false;  // y is fp32 whatever x is
  int32_t channels = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int32_t rows = 0;
  const int32_t* slot_in = nullptr;
  const int32_t* slot_out = nullptr;
  const void* window_in = nullptr;
  void* window_out = nullptr;
  int64_t in_pitch = 0, out_pitch = 0, in_slots = 0, out_slots = 0;
};
void launch_conv_step(const ConvStepParams& params, DType type, cudaStream_t stream);

// Tokens of one CTA of the extend kernel: small enough to fill the device, large enough that reading the three tokens
// before a tile and the row list costs little.
int conv_tile_tokens(int64_t tokens, int channel_blocks, int sm_count);

}  // namespace kadence::ops::cuda
