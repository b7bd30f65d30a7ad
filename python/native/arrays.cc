#include "arrays.h"

#include <cstdint>

#include "base/error.h"

namespace kadence::python {
namespace {

using base::throw_invalid;

bool is_numpy(nb::handle object) {
  const nb::object module = nb::getattr(nb::getattr(object, "__class__"), "__module__", nb::none());
  return nb::isinstance<nb::str>(module) && nb::cast<std::string>(module) == "numpy";
}

std::string dtype_name(nb::dlpack::dtype t) {
  const auto code = static_cast<nb::dlpack::dtype_code>(t.code);
  const std::string bits = std::to_string(t.bits);
  switch (code) {
    case nb::dlpack::dtype_code::Float:
      return "float" + bits;
    case nb::dlpack::dtype_code::Bfloat:
      return "bfloat" + bits;
    case nb::dlpack::dtype_code::Int:
      return "int" + bits;
    case nb::dlpack::dtype_code::UInt:
      return "uint" + bits;
    case nb::dlpack::dtype_code::Bool:
      return "bool";
    default:
      return "dtype code " + std::to_string(t.code) + " of " + bits + " bits";
  }
}

// torch's own function that makes a DLPack capsule, if `object` is a tensor: Tensor.__dlpack__ is Python around it and
// takes several times as long.
PyObject* torch_export(nb::handle object) {
  static PyObject *tensor = nullptr, *export_function = nullptr;  // torch is never unloaded
  if (!tensor) {
    const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
    if (!torch.is_valid() || !nb::hasattr(torch, "Tensor")) {
      PyErr_Clear();
      return nullptr;
    }
    const nb::object found = nb::getattr(nb::getattr(torch, "_C", nb::none()), "_to_dlpack", nb::none());
    if (found.is_none()) return nullptr;
    export_function = nb::object(found).release().ptr();
    tensor = nb::object(torch.attr("Tensor")).release().ptr();
  }
  if (!PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(tensor))) return nullptr;
  PyObject* const capsule = PyObject_CallOneArg(export_function, object.ptr());
  if (!capsule) PyErr_Clear();  // the general way says what is wrong
  return capsule;
}

// numpy exports neither DLPack nor a buffer for ml_dtypes.bfloat16; its bits travel as uint16.
nb::object exportable(nb::handle object, bool* bf16) {
  *bf16 = false;
  if (PyObject* const capsule = torch_export(object)) return nb::steal(capsule);
  if (is_numpy(object) && nb::hasattr(object, "dtype") &&
      nb::cast<std::string>(nb::str(object.attr("dtype").attr("name"))) == "bfloat16") {
    *bf16 = true;
    return object.attr("view")("uint16");
  }
  return nb::borrow(object);
}

std::string sizes(const std::vector<int64_t>& v) {
  std::string s = "[";
  for (size_t i = 0; i < v.size(); ++i) s += (i ? ", " : "") + (v[i] < 0 ? std::string("any") : std::to_string(v[i]));
  return s + "]";
}

}  // namespace

Array::Array(nb::handle object, const char* name, Access access, const device::DeviceInfo& device) : name_(name) {
  if (object.is_none()) throw_invalid(name, "an array (numpy, torch or any other with DLPack)", "None");
  bool bf16 = false;
  const nb::object exported = exportable(object, &bf16);
  nb::ndarray<nb::ro> read;
  bool readable = false;
  if (access == Access::kWrite) {
    nb::ndarray<> write;
    readable = nb::try_cast(exported, write);
    if (readable) read = nb::ndarray<nb::ro>(write);
  }
  if (!readable && !nb::try_cast(exported, read))
    throw_invalid(name, "an array (numpy, torch or any other with DLPack, without gradients)",
                  nb::cast<std::string>(nb::str(nb::handle(object.type()))));
  if (access == Access::kWrite && !readable) throw_invalid(name, "a writable array", "a read-only one");
  keep_ = exported;
  data_ = const_cast<void*>(read.data());
  dtype_ = read.dtype();
  if (bf16) dtype_.code = static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat);
  for (size_t i = 0; i < read.ndim(); ++i) {
    shape_.push_back(static_cast<int64_t>(read.shape(i)));
    strides_.push_back(read.stride(i));
  }
  const int type = read.device_type();
  const bool host = type == nb::device::cpu::value || type == nb::device::cuda_host::value;
  const bool cuda = type == nb::device::cuda::value || type == nb::device::cuda_managed::value;
  const bool wanted = device.kind == device::DeviceKind::kCpu ? host : cuda && read.device_id() == device.ordinal;
  if (!wanted)
    throw_invalid(name, "an array on the plan's device, " + device.name,
                  host   ? std::string("one in host memory")
                  : cuda ? "one on cuda:" + std::to_string(read.device_id())
                         : "one on DLPack device type " + std::to_string(type));
}

int64_t Array::size() const {
  int64_t n = 1;
  for (const int64_t s : shape_) n *= s;
  return n;
}

std::string Array::describe() const { return dtype_name(dtype_) + " " + sizes(shape_); }

