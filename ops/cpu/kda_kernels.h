// The inner loops of KDA on the CPU, compiled once per instruction set. kda_extend.cc and kda_step.cc drive them.
//
// Extend works on chunks of 16 tokens of one value head. With d_t the decay of token t inside the chunk,
//   P(j,i) = prod_{j<t<=i} d_t (per channel, <= 1),  Kd_i = k_i P(-1,i),  Qd_i = q_i P(-1,i),  Kr_j = k_j P(j,15)
//   A_ij = sum_c k_i P(j,i) k_j  (j < i),   M_ij = sum_c q_i P(j,i) k_j  (j <= i)
// the chunk is
//   R_i = beta_i (v_i - S Kd_i - sum_{j<i} A_ij R_j)      (R_i = u_i of the recurrence; forward substitution)
//   o_i = S Qd_i + sum_{j<=i} M_ij R_j,   S <- S diag(P(-1,15)) + sum_j R_j Kr_j^T
// All decays are ordered products of numbers in [0,1]: no exponent is ever positive and nothing is divided, so any gate
// from none to -inf is exact. The decay of the whole chunk is exp2 of the summed logarithms: it multiplies the state
// once per chunk, and a product of 16 rounded factors would drift over a long sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cpu {

inline constexpr int kSubChunk = 16;     // tokens of one chunk form
inline constexpr int kMaxHeadDim = 512;  // K and V: multiples of 16 up to this

// Factors of one chunk and head, floats. kd, qd and kr lie as [K/16][16 tokens][16 channels]; A and M as [16 j][16 i],
// A already multiplied by beta_i. Tokens beyond the chunk's end are zeros.
struct ChunkFactors {
  float *kd, *qd, *kr, *decay, *A, *M, *beta;
  static size_t floats(int K) {
    return static_cast<size_t>(3 * kSubChunk * K + K + 2 * kSubChunk * kSubChunk + kSubChunk);
  }
  ChunkFactors(float* base, int K)
      : kd(base),
        qd(kd + kSubChunk * K),
        kr(qd + kSubChunk * K),
        decay(kr + kSubChunk * K),
        A(decay + K),
        M(A + kSubChunk * kSubChunk),
        beta(M + kSubChunk * kSubChunk) {}
};

// What pre-processing of a head needs, the same for all its tokens.
struct HeadParams {
  int K = 0;
  KdaGate gate = KdaGate::kBounded;
  bool l2norm = true, beta_logits = true, beta_doubled = false;
  float q_scale = 1;               // multiplied into q
  float gate_rate = 1;             // exp(A_log)
  float gate_scale = 1;            // to log2: lower_bound log2(e), or -exp(A_log) log2(e), or log2(e)
  const float* dt_bias = nullptr;  // [K] or null
};

// Tokens of one head as they lie in memory: token t at base + t * stride bytes.
struct TokenSpan {
  const void* base = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kF32;
};

struct PrepareArgs {
  HeadParams head;
  TokenSpan q, k, decay, beta;
  int tokens = 0;  // 1..16
  float* scratch;  // prepare_floats(K)
  ChunkFactors out;
};
size_t prepare_floats(int K);

// Rows that the next chunks will read or write, asked for while this one computes. Rows of one head lie a whole token
// apart, so the hardware does not see the pattern. Changes no value.
class Ahead {
 public:
  // `tokens` rows of `bytes` from `base`, `stride` bytes apart.
  void add(const void* base, int64_t stride, int tokens, int64_t bytes, bool write) {
    if (tokens > 0 && count_ < kMax) rows_[count_++] = {static_cast<const char*>(base), stride, bytes, tokens, write};
  }
  // The next row, if any is left.
  void ask() {
    if (at_ == count_) return;
    Rows& r = rows_[at_];
    for (int64_t i = 0; i < r.bytes; i += 64) {
      if (r.write)
        __builtin_prefetch(r.base + i, 1, 3);
      else
        __builtin_prefetch(r.base + i, 0, 2);
    }
    r.base += r.stride;
    if (--r.tokens == 0) ++at_;
  }

 private:
  struct Rows {
    const char* base;
    int64_t stride, bytes;
    int tokens;
    bool write;
  };
  static constexpr int kMax = 5;
  Rows rows_[kMax] = {};
  int count_ = 0, at_ = 0;
};

// The state of a head, or a range of its value channels, as panels [V/P][K][P]; P = panel width of the instruction set.
struct AdvanceArgs {
  int K = 0, V = 0;  // V: value channels of this range
  int tokens = 0;    // 1..16
  ChunkFactors factors;
  float* state;
  TokenSpan v;  // [tokens][V] of this range
  void* out;    // token t at out + t * out_stride bytes
  int64_t out_stride = 0;
  DType io = DType::kF32;
  float* scratch;  // advance_floats(V)
  Ahead* ahead = nullptr;
};
size_t advance_floats(int V);

// One token of one head against a block of state rows.
struct StepToken {
  float *q, *k, *decay, *dk, *dq;  // [K]: normalised, scaled; decay; decay * k, decay * q
  float beta = 0, qk = 0;          // qk = q . k
  static size_t floats(int K) { return 5 * static_cast<size_t>(K); }
  StepToken(float* base, int K) : q(base), k(q + K), decay(k + K), dk(decay + K), dq(dk + K) {}
};

struct KdaKernels {
  void (*prepare)(const PrepareArgs&);
  void (*advance)(const AdvanceArgs&);
  // Rows [V,K] of a pool <-> panels. `v` value channels, row pitch K.
  void (*load_panels)(const void* rows, DType dtype, int K, int V, float* panels);
  void (*store_panels)(const float* panels, int K, int V, void* rows, DType dtype);
  // q, k, decay, beta of one token -> StepToken. `scratch` has 4 K floats.
  void (*step_token)(const HeadParams&, const void* q, const void* k, DType io, const void* decay, DType decay_dtype,
                     const void* beta, DType beta_dtype, float* scratch, StepToken& token);
  // 16 rows of S: out[16], u[16] and the new rows. src and dst may be the same memory. With `round`, dst is fp32 and
  // every value is first rounded to that dtype (what a store to the pool and a load would leave).
  void (*step_rows)(const StepToken& token, const float* v, int K, const void* src, DType src_dtype, void* dst,
                    DType dst_dtype, DType round, float* out, float* u);
  // 16 rows of S <- S diag(decay) + u k^T, with the same arithmetic as step_rows.
  void (*update_rows)(const float* decay, const float* k, const float* u, int K, const float* src, float* dst,
                      DType round);
  // n elements between a pool dtype and fp32, one rounding.
  void (*to_float)(const void* src, DType dtype, int64_t n, float* dst);
  void (*from_float)(const float* src, int64_t n, void* dst, DType dtype);
  // About n independent multiply-adds in registers, for benchmarks: the peak of this instruction set.
  float (*multiply_add_burst)(int64_t n);
};
const KdaKernels& kda_kernels(device::Isa isa);

}  // namespace kadence::ops::cpu
