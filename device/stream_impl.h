// Private to device/: what a Stream does on each kind of device.
#pragma once

#include "device/device.h"

namespace kadence::device {

struct Stream::Impl {
  virtual ~Impl() = default;
  virtual void parallel_for(int64_t n, const std::function<void(int64_t, int)>& task) = 0;
  virtual void synchronize() = 0;
  virtual void* native() const = 0;
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill(void* dst, int value, size_t bytes) = 0;
  DeviceInfo info;
};

// Implemented by cuda_device.cc, or by cuda_absent.cc when built without CUDA.
std::unique_ptr<Stream::Impl> make_cuda_stream(int ordinal);
std::unique_ptr<Stream::Impl> wrap_cuda_stream(int ordinal, void* stream);  // null is the default stream
void* cuda_allocate(int ordinal, size_t bytes);
void cuda_release(int ordinal, void* data) noexcept;

}  // namespace kadence::device
