// The current device of a host thread, changed for a scope.
#pragma once

#include "device/device.h"
#include "ops/cuda/common/check.h"

namespace kadence::ops::cuda {

class DeviceScope {
 public:
  explicit DeviceScope(const device::Stream& stream) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    changed_ = before_ != stream.info().ordinal;
    if (changed_) check(cudaSetDevice(stream.info().ordinal), "cudaSetDevice");
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace kadence::ops::cuda
