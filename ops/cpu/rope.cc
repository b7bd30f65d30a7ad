#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cpu/nn_parallel.h"

namespace kadence::ops {

void rope(float* x, int64_t x_pitch, int32_t heads, int32_t width, const int64_t* positions, int64_t tokens,
          double theta, bool interleaved, device::Stream& stream, int64_t head_pitch) {
  if (width < 2 || width % 2 != 0)
    base::throw_invalid("rope width", "an even number of 2 or more", std::to_string(width));
  if (!(theta > 0)) base::throw_invalid("rope theta", "above 0", std::to_string(theta));
  if (head_pitch != 0 && head_pitch < width)
    base::throw_invalid("rope head pitch", "0 or the width or more", std::to_string(head_pitch));
  const int64_t pitch = head_pitch ? head_pitch : width;
  const int32_t half = width / 2;
  std::vector<double> frequency(static_cast<size_t>(half));
  for (int32_t i = 0; i < half; ++i) frequency[i] = std::pow(theta, -2.0 * i / width);
  // A sine and a cosine in double cost about as much as a hundred elements touched.
  for_rows(stream, tokens, int64_t{half} * (100 + 4 * heads), [&](int64_t t) {
    const int32_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : half;
    for (int32_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * frequency[i];
      const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
      float* a = x + t * x_pitch + i * step;
      for (int32_t h = 0; h < heads; ++h, a += pitch) {
        const float u = a[0], v = a[partner];
        a[0] = u * c - v * s;
        a[partner] = v * c + u * s;
      }
    }
  });
}

}  // namespace kadence::ops
