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
    can_overlap_ = stream.info().sm_major >= 9;
    sm_count_ = stream.info().sm_count;
  }
  ~LaunchScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;
  cudaStream_t stream() const { return stream_; }
  int sm_count() const { return sm_count_; }
  bool can_overlap() const { return can_overlap_; }  // programmatic dependent launch

 private:
  cudaStream_t stream_;
  int previous_ = 0, sm_count_ = 0;
  bool changed_ = false, can_overlap_ = false;
};

// Rows sit on grid y and z: y is limited to 65535.
inline constexpr unsigned kMaxGridY = 65535;
inline dim3 rows_grid(unsigned x, int64_t rows) {
  const int64_t z = (rows + kMaxGridY - 1) / kMaxGridY;
  return dim3(x, static_cast<unsigned>(z > 1 ? kMaxGridY : rows), static_cast<unsigned>(z));
}

// A launch that may overlap the end of the stream's kernel before it (the kernel calls wait_for_previous()).
class Launch {
 public:
  Launch(dim3 grid, unsigned threads, size_t shared, const LaunchScope& scope) {
    config_.gridDim = grid;
    config_.blockDim = dim3(threads);
    config_.dynamicSmemBytes = shared;
    config_.stream = scope.stream();
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = 1;
    config_.attrs = attributes_;
    config_.numAttrs = scope.can_overlap() ? 1 : 0;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  // CTAs of grid x in clusters of `size`.
  void cluster(unsigned size) {
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    attributes_[1].val.clusterDim = {size, 1, 1};
    config_.numAttrs = 2;
  }
  template <class... Params, class... Args>
  void operator()(void (*kernel)(Params...), const char* what, const Args&... args) {
    check(cudaLaunchKernelEx(&config_, kernel, args...), what);
  }

 private:
  cudaLaunchConfig_t config_ = {};
  cudaLaunchAttribute attributes_[2];
};

}  // namespace kadence::ops::cuda
