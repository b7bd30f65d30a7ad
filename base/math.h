// Small integer helpers that several modules share.
#pragma once

#include <cstdint>
#include <numeric>

namespace kadence::base {

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}
template <class T>
constexpr T round_down(T a, T b) {
  return a / b * b;
}

}  // namespace kadence::base
