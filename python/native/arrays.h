// Arrays of the caller, taken through DLPack, checked and turned into what the operators read.
//
// Nothing is copied or converted here. An array of a wrong shape, dtype, device or layout is refused with
// Error{kInvalidArgument} that names it. bfloat16: torch's dtype, ml_dtypes.bfloat16 in numpy, or uint16 bit patterns
// where the plan (or a dtype argument) says bfloat16.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/conv1d.h"
#include "ops/kda.h"

namespace kadence::python {

namespace nb = nanobind;
using ops::DType;

enum class Access { kRead, kWrite };

// One array of the caller; keeps it alive.
class Array {
 public:
  // Imports `object` and checks that it lies on the stream's device.
  Array(nb::handle object, const char* name, Access access, const device::DeviceInfo& device);

  const std::string& name() const { return name_; }
  void* data() const { return data_; }
  size_t ndim() const { return shape_.size(); }
  int64_t shape(size_t i) const { return shape_[i]; }
  int64_t stride(size_t i) const { return strides_[i]; }
  int64_t size() const;
  // Throws unless the element type is `wanted` (or uint16 for a wanted bfloat16).
  void want_dtype(DType wanted) const;
  // Throws unless there are these dimensions; -1 = any size.
  void want_shape(std::initializer_list<int64_t> wanted) const;
  // Throws unless dimensions [first, ndim) are dense (row-major, no gaps); dimensions of size 1 are.
  void want_dense(size_t first) const;
  // One of the floating dtypes; uint16 is not one.
  DType float_dtype() const;
  std::string describe() const;  // "float32 [3, 4, 128]"

 private:
  std::string name_;
  nb::object keep_;
  void* data_ = nullptr;
  std::vector<int64_t> shape_, strides_;
  nb::dlpack::dtype dtype_{};
};

// [tokens, heads, channels], token pitch free. tokens -1 = as given.
ops::ConstTokenTensor token_tensor(const Array& a, int64_t tokens, int64_t heads, int64_t channels, DType dtype);
// [tokens, width], token pitch free (beta, convolution inputs).
ops::ConstTokenTensor row_tensor(const Array& a, int64_t tokens, int64_t width, DType dtype);
ops::TokenTensor writable(const ops::ConstTokenTensor& t);
// Dense float32 of `size` elements in any shape; null for None.
const float* parameters(nb::handle object, const char* name, int64_t size, const device::DeviceInfo& device);
// [slots, HV, V, K], or [layers, slots, HV, V, K] if `layered`.
ops::StateView state_view(const Array& a, const ops::KdaProblem& problem, DType dtype, bool layered = false);
// [slots, 3, C], or [layers, slots, 3, C] if `layered`.
ops::WindowView window_view(const Array& a, int64_t channels, DType dtype, bool layered = false);
// Dense int32 of the given shape.
const int32_t* ints(nb::handle object, const char* name, std::initializer_list<int64_t> shape,
                    const device::DeviceInfo& device, Access access = Access::kRead);

}  // namespace kadence::python
