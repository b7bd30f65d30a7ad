// Extend: factors of a chunk, and the chunk itself. Compiled once per instruction set.
#include "ops/cpu/kda_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kda_kernels.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/kda_kernels.h"
#include "ops/cpu/kda_prepare-inl.h"
#include "ops/cpu/kda_simd-inl.h"
#include "ops/cpu/kda_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::cpu {
namespace HWY_NAMESPACE {

// ---- the chunk ----

// Rows per register block: accumulators kRows x 2 and two state vectors stay in registers.
inline constexpr int kRows = kLanes == 16 ? 8 : 4;
inline constexpr int kPanel = 2 * static_cast<int>(kLanes);

// acc[r][n] = sum_k f[r][k] * S[k][n] for kRows tokens; f as [K/16][16][16], already at the first token.
template <int NV>
HWY_INLINE void Product(const float* HWY_RESTRICT f, const float* HWY_RESTRICT S, int K, VF (&acc)[kRows][NV]) {
  const DF d;
  KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
    KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
  }
  for (int block = 0; block < K / 16; ++block) {
    const float* fb = f + block * kSubChunk * 16;
    for (int c = 0; c < 16; ++c) {
      VF s[NV];
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) s[n] = hn::Load(d, S + n * kLanes);
      KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
        const VF b = hn::Set(d, fb[r * 16 + c]);
        KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(b, s[n], acc[r][n]);
      }
      S += NV * kLanes;
    }
  }
}

// R_i -= sum_{j<i} A_ij R_j for one vector of value channels, in place; x has a row pitch of kPanel. Tokens at or after
// `tokens` come in as zeros and are not used.
HWY_INLINE void Substitute(const float* HWY_RESTRICT A, int tokens, float* HWY_RESTRICT x) {
  const DF d;
  constexpr int kBlock = kLanes == 16 ? 16 : 8;
  for (int first = 0; first < tokens; first += kBlock) {
    VF r[kBlock];
    KADENCE_UNROLL for (int i = 0; i < kBlock; ++i) r[i] = hn::Load(d, x + (first + i) * kPanel);
    for (int j = 0; j < first; ++j) {
      const VF known = hn::Load(d, x + j * kPanel);
      KADENCE_UNROLL for (int i = 0; i < kBlock; ++i) r[i] =
          hn::NegMulAdd(hn::Set(d, A[j * kSubChunk + first + i]), known, r[i]);
    }
    KADENCE_UNROLL for (int j = 0; j < kBlock; ++j) {
      KADENCE_UNROLL for (int i = 0; i < kBlock; ++i) {
        if (i > j) r[i] = hn::NegMulAdd(hn::Set(d, A[(first + j) * kSubChunk + first + i]), r[j], r[i]);
      }
    }
    KADENCE_UNROLL for (int i = 0; i < kBlock; ++i) hn::Store(r[i], d, x + (first + i) * kPanel);
  }
}

