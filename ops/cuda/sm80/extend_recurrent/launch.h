// Extend token by token, in the sense of KdaBackend (ops/kda_backend.h).
#pragma once

#include "ops/kda.h"

namespace kadence::ops::cuda::sm80 {

void run_recurrent(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);

}  // namespace kadence::ops::cuda::sm80
