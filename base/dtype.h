// Element types and their conversions. bf16 and fp16 are stored as uint16_t bit patterns; every conversion from
// float rounds to nearest, ties to even, exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kadence::base {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kI64, kU8, kF64 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI64:
    case DType::kF64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

const char* to_string(DType t);
// "float32", "bfloat16", "float16" (also "fp32", "bf16", "fp16"). Throws Error{kInvalidArgument} on anything else.
DType parse_float_dtype(std::string_view name);

inline float bf16_to_f32(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline uint16_t f32_to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

// Reads element i of an array of type t as float (f32, bf16, f16 only).
float load_f32(const void* data, int64_t i, DType t);
// Stores v as element i of an array of type t, rounded once (f32, bf16, f16 only).
void store_f32(void* data, int64_t i, DType t, float v);

}  // namespace kadence::base
