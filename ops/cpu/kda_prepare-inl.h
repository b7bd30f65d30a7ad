// Factors of one chunk of one head; included once per instruction set.
#if defined(KADENCE_OPS_CPU_KDA_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KADENCE_OPS_CPU_KDA_PREPARE_INL_H_
#undef KADENCE_OPS_CPU_KDA_PREPARE_INL_H_
#else
#define KADENCE_OPS_CPU_KDA_PREPARE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/kda_kernels.h"
#include "ops/cpu/kda_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::cpu {
namespace HWY_NAMESPACE {

// log2 of the decays of N vectors of the same channels, in place.
template <KdaGate kGate, int N>
HWY_INLINE void LogDecay(Vectors<N>& x, VF bias, VF rate, VF scale) {
  if (kGate != KdaGate::kGivenLogDecay) {
    KADENCE_UNROLL for (int i = 0; i < N; ++i) x[i] = hn::Add(x[i], bias);
    if (kGate == KdaGate::kBounded) {
      KADENCE_UNROLL for (int i = 0; i < N; ++i) x[i] = hn::Mul(rate, x[i]);
      Sigmoid<N>(x);
    } else {
      Softplus<N>(x);
    }
  }
  KADENCE_UNROLL for (int i = 0; i < N; ++i) x[i] = hn::Mul(x[i], scale);
}

// beta of up to 16 tokens.
HWY_INLINE void BetaVector(const HeadParams& h, const float* raw, float* out) {
  const DF d;
  const VF factor = hn::Set(d, h.beta_doubled ? 2.0f : 1.0f);
  for (int i = 0; i < kSubChunk; i += static_cast<int>(kLanes)) {
    Vectors<1> x = {hn::Load(d, raw + i)};
    if (h.beta_logits) Sigmoid<1>(x);
    hn::Store(hn::Mul(x[0], factor), d, out + i);
  }
}

// Factors that normalise `tokens` rows [16][K] to length `scale`.
HWY_INLINE void NormFactors(const float* const* rows, int tokens, int K, bool l2norm, float scale, float* partial,
                            float* out) {
  const DF d;
  if (!l2norm) {
    std::fill_n(out, kSubChunk, scale);
    return;
  }
  for (int t = 0; t < kSubChunk; ++t) {
    VF sum = hn::Zero(d);
    if (t < tokens) {
      for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
        const VF x = hn::LoadU(d, rows[t] + c);
        sum = hn::MulAdd(x, x, sum);
      }
    }
    hn::Store(sum, d, partial + t * kLanes);
  }
  ReduceRows16(partial, out);
  for (int t = 0; t < kSubChunk; t += static_cast<int>(kLanes)) {
    const VF s = hn::Add(hn::Load(d, out + t), hn::Set(d, kL2NormEps));
    hn::Store(hn::Div(hn::Set(d, scale), hn::Sqrt(s)), d, out + t);
  }
}

