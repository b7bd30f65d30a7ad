// Every CUDA call and launch of the library goes through check().
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"

namespace kadence::ops::cuda {

// Throws Error{kDevice} naming `what` unless `e` is success.
inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess)
    base::throw_error(base::ErrorCode::kDevice,
                      std::string(what) + ": " + cudaGetErrorString(e) + " (" + cudaGetErrorName(e) + ")");
}
// After a launch with <<<>>>.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace kadence::ops::cuda
