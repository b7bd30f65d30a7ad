// Host side of the small kernels: current device, launch, errors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/device.h"
#include "ops/cuda/common/check.h"

namespace kadence::ops::cuda {

// Makes the stream's device current for one launch.
class LaunchScope {
 public:
  explicit LaunchScope(device::Stream& stream) : stream_(static_cast<cudaStream_t>(stream.native())) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    changed_ = previous_ != stream.info().ordinal;
    if (changed_) check(cudaSetDevice(stream.info().ordinal), "cudaSetDevice");
  }
  ~LaunchScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_;
  int previous_ = 0;
  bool changed_ = false;
};

// Rows sit on grid y and z: y is limited to 65535.
inline constexpr unsigned kMaxGridY = 65535;
inline dim3 rows_grid(unsigned x, int64_t rows) {
  const int64_t z = (rows + kMaxGridY - 1) / kMaxGridY;
  return dim3(x, static_cast<unsigned>(z > 1 ? kMaxGridY : rows), static_cast<unsigned>(z));
}

}  // namespace kadence::ops::cuda
