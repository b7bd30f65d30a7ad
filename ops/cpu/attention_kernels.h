// The inner loops of latent attention on the calling thread. Queries are lanes: a strip holds as many (position, head)
// pairs as fit one or two vectors, and every operation is vertical, so a lane's bits do not depend on its neighbours.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/device.h"

namespace kadence::ops {

// Keys handled at a time; blocks sit at absolute multiples of it.
inline constexpr int32_t kKeyBlock = 192;
inline constexpr int32_t kMaxStrip = 32;

struct StripArgs {
  int32_t lanes = 0;              // of the strip: attention_lanes() or twice that
  int32_t latent = 0, width = 0;  // R, R+P
  const float* q = nullptr;       // [width, lanes], scaled
  const float* keys = nullptr;    // [kKeyBlock, width]; rows from keys_end on may be read, but are not used
  int32_t full_keys = 0;          // keys that every lane sees
  int32_t keys_end = 0;           // keys that some lane sees, full_keys <= keys_end <= kKeyBlock
  const float* limits = nullptr;  // [lanes] keys that the lane sees, integral; read if full_keys < keys_end
  float* scores = nullptr;        // [kKeyBlock, lanes] scratch
  float* acc = nullptr;           // [latent, lanes] running sums
  float* top = nullptr;           // [lanes] running maximum, -inf at the start
  float* sum = nullptr;           // [lanes] running sum of exponentials
};

// Vector length of `isa` in floats.
int32_t attention_lanes(device::Isa isa);
// One step of online softmax over a key block. Every lane sees at least one key of the block or of an earlier one.
void attend_strip(device::Isa isa, const StripArgs& args);
// Folds `parts` partial results, in order, into the first. acc [parts][latent, lanes] at acc_pitch, top and sum
// [parts][lanes] at stat_pitch.
void merge_strips(device::Isa isa, int32_t lanes, int32_t latent, int32_t parts, float* acc, int64_t acc_pitch,
                  float* top, float* sum, int64_t stat_pitch);
// acc[r, lane] /= sum[lane].
void finish_strip(device::Isa isa, int32_t lanes, int32_t latent, float* acc, const float* sum);
// dst[0:n] = float(src[0:n]) for bf16 and fp16.
void widen(device::Isa isa, const uint16_t* src, base::DType dtype, float* dst, int64_t n);

}  // namespace kadence::ops
