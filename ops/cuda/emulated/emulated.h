// Runs a kernel's source on CPU threads: one thread per CUDA thread of a CTA, CTAs one after the other. For kernels
// that use barriers, shared memory and atomics but no warp instructions; they are compiled by the host compiler with
// the CUDA qualifiers defined away and with shim/ in front of the include path. Slow, and no model of the hardware: it
// tests the logic (who computes what, in which slot it ends) where there is no GPU.
#pragma once

#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "ops/cuda/emulated/host_cuda.h"

namespace kadence::ops::cuda::emulated {

inline constexpr int kThreads = 128;
inline std::barrier<> barrier(kThreads);
inline std::atomic<int> any{0};

}  // namespace kadence::ops::cuda::emulated

// What the CUDA headers declare for device code only.
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 gridDim;

inline void __syncthreads() { kadence::ops::cuda::emulated::barrier.arrive_and_wait(); }
inline int __syncthreads_or(int p) {
  using namespace kadence::ops::cuda::emulated;  // NOLINT
  if (p) any = 1;
  barrier.arrive_and_wait();
  const int result = any;
  barrier.arrive_and_wait();
  if (threadIdx.x == 0) any = 0;
  barrier.arrive_and_wait();
  return result;
}
inline int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
inline int atomicCAS(int* p, int expected, int v) {
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// Named by code that is not called here; there are no warps.
template <class T>
T __shfl_xor_sync(unsigned, T, int);
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);

namespace kadence::ops::cuda::emulated {

// kernel() once per thread and CTA of the grid.
inline void run(dim3 grid, const std::function<void()>& kernel) {
  gridDim = grid;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      threadIdx = dim3(t, 0, 0);
      for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
          for (unsigned x = 0; x < grid.x; ++x) {
            blockIdx = dim3(x, y, z);
            kernel();
            barrier.arrive_and_wait();
          }
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace kadence::ops::cuda::emulated
