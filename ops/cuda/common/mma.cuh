// Warp-level matrix instructions (sm_80 and later): ldmatrix, stmatrix (sm_90), mma.sync m16n8k16.
// Fragments of lane l, with r = l / 4 and c = 2 * (l % 4):
//   D, C (16 x 8 fp32):  d[0], d[1] at (r, c), (r, c+1); d[2], d[3] at (r+8, c), (r+8, c+1)
//   A (16 x 16):         a[0] (r, c..), a[1] (r+8, c..), a[2] (r, c+8..), a[3] (r+8, c+8..)
//   B (16 x 8, col):     b0 rows c, c+1 of column r; b1 rows c+8, c+9
#pragma once

#include "ops/cuda/common/ptx.cuh"

namespace kadence::ops::cuda::ptx {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t a, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
}
// Only if `on`, the same for the whole warp, by a predicate and not a branch.
__device__ __forceinline__ void stmatrix_x4_trans_if(bool on, uint32_t a, uint32_t x, uint32_t y, uint32_t z,
                                                     uint32_t w) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, "
      "%4};}" ::"r"(a),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(static_cast<uint32_t>(on))
      : "memory");
}
__device__ __forceinline__ void mma_bf16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_f16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kadence::ops::cuda::ptx