// Normalised q and k [16][K], decays D [16][K], and the factors that need one channel only.
template <KdaGate kGate>
HWY_INLINE void ChannelFactors(const PrepareArgs& a, const float* const* q, const float* const* k,
                               const float* const* x, const float* q_norm, const float* k_norm, float* HWY_RESTRICT Q,
                               float* HWY_RESTRICT Kn, float* HWY_RESTRICT D) {
  const DF d;
  const HeadParams& h = a.head;
  const int K = h.K, n = a.tokens;
  const VF rate = hn::Set(d, h.gate_rate), scale = hn::Set(d, h.gate_scale);
  for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
    const VF bias = h.dt_bias ? hn::LoadU(d, h.dt_bias + c) : hn::Zero(d);
    const int blocked = (c / 16) * kSubChunk * 16 + c % 16;
    VF sum = hn::Zero(d), product = hn::Set(d, 1.0f);
    const auto tokens = [&](auto count, int first) HWY_ATTR {
      constexpr int N = decltype(count)::value;
      Vectors<N> g, decay;
      KADENCE_UNROLL for (int i = 0; i < N; ++i) g[i] = hn::LoadU(d, x[first + i] + c);
      LogDecay<kGate, N>(g, bias, rate, scale);
      KADENCE_UNROLL for (int i = 0; i < N; ++i) decay[i] = g[i];
      Exp2<N>(decay);
      KADENCE_UNROLL for (int i = 0; i < N; ++i) {
        const int t = first + i;
        const VF qn = hn::Mul(hn::LoadU(d, q[t] + c), hn::Set(d, q_norm[t])),
                 kn = hn::Mul(hn::LoadU(d, k[t] + c), hn::Set(d, k_norm[t]));
        sum = hn::Add(sum, g[i]);
        product = hn::Mul(product, decay[i]);
        hn::Store(decay[i], d, D + t * K + c);
        hn::Store(qn, d, Q + t * K + c);
        hn::Store(kn, d, Kn + t * K + c);
        hn::Store(hn::Mul(kn, product), d, a.out.kd + blocked + t * 16);
        hn::Store(hn::Mul(qn, product), d, a.out.qd + blocked + t * 16);
      }
    };
    int t = 0;
    for (; t + 4 <= n; t += 4) tokens(std::integral_constant<int, 4>(), t);
    for (; t < n; ++t) tokens(std::integral_constant<int, 1>(), t);
    Vectors<1> whole = {sum};
    Exp2<1>(whole);
    hn::Store(whole[0], d, a.out.decay + c);
    product = hn::Set(d, 1.0f);
    for (t = n - 1; t >= 0; --t) {
      hn::Store(hn::Mul(hn::Load(d, Kn + t * K + c), product), d, a.out.kr + blocked + t * 16);
      product = hn::Mul(product, hn::Load(d, D + t * K + c));
    }
    for (t = n; t < kSubChunk; ++t)
      for (float* f : {a.out.kd, a.out.qd, a.out.kr}) hn::Store(hn::Zero(d), d, f + blocked + t * 16);
  }
}

// One vector of channels of PairColumn; `more` adds to what earlier vectors left.
HWY_INLINE void PairTail(const float* HWY_RESTRICT Q, const float* HWY_RESTRICT Kn, const float* HWY_RESTRICT D, int K,
                         int c, bool more, int j, int n, float* HWY_RESTRICT pa, float* HWY_RESTRICT pm) {
  const DF d;
  VF w = hn::Load(d, Kn + j * K + c);
  const auto add = [&](float* to, VF term) HWY_ATTR { hn::Store(more ? hn::Add(hn::Load(d, to), term) : term, d, to); };
  add(pm + j * kLanes, hn::Mul(w, hn::Load(d, Q + j * K + c)));
  for (int i = j + 1; i < n; ++i) {
    w = hn::Mul(w, hn::Load(d, D + i * K + c));
    add(pa + i * kLanes, hn::Mul(w, hn::Load(d, Kn + i * K + c)));
    add(pm + i * kLanes, hn::Mul(w, hn::Load(d, Q + i * K + c)));
  }
}

// Column j of A and M: w = k_j times the decays of the tokens since j, against every later k_i and q_i.
HWY_INLINE void PairColumn(const float* HWY_RESTRICT Q, const float* HWY_RESTRICT Kn, const float* HWY_RESTRICT D,
                           int K, int j, int n, float* HWY_RESTRICT pa, float* HWY_RESTRICT pm) {
  const DF d;
  constexpr int kHeld = 8;  // vectors of w in registers
  const int vectors = K / static_cast<int>(kLanes);
  for (int first = 0; first < vectors; first += kHeld) {
    const int held = std::min(kHeld, vectors - first);
    const int base = first * static_cast<int>(kLanes);
    const auto run = [&](auto count_tag) HWY_ATTR {
      constexpr int kCount = decltype(count_tag)::value;
      VF w[kCount];
      VF m = hn::Zero(d);
      KADENCE_UNROLL for (int v = 0; v < kCount; ++v) {
        w[v] = hn::Load(d, Kn + j * K + base + v * kLanes);
        m = hn::MulAdd(w[v], hn::Load(d, Q + j * K + base + v * kLanes), m);
      }
      hn::Store(first ? hn::Add(hn::Load(d, pm + j * kLanes), m) : m, d, pm + j * kLanes);
      for (int i = j + 1; i < n; ++i) {
        VF sa = hn::Zero(d), sm = hn::Zero(d);
        const float* at = D + i * K + base;
        KADENCE_UNROLL for (int v = 0; v < kCount; ++v) {
          w[v] = hn::Mul(w[v], hn::Load(d, at + v * kLanes));
          sa = hn::MulAdd(w[v], hn::Load(d, Kn + i * K + base + v * kLanes), sa);
          sm = hn::MulAdd(w[v], hn::Load(d, Q + i * K + base + v * kLanes), sm);
        }
        if (first) {
          sa = hn::Add(sa, hn::Load(d, pa + i * kLanes));
          sm = hn::Add(sm, hn::Load(d, pm + i * kLanes));
        }
        hn::Store(sa, d, pa + i * kLanes);
        hn::Store(sm, d, pm + i * kLanes);
      }
    };
    switch (held) {
      case 8:
        run(std::integral_constant<int, 8>());
        break;
      case 4:
        run(std::integral_constant<int, 4>());
        break;
      case 2:
        run(std::integral_constant<int, 2>());
        break;
      default:
        // Any other width: one vector at a time keeps the sum over channels in ascending order.
        for (int v = 0; v < held; ++v)
          PairTail(Q, Kn, D, K, base + v * static_cast<int>(kLanes), first + v > 0, j, n, pa, pm);
    }
  }
}

