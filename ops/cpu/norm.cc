#include "ops/norm.h"

#include "ops/cpu/nn_kernels.h"
#include "ops/cpu/nn_parallel.h"

namespace kadence::ops {

void rms_norm(const float* x, int64_t x_pitch, const float* weight, float eps, float* y, int64_t y_pitch, int64_t rows,
              int64_t width, device::Stream& stream) {
  const device::Isa isa = stream.info().isa;
  for_rows(stream, rows, width,
           [&](int64_t r) { rms_norm_row(isa, x + r * x_pitch, weight, eps, y + r * y_pitch, width); });
}

void gated_rms_norm(const float* x, int64_t x_pitch, const float* z, int64_t z_pitch, const float* weight, float eps,
                    float* y, int64_t y_pitch, int64_t tokens, int64_t heads, int64_t width, device::Stream& stream) {
  const device::Isa isa = stream.info().isa;
  for_rows(stream, tokens, 3 * heads * width, [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h)
      gated_rms_norm_row(isa, x + t * x_pitch + h * width, z + t * z_pitch + h * width, weight, eps,
                         y + t * y_pitch + h * width, width);
  });
}

void add_rows(float* acc, int64_t acc_pitch, const float* x, int64_t x_pitch, int64_t rows, int64_t width,
              device::Stream& stream) {
  const device::Isa isa = stream.info().isa;
  for_rows(stream, rows, width, [&](int64_t r) { add_row(isa, acc + r * acc_pitch, x + r * x_pitch, width); });
}

void gated_activation(const Activation& activation, const float* gate_up, int64_t gate_up_pitch, float* y,
                      int64_t y_pitch, int64_t rows, int64_t width, device::Stream& stream) {
  const device::Isa isa = stream.info().isa;
  for_rows(stream, rows, 4 * width, [&](int64_t r) {
    gated_activation_row(isa, activation, gate_up + r * gate_up_pitch, y + r * y_pitch, width);
  });
}

}  // namespace kadence::ops