void Array::want_dtype(DType wanted) const {
  using Code = nb::dlpack::dtype_code;
  const auto is = [this](Code code, int bits) {
    return dtype_.code == static_cast<uint8_t>(code) && dtype_.bits == bits && dtype_.lanes == 1;
  };
  bool ok = false;
  switch (wanted) {
    case DType::kF32:
      ok = is(Code::Float, 32);
      break;
    case DType::kF16:
      ok = is(Code::Float, 16);
      break;
    case DType::kBF16:
      ok = is(Code::Bfloat, 16) || is(Code::UInt, 16);
      break;
    case DType::kI32:
      ok = is(Code::Int, 32);
      break;
    case DType::kI64:
      ok = is(Code::Int, 64);
      break;
    case DType::kU8:
      ok = is(Code::UInt, 8);
      break;
    case DType::kF64:
      ok = is(Code::Float, 64);
      break;
  }
  if (!ok) throw_invalid(name_ + " dtype", base::to_string(wanted), dtype_name(dtype_));
}

DType Array::float_dtype() const {
  const std::string name = dtype_name(dtype_);
  if (name != "float32" && name != "bfloat16" && name != "float16")
    throw_invalid(name_ + " dtype",
                  "float32, bfloat16 or float16 (uint16 bit patterns only where a plan says bfloat16)", name);
  return base::parse_float_dtype(name);
}

void Array::want_shape(std::initializer_list<int64_t> wanted) const {
  bool ok = wanted.size() == shape_.size();
  size_t i = 0;
  for (const int64_t w : wanted) {
    if (!ok) break;
    ok = w < 0 || w == shape_[i];
    ++i;
  }
  if (!ok) throw_invalid(name_ + " shape", sizes(wanted), sizes(shape_));
}

void Array::want_dense(size_t first) const {
  if (size() == 0) return;
  int64_t stride = 1;
  for (size_t i = shape_.size(); i-- > first;) {
    if (shape_[i] > 1 && strides_[i] != stride)
      throw_invalid(name_ + " strides",
                    "dimensions " + std::to_string(first) + " to " + std::to_string(shape_.size() - 1) + " of " +
                        sizes(shape_) + " dense (heads and channels contiguous)",
                    sizes(strides_));
    stride *= shape_[i];
  }
}

ops::ConstTokenTensor token_tensor(const Array& a, int64_t tokens, int64_t heads, int64_t channels, DType dtype) {
  a.want_dtype(dtype);
  a.want_shape({tokens, heads, channels});
  a.want_dense(1);
  return {a.data(), a.shape(0) > 1 ? a.stride(0) : heads * channels};
}

ops::ConstTokenTensor row_tensor(const Array& a, int64_t tokens, int64_t width, DType dtype) {
  a.want_dtype(dtype);
  a.want_shape({tokens, width});
  a.want_dense(1);
  return {a.data(), a.shape(0) > 1 ? a.stride(0) : width};
}

ops::TokenTensor writable(const ops::ConstTokenTensor& t) { return {const_cast<void*>(t.data), t.pitch}; }

const float* parameters(nb::handle object, const char* name, int64_t size, const device::DeviceInfo& device) {
  if (object.is_none()) return nullptr;
  const Array a(object, name, Access::kRead, device);
  a.want_dtype(DType::kF32);
  if (a.size() != size) throw_invalid(name, std::to_string(size) + " elements", a.describe());
  a.want_dense(0);
  return static_cast<const float*>(a.data());
}

namespace {

// Slots with a free pitch (and layers with a free pitch) around a dense inside.
template <class View>
View slots_view(const Array& a, int64_t inside, DType dtype, bool layered) {
  a.want_dtype(dtype);
  const size_t lead = layered ? 1 : 0;
  a.want_dense(lead + 1);
  View v;
  v.base = a.data();
  v.dtype = dtype;
  v.slots = a.shape(lead);
  v.slot_pitch = v.slots > 1 ? a.stride(lead) : inside;
  if (layered) {
    v.layers = static_cast<int32_t>(a.shape(0));
    v.layer_pitch = v.layers > 1 ? a.stride(0) : v.slots * v.slot_pitch;
  }
  return v;
}

}  // namespace

ops::StateView state_view(const Array& a, const ops::KdaProblem& p, DType dtype, bool layered) {
  if (layered)
    a.want_shape({-1, -1, p.HV, p.V, p.K});
  else
    a.want_shape({-1, p.HV, p.V, p.K});
  return slots_view<ops::StateView>(a, int64_t{p.HV} * p.V * p.K, dtype, layered);
}

ops::WindowView window_view(const Array& a, int64_t channels, DType dtype, bool layered) {
  if (layered)
    a.want_shape({-1, -1, ops::kConvWindow, channels});
  else
    a.want_shape({-1, ops::kConvWindow, channels});
  return slots_view<ops::WindowView>(a, channels * ops::kConvWindow, dtype, layered);
}

const int32_t* ints(nb::handle object, const char* name, std::initializer_list<int64_t> shape,
                    const device::DeviceInfo& device, Access access) {
  const Array a(object, name, access, device);
  a.want_dtype(DType::kI32);
  a.want_shape(shape);
  a.want_dense(0);
  return static_cast<const int32_t*>(a.data());
}

}  // namespace kadence::python
