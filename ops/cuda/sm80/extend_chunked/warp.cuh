// Warp-level instructions of sm_80 that the chunked kernels use. Products are not volatile: they depend on their
// operands alone, and the compiler orders them.
#pragma once

#include "ops/cuda/common/ptx.cuh"

namespace kadence::ops::cuda::sm80 {

using namespace ptx;  // NOLINT: the wrappers' names are PTX's own

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The CTA's dynamic shared memory, aligned to 16 bytes.
__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ __align__(16) uint8_t kadence_sm80_shared[];
  return kadence_sm80_shared;
}

// 16 bytes of global memory to shared memory, in the background; zeros, and nothing read, unless `valid`.
__device__ __forceinline__ void copy_async16(void* dst, const void* src, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending groups of this thread are incomplete.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// One store each: left to itself the compiler splits some of them.
__device__ __forceinline__ void store_global(void* p, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void store_global(void* p, uint2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// An 8 x 8 matrix of 16-bit elements over the warp: lane 4 r + c holds row r, columns 2 c and 2 c + 1.
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d (16 x 8, fp32) += a (16 x 16) b (16 x 8). Lane 4 r + c holds d: (r, 2c), (r, 2c+1), (r+8, 2c), (r+8, 2c+1);
// a: rows r, r+8, r, r+8 at columns 2c.., 2c.., 2c+8.., 2c+8..; b: column r at rows 2c.., 2c+8...
template <bool kHalf>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool kHalf>
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  if constexpr (kHalf) return pack_f16(lo, hi);
  return pack_bf16(lo, hi);
}
// Larger magnitudes of two pairs of fp16.
__device__ __forceinline__ uint32_t max_magnitude_f16x2(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("{.reg .b32 a, b;\n abs.f16x2 a, %1;\n abs.f16x2 b, %2;\n max.f16x2 %0, a, b;}" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
__device__ __forceinline__ float f16_lo(uint32_t x) {
  float f;
  asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(x));
  return f;
}
__device__ __forceinline__ float f16_hi(uint32_t x) {
  float f;
  asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(x));
  return f;
}

}  // namespace kadence::ops::cuda::sm80
