#include "ops/testing/guarded.h"

#include <cstring>

namespace kadence::ops::testing {
namespace {
constexpr int64_t kGuardBytes = 256;
constexpr unsigned char kPoison = 0xff;  // a NaN in fp32, bf16 and fp16
}  // namespace

GuardedTensor::GuardedTensor(device::Stream& stream, int64_t rows, int64_t width, int64_t pitch, DType dtype)
    : rows_(rows),
      width_(width),
      pitch_(pitch),
      guard_(kGuardBytes / static_cast<int64_t>(base::size_of(dtype))),
      elements_(rows * pitch + 2 * guard_),
      dtype_(dtype) {
  host_.assign(static_cast<size_t>(elements_) * base::size_of(dtype), static_cast<char>(kPoison));
  device_ = device::Buffer::allocate(stream.info(), host_.size());
  upload(stream);
}

void GuardedTensor::set(int64_t row, int64_t column, float value) {
  base::store_f32(host_.data(), guard_ + row * pitch_ + column, dtype_, value);
}
void GuardedTensor::fill_row(int64_t row, const float* values) {
  for (int64_t c = 0; c < width_; ++c) set(row, c, values[c]);
}
float GuardedTensor::get(int64_t row, int64_t column) const {
  return base::load_f32(host_.data(), guard_ + row * pitch_ + column, dtype_);
}
std::vector<float> GuardedTensor::row(int64_t r) const {
  std::vector<float> v(static_cast<size_t>(width_));
  for (int64_t c = 0; c < width_; ++c) v[static_cast<size_t>(c)] = get(r, c);
  return v;
}

void GuardedTensor::upload(device::Stream& stream) {
  device::copy_async(device_.data(), host_.data(), host_.size(), stream);
  stream.synchronize();
}
void GuardedTensor::download(device::Stream& stream) {
  device::copy_async(host_.data(), device_.data(), host_.size(), stream);
  stream.synchronize();
}
void* GuardedTensor::data() const { return device_.as<char>() + kGuardBytes; }

bool GuardedTensor::poisoned(int64_t element) const {
  const size_t size = base::size_of(dtype_);
  for (size_t b = 0; b < size; ++b)
    if (static_cast<unsigned char>(host_[static_cast<size_t>(element) * size + b]) != kPoison) return false;
  return true;
}

std::string GuardedTensor::damage(const std::string& name) const {
  for (int64_t i = 0; i < elements_; ++i) {
    const int64_t at = i - guard_;
    const bool inside = at >= 0 && at < rows_ * pitch_ && at % pitch_ < width_;
    if (!inside && !poisoned(i))
      return name + ": guard or padding element " + std::to_string(at) + " (rows " + std::to_string(rows_) +
             ", pitch " + std::to_string(pitch_) + ") was written";
  }
  return "";
}

bool GuardedTensor::untouched(int64_t row) const {
  for (int64_t c = 0; c < width_; ++c)
    if (!poisoned(guard_ + row * pitch_ + c)) return false;
  return true;
}

device::Buffer poisoned_buffer(device::Stream& stream, size_t bytes) {
  device::Buffer b = device::Buffer::allocate(stream.info(), bytes ? bytes : 1);
  device::fill_async(b.data(), kPoison, b.size(), stream);
  stream.synchronize();
  return b;
}

}  // namespace kadence::ops::testing
