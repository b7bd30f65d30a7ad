// Runs a kernel's source on the CPU, warps included: each thread of a CTA is a fibre, a warp's instruction that needs
// all lanes waits for them, and CTAs run one after the other. Between barriers the warps run in a random order, so that
// a missing barrier shows. Compiled by the host compiler with the CUDA qualifiers defined away and shim/ in front of
// the include path. Of the hardware it knows the semantics of these instructions, nothing else. One kernel at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "ops/cuda/emulated/host_cuda.h"

inline dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the running fibre

namespace kadence::ops::cuda::emulated {

struct Copy {
  void* dst;
  const void* src;
};
struct Thread {
  void* stack_pointer = nullptr;
  std::unique_ptr<char[]> stack;
  std::vector<Copy> copies;    // not done yet
  std::vector<size_t> groups;  // how many copies were there at each commit
  int id = 0;
  bool done = false;
};
struct Warp {
  alignas(16) char operands[32][64];
  int arrived = 0;
  bool waiting = false;  // for the CTA's barrier
  bool done = false;
};
struct Cta {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Thread* running = nullptr;
  void* scheduler = nullptr;
  int barrier_value = 0, barrier_result = 0;
  const std::function<void()>* kernel = nullptr;
  std::mt19937 random{1};
};
inline Cta cta;
inline uint8_t* shared_bytes = nullptr;
inline Thread& thread() { return *cta.running; }

// Saves the callee's registers, stores the stack pointer to *from and continues on stack `to`.
extern "C" void kadence_emulated_switch(void** from, void* to);
#ifdef KADENCE_EMULATED_SWITCH  // in one source file of a program; x86-64
asm(R"(
.text
.globl kadence_emulated_switch
kadence_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

// Back to the scheduler, which continues with another lane.
inline void yield() {
  Thread& t = thread();
  kadence_emulated_switch(&t.stack_pointer, cta.scheduler);
}
inline void resume(Thread& t) {
  cta.running = &t;
  threadIdx = dim3(static_cast<unsigned>(t.id), 0, 0);
  kadence_emulated_switch(&cta.scheduler, t.stack_pointer);
}
inline void fibre_main() {
  (*cta.kernel)();
  thread().done = true;
  yield();
}

// Every lane brings an operand; the last one computes for all.
template <class T, class F>
void collective(const T& operand, F compute) {
  static_assert(sizeof(T) <= sizeof(Warp::operands[0]));
  Thread& t = thread();
  Warp& w = cta.warps[static_cast<size_t>(t.id / 32)];
  std::memcpy(w.operands[t.id % 32], &operand, sizeof(T));
  if (++w.arrived == 32) {
    T lanes[32];
    for (int l = 0; l < 32; ++l) std::memcpy(&lanes[l], w.operands[l], sizeof(T));
    compute(lanes);
    w.arrived = 0;
  }
  yield();
}
// The CTA's barrier; the result is the or of all values.
inline int barrier(int value) {
  Thread& t = thread();
  Warp& w = cta.warps[static_cast<size_t>(t.id / 32)];
  cta.barrier_value |= value;
  if (++w.arrived == 32) w.arrived = 0, w.waiting = true;
  yield();
  return cta.barrier_result;
}

// kernel() by every thread of every CTA.
inline void run(unsigned grid, int threads, size_t dynamic_bytes, const std::function<void()>& kernel) {
  gridDim = dim3(grid), blockDim = dim3(static_cast<unsigned>(threads));
  constexpr size_t kStack = size_t{256} << 10;
  cta.threads.resize(static_cast<size_t>(threads));
  cta.warps.resize(static_cast<size_t>(threads / 32));
  cta.kernel = &kernel;
  std::vector<uint8_t> shared(dynamic_bytes + 256);
  shared_bytes = shared.data() + (256 - reinterpret_cast<uintptr_t>(shared.data()) % 256) % 256;
  for (unsigned block = 0; block < grid; ++block) {
    blockIdx = dim3(block);
    std::memset(shared_bytes, 0xff, dynamic_bytes);
    for (Warp& w : cta.warps) w.arrived = 0, w.waiting = w.done = false;
    for (int i = 0; i < threads; ++i) {
      Thread& t = cta.threads[static_cast<size_t>(i)];
      if (!t.stack) t.stack.reset(new char[kStack]);
      t.id = i, t.done = false, t.copies.clear(), t.groups.clear();
      uintptr_t top = (reinterpret_cast<uintptr_t>(t.stack.get()) + kStack) & ~uintptr_t{15};
      void** sp = reinterpret_cast<void**>(top);
      *--sp = nullptr;  // the frame's return address keeps the alignment that a call would leave
      *--sp = reinterpret_cast<void*>(&fibre_main);
      for (int k = 0; k < 6; ++k) *--sp = nullptr;
      t.stack_pointer = sp;
    }
    size_t left = cta.warps.size();
    while (left > 0) {
      // One step of a random warp that does not wait: each lane up to its next common instruction.
      std::vector<size_t> ready;
      for (size_t i = 0; i < cta.warps.size(); ++i)
        if (!cta.warps[i].done && !cta.warps[i].waiting) ready.push_back(i);
      if (ready.empty()) {
        // All that are left wait. The result is read before the next barrier can complete.
        cta.barrier_result = cta.barrier_value, cta.barrier_value = 0;
        for (size_t i = 0; i < cta.warps.size(); ++i) {
          cta.warps[i].waiting = false;
          if (!cta.warps[i].done) ready.push_back(i);
        }
      }
      const size_t pick = ready[cta.random() % ready.size()];
      for (int steps = 1 + static_cast<int>(cta.random() % 40); steps > 0; --steps) {
        Warp& w = cta.warps[pick];
        for (size_t l = 0; l < 32; ++l) resume(cta.threads[pick * 32 + l]);
        if (cta.threads[pick * 32].done) w.done = true, --left;
        if (w.done || w.waiting) break;
      }
    }
  }
}

}  // namespace kadence::ops::cuda::emulated

// What the CUDA headers declare for device code only.
inline int __syncthreads_or(int p) { return kadence::ops::cuda::emulated::barrier(p != 0); }
inline void __syncthreads() { kadence::ops::cuda::emulated::barrier(0); }
inline void __syncwarp() {
  kadence::ops::cuda::emulated::collective(0, [](int*) {});
}
namespace kadence::ops::cuda::emulated {
template <class T, class Source>
T shuffle(T x, Source source) {
  T y{};
  struct Lane {
    T in;
    T* out;
    int from;
  };
  collective(Lane{x, &y, source()}, [](Lane* lanes) {
    for (int l = 0; l < 32; ++l) *lanes[l].out = lanes[lanes[l].from].in;
  });
  return y;
}
inline int lane() { return thread().id % 32; }
}  // namespace kadence::ops::cuda::emulated
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return kadence::ops::cuda::emulated::shuffle(x, [&] { return kadence::ops::cuda::emulated::lane() ^ mask; });
}
template <class T>
T __shfl_sync(unsigned, T x, int from, int = 32) {
  return kadence::ops::cuda::emulated::shuffle(x, [&] { return from & 31; });
}
template <class T>
T __shfl_up_sync(unsigned, T x, int d) {
  return kadence::ops::cuda::emulated::shuffle(x, [&] {
    const int l = kadence::ops::cuda::emulated::lane();
    return l >= d ? l - d : l;
  });
}
inline unsigned __ballot_sync(unsigned, int p) {
  unsigned y = 0;
  struct Lane {
    int in;
    unsigned* out;
  };
  kadence::ops::cuda::emulated::collective(Lane{p, &y}, [](Lane* lanes) {
    unsigned all = 0;
    for (int l = 0; l < 32; ++l) all |= static_cast<unsigned>(lanes[l].in != 0) << l;
    for (int l = 0; l < 32; ++l) *lanes[l].out = all;
  });
  return y;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline int atomicAdd(int* p, int v) {
  const int old = *p;
  *p += v;
  return old;
}
inline int atomicMin(int* p, int v) {
  const int old = *p;
  *p = std::min(*p, v);
  return old;
}
inline int atomicCAS(int* p, int expected, int v) {
  const int old = *p;
  if (old == expected) *p = v;
  return old;
}
using std::max;
using std::min;
