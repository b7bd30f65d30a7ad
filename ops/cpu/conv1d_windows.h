// Convolution windows that commit leaves behind, for the backends of kind kCpu.
#pragma once

#include "ops/kda_rows.h"

namespace kadence::ops::cpu {

// Writes the window after the track node and after the committed node of one row and layer: the last three raw inputs
// along the path, preceded by what is left of the committed window. Does nothing without conv_x.
void commit_windows(const KdaProblem& problem, const KdaCommitArgs& args, const KdaCommitRow& row, int64_t index,
                    int64_t layer);

}  // namespace kadence::ops::cpu
