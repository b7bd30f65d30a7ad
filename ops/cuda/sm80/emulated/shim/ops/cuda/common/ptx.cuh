// Stands in for ops/cuda/common/ptx.cuh where kernels run on emulated warps.
#pragma once

#include "ops/cuda/sm80/emulated/warps.h"
