// Shared by the phases of the cpu backend.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/cpu/kda_kernels.h"
#include "ops/kda_backend.h"
#include "ops/kda_rows.h"

namespace kadence::ops::cpu {

// Parameters of value head hv.
HeadParams head_params(const KdaPlan& plan, int hv, const float* A_log, const float* dt_bias);

// Hands out aligned pieces of the caller's workspace.
class Arena {
 public:
  explicit Arena(void* base) : at_(static_cast<char*>(base)) {}
  template <class T>
  T* take(size_t count) {
    T* p = reinterpret_cast<T*>(at_);
    at_ += round(count * sizeof(T));
    return p;
  }
  static size_t round(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  char* at_;
};

// While it lives, this thread reads and writes denormal numbers as zeros: strong gates leave products of decays below
// 2^-126, which cost a fifth of extend's time and count for nothing. Every task runs so, so no bit depends on it.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
#else
  ~FlushDenormals() {}
#endif
};

// Runs task(i, worker) for i in [0, n): on the workers of the stream, or right here if all of it is less work than
// waking them. `bytes` is the memory that all tasks touch together.
template <class Task>
void run_tasks(device::Stream& stream, int64_t n, int64_t bytes, const Task& task) {
  constexpr int64_t kWorthWaking = 1 << 20;
  if (bytes < kWorthWaking) {
    const FlushDenormals flush;
    for (int64_t i = 0; i < n; ++i) task(i, 0);
  } else {
    stream.parallel_for(n, [&task](int64_t i, int worker) {
      const FlushDenormals flush;
      task(i, worker);
    });
  }
}

void plan_extend(KdaPlan& plan);
void extend(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);
void plan_step(KdaPlan& plan);
void step(const KdaPlan& plan, const KdaStepArgs& args, device::Stream& stream);
void plan_verify(KdaPlan& plan);
void verify(const KdaPlan& plan, const KdaVerifyArgs& args, device::Stream& stream);
void commit(const KdaPlan& plan, const KdaCommitArgs& args, device::Stream& stream);

}  // namespace kadence::ops::cpu
