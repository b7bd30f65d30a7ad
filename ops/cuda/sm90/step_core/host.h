// Host side of the small kernels: current device, launch, errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "device/device.h"
#include "ops/cuda/common/check.h"
#include "ops/kda.h"

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

// f(E{}) with the type that holds a state; false if there is no such instance.
template <class F>
bool with_state_type(DType t, F&& f) {
  switch (t) {
    case DType::kF32:
      return f(float{}), true;
    case DType::kBF16:
      return f(__nv_bfloat16{}), true;
    case DType::kF16:
      return f(__half{}), true;
    default:
      return false;
  }
}

// f.operator()<K, ITS>() of the shapes that the kernels are compiled for; false if there is no such instance.
template <class F>
bool with_shape(int K, int iterations, F&& f) {
  switch (K * 16 + iterations) {
    case 64 * 16 + 1:
      return f.template operator()<64, 1>(), true;
    case 128 * 16 + 1:
      return f.template operator()<128, 1>(), true;
    case 128 * 16 + 2:
      return f.template operator()<128, 2>(), true;
    case 128 * 16 + 4:
      return f.template operator()<128, 4>(), true;
    case 256 * 16 + 4:
      return f.template operator()<256, 4>(), true;
    default:
      return false;
  }
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
