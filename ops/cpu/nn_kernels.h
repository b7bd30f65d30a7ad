// Rows of elementwise and normalising operators on the calling thread. Every row's bits are its own.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/norm.h"

namespace kadence::ops {

// y[0:width] = x * rsqrt(mean(x^2) + eps) * weight; y may be x.
void rms_norm_row(device::Isa isa, const float* x, const float* weight, float eps, float* y, int64_t width);
// The same, times sigmoid(z).
void gated_rms_norm_row(device::Isa isa, const float* x, const float* z, const float* weight, float eps, float* y,
                        int64_t width);
// acc += x.
void add_row(device::Isa isa, float* acc, const float* x, int64_t width);
// out += sum over j of weights[j] * rows[j*pitch ...], the sum formed first, in the order of j.
void add_weighted_rows(device::Isa isa, float* out, const float* rows, int64_t pitch, const float* weights,
                       int32_t count, int64_t width);
// gate_up [2*width] -> y [width]; y may be gate_up.
void gated_activation_row(device::Isa isa, const Activation& activation, const float* gate_up, float* y, int64_t width);

// Elementwise functions as the kernels above compute them, for tests: y[i] = f(x[i]).
enum class Elementary { kExp, kExpNonpositive, kSigmoid, kTanh };
void elementary_row(device::Isa isa, Elementary function, const float* x, float* y, int64_t width);

}  // namespace kadence::ops
