// Stands in for ops/cuda/sm80/extend_chunked/warp.cuh: the warp instructions as one lane's arithmetic over all lanes'
// operands. Copies to shared memory happen as late as they may.
#pragma once

#include <cstring>

#include "ops/cuda/common/ptx.cuh"

namespace kadence::ops::cuda::sm80 {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

inline constexpr unsigned kAllLanes = 0xffffffffu;

inline uint8_t* dynamic_shared() { return emulated::shared_bytes; }

inline void copy_async16(void* dst, const void* src, bool valid = true) {
  static const uint8_t zeros[16] = {};
  emulated::thread().copies.push_back({dst, valid ? src : zeros});
}
inline void copy_async_commit() {
  emulated::Thread& t = emulated::thread();
  t.groups.push_back(t.copies.size());
}
template <int kPending>
void copy_async_wait() {
  emulated::Thread& t = emulated::thread();
  if (t.groups.size() <= kPending) return;
  const size_t done = t.groups[t.groups.size() - kPending - 1];
  for (size_t i = 0; i < done; ++i) std::memcpy(t.copies[i].dst, t.copies[i].src, 16);
  t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<std::ptrdiff_t>(done));
  t.groups.erase(t.groups.begin(), t.groups.end() - kPending);
  for (size_t& g : t.groups) g -= done;
}

inline void store_global(void* p, uint4 x) { std::memcpy(p, &x, 16); }
inline void store_global(void* p, uint2 x) { std::memcpy(p, &x, 8); }

namespace detail {
inline float element(uint32_t word, int i, bool half) {
  const uint16_t bits = static_cast<uint16_t>(i ? word >> 16 : word);
  return half ? base::f16_to_f32(bits) : base::bf16_to_f32(bits);
}
struct Matrices {
  const void* row;
  uint32_t* out;
};
inline void load_matrices(uint32_t (&r)[4], const void* row, bool transposed) {
  emulated::collective(Matrices{row, r}, [transposed](Matrices* lanes) {
    for (int m = 0; m < 4; ++m) {
      uint16_t x[8][8];
      for (int i = 0; i < 8; ++i) std::memcpy(x[i], lanes[8 * m + i].row, 16);
      for (int l = 0; l < 32; ++l) {
        const int a = l / 4, b = 2 * (l % 4);
        lanes[l].out[m] = transposed ? x[b][a] | static_cast<uint32_t>(x[b + 1][a]) << 16
                                     : x[a][b] | static_cast<uint32_t>(x[a][b + 1]) << 16;
      }
    }
  });
}
}  // namespace detail
inline void load_matrices(uint32_t (&r)[4], const void* row) { detail::load_matrices(r, row, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) { detail::load_matrices(r, row, true); }

inline uint32_t transpose8x8(uint32_t x) {
  uint32_t y = 0;
  struct Lane {
    uint32_t in;
    uint32_t* out;
  };
  emulated::collective(Lane{x, &y}, [](Lane* lanes) {
    uint16_t m[8][8];
    for (int l = 0; l < 32; ++l)
      m[l / 4][2 * (l % 4)] = static_cast<uint16_t>(lanes[l].in),
                        m[l / 4][2 * (l % 4) + 1] = static_cast<uint16_t>(lanes[l].in >> 16);
    for (int l = 0; l < 32; ++l)
      *lanes[l].out = m[2 * (l % 4)][l / 4] | static_cast<uint32_t>(m[2 * (l % 4) + 1][l / 4]) << 16;
  });
  return y;
}

template <bool kHalf>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Lane {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
  };
  emulated::collective(Lane{d, a, {b0, b1}}, [](Lane* lanes) {
    float x[16][16], y[8][16];  // A by rows, B by columns
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 2; ++i) {
        const int r = l / 4, c = 2 * (l % 4) + i;
        x[r][c] = detail::element(lanes[l].a[0], i, kHalf), x[r + 8][c] = detail::element(lanes[l].a[1], i, kHalf);
        x[r][c + 8] = detail::element(lanes[l].a[2], i, kHalf),
                 x[r + 8][c + 8] = detail::element(lanes[l].a[3], i, kHalf);
        y[r][c] = detail::element(lanes[l].b[0], i, kHalf), y[r][c + 8] = detail::element(lanes[l].b[1], i, kHalf);
      }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        const float *row = x[l / 4 + 8 * (i / 2)], *column = y[2 * (l % 4) + i % 2];
        double sum = lanes[l].d[i];
        for (int k = 0; k < 16; ++k) sum += static_cast<double>(row[k]) * column[k];
        lanes[l].d[i] = static_cast<float>(sum);
      }
  });
}
template <bool kHalf>
uint32_t pack(float lo, float hi) {
  if constexpr (kHalf) return pack_f16(lo, hi);
  return pack_bf16(lo, hi);
}
inline float f16_lo(uint32_t x) { return base::f16_to_f32(static_cast<uint16_t>(x)); }
inline float f16_hi(uint32_t x) { return base::f16_to_f32(static_cast<uint16_t>(x >> 16)); }
inline uint32_t max_magnitude_f16x2(uint32_t x, uint32_t y) {
  const auto larger = [](uint32_t a, uint32_t b) { return std::max(a & 0x7fffu, b & 0x7fffu); };
  return larger(x, y) | larger(x >> 16, y >> 16) << 16;
}

}  // namespace kadence::ops::cuda::sm80