template <int NV>
HWY_INLINE void AdvancePanel(const AdvanceArgs& a, float* HWY_RESTRICT S, int column, float* HWY_RESTRICT R,
                             const float* const* v, float* HWY_RESTRICT out) {
  const DF d;
  const ChunkFactors& f = a.factors;
  for (int first = 0; first < a.tokens; first += kRows) {
    if (a.ahead) a.ahead->ask();
    VF acc[kRows][NV];
    Product<NV>(f.kd + first * 16, S, a.K, acc);
    KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
      const int i = first + r;
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) {
        VF x = hn::Zero(d);
        if (i < a.tokens)
          x = hn::Mul(hn::Set(d, f.beta[i]), hn::Sub(hn::LoadU(d, v[i] + column + n * kLanes), acc[r][n]));
        hn::Store(x, d, R + i * kPanel + n * kLanes);
      }
    }
  }
  KADENCE_UNROLL for (int n = 0; n < NV; ++n) {
    if (a.tokens % kRows != 0 || a.tokens < kSubChunk) {
      for (int i = (a.tokens + kRows - 1) / kRows * kRows; i < kSubChunk; ++i)
        hn::Store(hn::Zero(d), d, R + i * kPanel + n * kLanes);
    }
    Substitute(f.A, a.tokens, R + n * kLanes);
  }
  for (int first = 0; first < a.tokens; first += kRows) {
    if (a.ahead) a.ahead->ask();
    VF acc[kRows][NV];
    Product<NV>(f.qd + first * 16, S, a.K, acc);
    // Tokens before this block contribute to all its rows, those inside it triangularly.
    for (int j = 0; j < first; ++j) {
      VF x[NV];
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) x[n] = hn::Load(d, R + j * kPanel + n * kLanes);
      KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
        const VF m = hn::Set(d, f.M[j * kSubChunk + first + r]);
        KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(m, x[n], acc[r][n]);
      }
    }
    KADENCE_UNROLL for (int j = 0; j < kRows; ++j) {
      VF x[NV];
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) x[n] = hn::Load(d, R + (first + j) * kPanel + n * kLanes);
      KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
        if (r < j) continue;
        const VF m = hn::Set(d, f.M[(first + j) * kSubChunk + first + r]);
        KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(m, x[n], acc[r][n]);
      }
    }
    KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) hn::Store(acc[r][n], d, out + (first + r) * kPanel + n * kLanes);
    }
  }
  for (int k = 0; k < a.K; k += kRows) {
    if (a.ahead) a.ahead->ask();
    const float* kr = f.kr + (k / 16) * kSubChunk * 16 + k % 16;
    float* s = S + k * NV * static_cast<int>(kLanes);
    VF acc[kRows][NV];
    KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
      const VF decay = hn::Set(d, f.decay[k + r]);
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::Mul(decay, hn::Load(d, s + (r * NV + n) * kLanes));
    }
    for (int t = 0; t < a.tokens; ++t) {
      VF x[NV];
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) x[n] = hn::Load(d, R + t * kPanel + n * kLanes);
      KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
        const VF b = hn::Set(d, kr[t * 16 + r]);
        KADENCE_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(b, x[n], acc[r][n]);
      }
    }
    KADENCE_UNROLL for (int r = 0; r < kRows; ++r) {
      KADENCE_UNROLL for (int n = 0; n < NV; ++n) hn::Store(acc[r][n], d, s + (r * NV + n) * kLanes);
    }
  }
}

void Advance(const AdvanceArgs& a) {
  float* R = a.scratch;
  float* out = R + kSubChunk * kPanel;
  float* converted = out + kSubChunk * kPanel;
  const float* v[kSubChunk] = {};
  for (int t = 0; t < a.tokens; ++t)
    v[t] = Fetch(static_cast<const char*>(a.v.base) + t * a.v.stride, a.v.dtype, a.V, converted + t * a.V);
  for (int column = 0; column < a.V; column += kPanel) {
    const int width = std::min(kPanel, a.V - column);
    float* S = a.state + column * a.K;
    if (width == kPanel)
      AdvancePanel<2>(a, S, column, R, v, out);
    else
      AdvancePanel<1>(a, S, column, R, v, out);
    for (int t = 0; t < a.tokens; ++t)
      FromFloat(out + t * kPanel, width,
                static_cast<char*>(a.out) + t * a.out_stride + column * static_cast<int>(base::size_of(a.io)), a.io);
  }
}

// 4 x 4 block: to[j * to_pitch + i] = from[i * from_pitch + j].
HWY_INLINE void Transpose4(const float* HWY_RESTRICT from, int64_t from_pitch, float* HWY_RESTRICT to,
                           int64_t to_pitch) {
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  const auto pair = [&](auto low, auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, low.value ? hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, b))
                                    : hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
  };
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + from_pitch), c = hn::LoadU(d, from + 2 * from_pitch),
             e = hn::LoadU(d, from + 3 * from_pitch);
  const auto ab0 = hn::InterleaveLower(d, a, b), ab1 = hn::InterleaveUpper(d, a, b), ce0 = hn::InterleaveLower(d, c, e),
             ce1 = hn::InterleaveUpper(d, c, e);
  hn::StoreU(pair(std::true_type(), ab0, ce0), d, to);
  hn::StoreU(pair(std::false_type(), ab0, ce0), d, to + to_pitch);
  hn::StoreU(pair(std::true_type(), ab1, ce1), d, to + 2 * to_pitch);
  hn::StoreU(pair(std::false_type(), ab1, ce1), d, to + 3 * to_pitch);
}

