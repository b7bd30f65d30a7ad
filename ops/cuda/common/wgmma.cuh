// Warpgroup matrix products (sm_90a): A from registers, B from shared memory, fp32 accumulators.
// Element i of a 64 x N accumulator of thread t (warp w = t / 32, lane l): row 16 w + l / 4 + 8 (i / 2 % 2), column
// 8 (i / 4) + 2 (l % 4) + i % 2. Packing columns 16 k .. 16 k + 15 to bf16 pairs in order of i gives the A fragment of
// k-block k: an accumulator is register for register the next product's A operand.
#pragma once

#include "ops/cuda/common/ptx.cuh"

namespace kadence::ops::cuda::ptx {

enum class Swizzle : uint32_t { k128B = 1, k64B = 2 };

// Descriptor of a B tile at shared address `a`.
// K-major: stride = bytes between groups of 8 rows (columns of B), leading unused.
// N-major: stride = bytes between groups of 8 k rows, leading = bytes between groups of 64 columns.
// Tiles are 1024-byte aligned for the 128-byte swizzle, 512 for the 64-byte one. Adding bytes / 16 moves the start.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t a, uint32_t leading, uint32_t stride, Swizzle swizzle) {
  return static_cast<uint64_t>((a & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of an accumulator before the wait; no data dependence says so.
template <int N>
__device__ __forceinline__ void wgmma_pin(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// D[64 x 32] (+)= A[64 x 16] B[16 x 32], B K-major. accumulate = 0 overwrites D.
__device__ __forceinline__ void wgmma_m64n32k16(float* d, const uint32_t* a, uint64_t b, int accumulate = 1) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %21, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
// D[64 x 128] (+)= A[64 x 16] B[16 x 128], B N-major.
__device__ __forceinline__ void wgmma_m64n128k16_nmajor(float* d, const uint32_t* a, uint64_t b, int accumulate = 1) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %69, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

}  // namespace kadence::ops::cuda::ptx
