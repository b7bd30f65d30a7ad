// Decode of few heads: keys are read where they lie, once, and vectors run along the latent. Lanes as queries
// (attention_kernels.h) would leave most of a vector empty there. Parts of a row's keys are merged in order.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace kadence::ops {

// The most heads for which this is the faster way; a fixed rule, since the two ways round differently.
inline constexpr int32_t kMaxRowHeads = 8;
// Widths that every vector length divides.
inline constexpr int32_t kRowWidthMultiple = 16;
// Heads are handled in fours: arrays over heads are padded to a multiple, queries with zeros.
inline constexpr int32_t kRowHeadGroup = 4;
// `rows` has this many entries after the last key, copies of it.
inline constexpr int32_t kRowKeyPadding = 4;

struct RowsArgs {
  int32_t heads = 0;                   // padded
  int32_t latent = 0, width = 0;       // R, R+P, multiples of kRowWidthMultiple
  const float* q = nullptr;            // [heads, width], scaled
  const float* const* rows = nullptr;  // [keys + kRowKeyPadding] keys of `width`
  int32_t keys = 0;                    // 1 or more
  float* scores = nullptr;             // [keys + kRowKeyPadding, 4] scratch
  float* acc = nullptr;                // [heads, latent] running sums
  float* top = nullptr;                // [heads] running maximum, -inf at the start
  float* sum = nullptr;                // [heads] running sum of exponentials
};

// One step of online softmax over some keys, all of them visible. Needs attention_lanes(isa) >= kRowHeadGroup.
void attend_rows(device::Isa isa, const RowsArgs& args);
// out[h, :] = the merged result of `parts` partial ones, divided by the merged sum. acc [parts][heads, latent] at
// acc_pitch, top and sum [parts][heads] at stat_pitch; heads here are the real ones.
void finish_rows(device::Isa isa, int32_t heads, int32_t latent, int32_t parts, const float* acc, int64_t acc_pitch,
                 const float* top, const float* sum, int64_t stat_pitch, float* out);

}  // namespace kadence::ops