void Prepare(const PrepareArgs& a) {
  const DF d;
  const int K = a.head.K, n = a.tokens;
  float* Q = a.scratch;
  float* Kn = Q + kSubChunk * K;
  float* D = Kn + kSubChunk * K;
  float* converted = D + kSubChunk * K;
  float* pa = converted + kSubChunk * K;
  float* pm = pa + kSubChunk * kLanes;
  float* norms = a.scratch + prepare_floats(K) - 2 * kSubChunk;
  HWY_ALIGN float raw_beta[kSubChunk] = {};
  const float *q[kSubChunk] = {}, *k[kSubChunk] = {}, *x[kSubChunk] = {};
  const auto token = [](const TokenSpan& s, int t) { return static_cast<const char*>(s.base) + t * s.stride; };
  // Converted q and k land where their normalised values go: each element is read before it is overwritten.
  for (int t = 0; t < n; ++t) {
    q[t] = Fetch(token(a.q, t), a.q.dtype, K, Q + t * K);
    k[t] = Fetch(token(a.k, t), a.k.dtype, K, Kn + t * K);
    x[t] = Fetch(token(a.decay, t), a.decay.dtype, K, converted + t * K);
    raw_beta[t] = base::load_f32(token(a.beta, t), 0, a.beta.dtype);
  }
  BetaVector(a.head, raw_beta, a.out.beta);
  NormFactors(q, n, K, a.head.l2norm, a.head.q_scale, pa, norms);
  NormFactors(k, n, K, a.head.l2norm, 1.0f, pa, norms + kSubChunk);
  switch (a.head.gate) {
    case KdaGate::kBounded:
      ChannelFactors<KdaGate::kBounded>(a, q, k, x, norms, norms + kSubChunk, Q, Kn, D);
      break;
    case KdaGate::kSoftplus:
      ChannelFactors<KdaGate::kSoftplus>(a, q, k, x, norms, norms + kSubChunk, Q, Kn, D);
      break;
    case KdaGate::kGivenLogDecay:
      ChannelFactors<KdaGate::kGivenLogDecay>(a, q, k, x, norms, norms + kSubChunk, Q, Kn, D);
      break;
  }
  // Entries that no pair fills are zeros; garbage of an earlier column must not leak in.
  std::fill_n(pa, kSubChunk * kLanes, 0.0f);
  std::fill_n(pm, kSubChunk * kLanes, 0.0f);
  for (int j = 0; j < n; ++j) {
    PairColumn(Q, Kn, D, K, j, n, pa, pm);
    ReduceRows16(pa, a.out.A + j * kSubChunk);
    ReduceRows16(pm, a.out.M + j * kSubChunk);
    for (int i = 0; i < kSubChunk; i += static_cast<int>(kLanes)) {
      float* column = a.out.A + j * kSubChunk + i;
      hn::Store(hn::Mul(hn::Load(d, column), hn::Load(d, a.out.beta + i)), d, column);
    }
    // Row j of the partial sums is above the diagonal for every later column.
    hn::Store(hn::Zero(d), d, pm + j * kLanes);
    if (j + 1 < kSubChunk) hn::Store(hn::Zero(d), d, pa + (j + 1) * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kadence::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
