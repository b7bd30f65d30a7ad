// Stands in for ops/cuda/common/ptx.cuh where kernels run on CPU threads.
#pragma once

#include "ops/cuda/emulated/emulated.h"
