// RMSNorm and its gated form, row by row, fp32.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace kadence::ops {

// y[t,:] = x[t,:] * rsqrt(mean(x[t,:]^2) + eps) * weight. In place allowed. Pitches in elements.
void rms_norm(const float* x, int64_t x_pitch, const float* weight, float eps, float* y, int64_t y_pitch, int64_t rows,
              int64_t width, device::Stream& stream);
// y[t,h,:] = rms_norm over V of x[t,h,:] with weight [V], then times sigmoid(z[t,h,:]). Heads dense. In place allowed.
void gated_rms_norm(const float* x, int64_t x_pitch, const float* z, int64_t z_pitch, const float* weight, float eps,
                    float* y, int64_t y_pitch, int64_t tokens, int64_t heads, int64_t width, device::Stream& stream);
// acc[t,:] += x[t,:].
void add_rows(float* acc, int64_t acc_pitch, const float* x, int64_t x_pitch, int64_t rows, int64_t width,
              device::Stream& stream);

// The activation of a gated feed-forward, y = act(gate) * up.
struct Activation {
  enum class Kind { kSilu, kClampedSilu, kSitu } kind = Kind::kSilu;
  float limit = 0;  // kClampedSilu: gate = min(gate, limit), up = clamp(up, -limit, limit), before silu (GLM-5.3)
  float beta = 4,
        linear_beta = 25;  // kSitu: beta*tanh(gate/beta)*sigmoid(gate) * linear_beta*tanh(up/linear_beta) (Kimi K3)
};
// gate_up [rows, 2*width] (gate first) -> y [rows, width].
void gated_activation(const Activation& activation, const float* gate_up, int64_t gate_up_pitch, float* y,
                      int64_t y_pitch, int64_t rows, int64_t width, device::Stream& stream);

}  // namespace kadence::ops
