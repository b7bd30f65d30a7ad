#include "base/dtype.h"

#include <string>

#include "base/error.h"

namespace kadence::base {

const char* to_string(DType t) {
  switch (t) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kF64:
      return "float64";
  }
  return "unknown";
}

DType parse_float_dtype(std::string_view name) {
  if (name == "float32" || name == "fp32" || name == "f32") return DType::kF32;
  if (name == "bfloat16" || name == "bf16") return DType::kBF16;
  if (name == "float16" || name == "fp16" || name == "f16") return DType::kF16;
  throw_invalid("dtype", "float32, bfloat16 or float16", name);
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t u =
      exponent == 31 ? sign | 0x7f800000u | mantissa << 13 : sign | (exponent + 112u) << 23 | mantissa << 13;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

uint16_t f32_to_f16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (u >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (u < 0x38800000u) {                                               // below 2^-14: subnormal or zero
    if (u < 0x33000000u) return sign;                                  // below 2^-25
    const uint32_t shift = 126u - (u >> 23);
    const uint32_t mantissa = (u & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1);
    uint32_t r = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    if (rest > half || (rest == half && (r & 1u))) ++r;
    return static_cast<uint16_t>(sign | r);
  }
  const uint32_t rounded = u + 0xfffu + ((u >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float load_f32(const void* data, int64_t i, DType t) {
  switch (t) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(data)[i]);
    default:
      throw_invalid("load_f32 dtype", "float32, bfloat16 or float16", to_string(t));
  }
}

void store_f32(void* data, int64_t i, DType t, float v) {
  switch (t) {
    case DType::kF32:
      static_cast<float*>(data)[i] = v;
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[i] = f32_to_bf16(v);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[i] = f32_to_f16(v);
      return;
    default:
      throw_invalid("store_f32 dtype", "float32, bfloat16 or float16", to_string(t));
  }
}

}  // namespace kadence::base
