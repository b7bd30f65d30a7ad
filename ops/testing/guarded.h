// Memory for tests: a device tensor with guard bands and poisoned padding, mirrored on the host.
#pragma once

#include <string>
#include <vector>

#include "ops/kda.h"

namespace kadence::ops::testing {

// [rows, width] elements with a pitch, NaN everywhere at first: before, after and between the rows. Guards and padding
// must still hold the poison after a run.
class GuardedTensor {
 public:
  GuardedTensor() = default;
  GuardedTensor(device::Stream& stream, int64_t rows, int64_t width, int64_t pitch, DType dtype);

  void set(int64_t row, int64_t column, float value);
  void fill_row(int64_t row, const float* values);  // width values
  float get(int64_t row, int64_t column) const;     // of the host mirror
  std::vector<float> row(int64_t row) const;
  void upload(device::Stream& stream);    // host mirror -> device
  void download(device::Stream& stream);  // device -> host mirror, after synchronising
  void* data() const;                     // of row 0 on the device
  int64_t pitch() const { return pitch_; }
  int64_t rows() const { return rows_; }
  DType dtype() const { return dtype_; }
  // Where a guard or padding element lost its poison; empty = nowhere.
  std::string damage(const std::string& name) const;
  // True if every element of a row is still poison.
  bool untouched(int64_t row) const;

  TokenTensor tokens() const { return {data(), pitch_}; }
  ConstTokenTensor const_tokens() const { return {data(), pitch_}; }

 private:
  bool poisoned(int64_t element) const;
  int64_t rows_ = 0, width_ = 0, pitch_ = 0, guard_ = 0, elements_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<char> host_;
  device::Buffer device_;
};

// A small array on the device.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(device::Stream& stream, const std::vector<T>& values)
      : buffer_(device::Buffer::allocate(stream.info(), values.size() * sizeof(T) + 16)), size_(values.size()) {
    device::copy_async(buffer_.data(), values.data(), values.size() * sizeof(T), stream);
    stream.synchronize();
  }
  T* data() const { return buffer_.as<T>(); }
  std::vector<T> download(device::Stream& stream) const {
    std::vector<T> v(size_);
    device::copy_async(v.data(), buffer_.data(), size_ * sizeof(T), stream);
    stream.synchronize();
    return v;
  }

 private:
  device::Buffer buffer_;
  size_t size_ = 0;
};

// A buffer of `bytes` full of NaN patterns (0xff), at least one byte long.
device::Buffer poisoned_buffer(device::Stream& stream, size_t bytes);

}  // namespace kadence::ops::testing