void LoadPanels(const void* rows, DType dtype, int K, int V, float* panels) {
  HWY_ALIGN float buffer[4 * kMaxHeadDim];
  for (int v = 0; v < V; v += 4) {
    const int column = v / kPanel * kPanel, width = std::min(kPanel, V - column);
    const float* from =
        Fetch(static_cast<const char*>(rows) + int64_t{v} * K * static_cast<int64_t>(base::size_of(dtype)), dtype,
              int64_t{4} * K, buffer);
    float* to = panels + column * K + (v - column);
    for (int k = 0; k < K; k += 4) Transpose4(from + k, K, to + k * width, width);
  }
}

void StorePanels(const float* panels, int K, int V, void* rows, DType dtype) {
  HWY_ALIGN float buffer[4 * kMaxHeadDim];
  for (int v = 0; v < V; v += 4) {
    const int column = v / kPanel * kPanel, width = std::min(kPanel, V - column);
    const float* from = panels + column * K + (v - column);
    char* to = static_cast<char*>(rows) + int64_t{v} * K * static_cast<int64_t>(base::size_of(dtype));
    float* direct = dtype == DType::kF32 ? reinterpret_cast<float*>(to) : buffer;
    for (int k = 0; k < K; k += 4) Transpose4(from + k * width, width, direct + k, K);
    if (dtype != DType::kF32) FromFloat(buffer, int64_t{4} * K, to, dtype);
  }
}

void ToFloatFn(const void* src, DType dtype, int64_t n, float* dst) { ToFloat(src, dtype, n, dst); }
void FromFloatFn(const float* src, int64_t n, void* dst, DType dtype) { FromFloat(src, n, dst, dtype); }

float MultiplyAddBurst(int64_t n) {
  const DF d;
  VF acc[12];
  KADENCE_UNROLL for (int i = 0; i < 12; ++i) acc[i] = hn::Set(d, static_cast<float>(i));
  const VF a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  for (int64_t i = 0; i < n; i += 12 * static_cast<int64_t>(kLanes)) {
    KADENCE_UNROLL for (int j = 0; j < 12; ++j) acc[j] = hn::MulAdd(acc[j], a, b);
  }
  VF sum = acc[0];
  KADENCE_UNROLL for (int i = 1; i < 12; ++i) sum = hn::Add(sum, acc[i]);
  return hn::GetLane(sum);
}

const KdaKernels& Table() {
  static constexpr KdaKernels table{Prepare,  Advance,    LoadPanels, StorePanels, MakeStepToken,
                                    StepRows, UpdateRows, ToFloatFn,  FromFloatFn, MultiplyAddBurst};
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace kadence::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kadence::ops::cpu {

size_t prepare_floats(int K) { return static_cast<size_t>(4 * kSubChunk * K + 2 * kSubChunk * 16 + 2 * kSubChunk); }
size_t advance_floats(int V) { return static_cast<size_t>(2 * kSubChunk * 32 + kSubChunk * V); }

// Exactly the table that is asked for: device::resolve_isa has checked that the machine runs it.
const KdaKernels& kda_kernels(device::Isa isa) {
#if HWY_TARGETS & HWY_AVX3
  if (isa == device::Isa::kAvx512) return N_AVX3::Table();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (isa == device::Isa::kAvx2) return N_AVX2::Table();
#endif
  (void)isa;
  return HWY_STATIC_DISPATCH(Table)();
}

}  // namespace kadence::ops::cpu
#endif  // HWY_ONCE
