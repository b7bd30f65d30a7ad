// Counter-based random numbers: the i-th draw of a seed is a pure function of (seed, i), whatever was drawn before.
// Mixing function: SplitMix64's finalizer (Steele, Lea, Flood 2014), applied to both words.
#pragma once

#include <cmath>
#include <cstdint>

namespace kadence::base {

constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Draw `index` of stream `seed`, uniform over 64 bits.
constexpr uint64_t draw_u64(uint64_t seed, uint64_t index) {
  return mix64(mix64(seed + 0x9e3779b97f4a7c15ull) ^ (index * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull));
}

// Uniform in [0, 1), 53 bits.
constexpr double draw_uniform(uint64_t seed, uint64_t index) {
  return static_cast<double>(draw_u64(seed, index) >> 11) * 0x1p-53;
}

// A sequential generator over draw_u64, for tests and benchmarks.
class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}
  uint64_t next() { return draw_u64(seed_, index_++); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Uniform integer in [0, n), n > 0.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>(uniform() * static_cast<double>(n)) % n; }
  // Standard normal (Box-Muller, one of the pair).
  double normal() {
    const double u = uniform() + 0x1p-60, v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  uint64_t seed_, index_ = 0;
};

}  // namespace kadence::base
