// Sizes of pools: int64 arithmetic that refuses to wrap, and the alignment that every part of an envelope keeps.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace kadence::state {

// Base, slot and layer of every part start on this boundary; a multiple of every element size, so pitches are whole
// numbers of elements.
inline constexpr int64_t kPartAlignment = 256;

// a * b. Throws Error{kInvalidArgument} naming `what` when the product does not fit in 63 bits.
inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) {
    base::throw_invalid(what, "a size that fits in 63 bits", std::to_string(a) + " * " + std::to_string(b));
  }
  return r;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) {
    base::throw_invalid(what, "a size that fits in 63 bits", std::to_string(a) + " + " + std::to_string(b));
  }
  return r;
}

inline int64_t aligned_part(int64_t bytes, const char* what) {
  return checked_add(bytes, kPartAlignment - 1, what) / kPartAlignment * kPartAlignment;
}

// Throws Error{kInvalidArgument} unless value >= least.
inline void require_at_least(int64_t value, int64_t least, const char* what) {
  if (value < least) base::throw_invalid(what, "at least " + std::to_string(least), std::to_string(value));
}

inline void require_float(base::DType t, const char* what) {
  if (t != base::DType::kF32 && t != base::DType::kBF16 && t != base::DType::kF16) {
    base::throw_invalid(what, "float32, bfloat16 or float16", base::to_string(t));
  }
}

// All bits set: a NaN as float32, as bfloat16 and as float16.
inline constexpr int kPoisonByte = 0xff;

#ifdef KADENCE_DEBUG_CHECKS
inline constexpr bool kPoison = true;
#else
inline constexpr bool kPoison = false;
#endif

}  // namespace kadence::state
