// One token through blocks of 16 state rows; included once per instruction set.
#if defined(KADENCE_OPS_CPU_KDA_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KADENCE_OPS_CPU_KDA_STEP_INL_H_
#undef KADENCE_OPS_CPU_KDA_STEP_INL_H_
#else
#define KADENCE_OPS_CPU_KDA_STEP_INL_H_
#endif

#include "ops/cpu/kda_kernels.h"
#include "ops/cpu/kda_prepare-inl.h"
#include "ops/cpu/kda_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int n) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int c = 0; c < n; c += static_cast<int>(kLanes)) sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE void Normalise(const float* x, int n, bool l2norm, float scale, float* out) {
  const DF d;
  const float factor = l2norm ? scale / std::sqrt(Dot(x, x, n) + kL2NormEps) : scale;
  for (int c = 0; c < n; c += static_cast<int>(kLanes))
    hn::Store(hn::Mul(hn::LoadU(d, x + c), hn::Set(d, factor)), d, out + c);
}

template <KdaGate kGate>
HWY_INLINE void Decays(const HeadParams& h, const float* x, float* decay) {
  const DF d;
  const VF rate = hn::Set(d, h.gate_rate), scale = hn::Set(d, h.gate_scale);
  for (int c = 0; c < h.K; c += static_cast<int>(kLanes)) {
    const VF bias = h.dt_bias ? hn::LoadU(d, h.dt_bias + c) : hn::Zero(d);
    Vectors<1> g = {hn::LoadU(d, x + c)};
    LogDecay<kGate, 1>(g, bias, rate, scale);
    Exp2<1>(g);
    hn::Store(g[0], d, decay + c);
  }
}

void MakeStepToken(const HeadParams& h, const void* q, const void* k, DType io, const void* decay, DType decay_dtype,
                   const void* beta, DType beta_dtype, float* scratch, StepToken& token) {
  const DF d;
  const int K = h.K;
  Normalise(Fetch(q, io, K, scratch), K, h.l2norm, h.q_scale, token.q);
  Normalise(Fetch(k, io, K, scratch), K, h.l2norm, 1.0f, token.k);
  const float* x = Fetch(decay, decay_dtype, K, scratch);
  switch (h.gate) {
    case KdaGate::kBounded:
      Decays<KdaGate::kBounded>(h, x, token.decay);
      break;
    case KdaGate::kSoftplus:
      Decays<KdaGate::kSoftplus>(h, x, token.decay);
      break;
    case KdaGate::kGivenLogDecay:
      Decays<KdaGate::kGivenLogDecay>(h, x, token.decay);
      break;
  }
  for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
    const VF g = hn::Load(d, token.decay + c);
    hn::Store(hn::Mul(g, hn::Load(d, token.k + c)), d, token.dk + c);
    hn::Store(hn::Mul(g, hn::Load(d, token.q + c)), d, token.dq + c);
  }
  token.qk = Dot(token.q, token.k, K);
  HWY_ALIGN float raw[kSubChunk] = {}, activated[kSubChunk];
  raw[0] = base::load_f32(beta, 0, beta_dtype);
  BetaVector(h, raw, activated);
  token.beta = activated[0];
}

// What storing to `dtype` and loading again leaves.
template <class Round>
HWY_INLINE VF RoundThrough(VF x) {
  if (std::is_same<Round, AsF32>::value) return x;
  typename Round::T bits[kLanes];
  Round::Store(x, bits);
  return Round::Load(bits);
}

inline constexpr int kStepRows = 4;

template <class Src, class Dst, class Round>
HWY_INLINE void StepRowsOf(const StepToken& token, const float* v, int K, const typename Src::T* src,
                           typename Dst::T* dst, float* out, float* u) {
  const DF d;
  HWY_ALIGN float predicted[kSubChunk], read[kSubChunk];
  HWY_ALIGN float pp[kSubChunk * kLanes], po[kSubChunk * kLanes];
  // Four rows at a time share the loads of dk and dq; the next block is fetched meanwhile.
  for (int r = 0; r < kSubChunk; r += kStepRows) {
    const typename Src::T* s = src + static_cast<int64_t>(r) * K;
    VF p[kStepRows], o[kStepRows];
    KADENCE_UNROLL for (int i = 0; i < kStepRows; ++i) p[i] = o[i] = hn::Zero(d);
    for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
      const VF dk = hn::Load(d, token.dk + c), dq = hn::Load(d, token.dq + c);
      KADENCE_UNROLL for (int i = 0; i < kStepRows; ++i) {
        const typename Src::T* at = s + i * K + c;
        const VF x = Src::Load(at);
        hwy::Prefetch(at + kSubChunk * K);
        p[i] = hn::MulAdd(x, dk, p[i]);
        o[i] = hn::MulAdd(x, dq, o[i]);
      }
    }
    KADENCE_UNROLL for (int i = 0; i < kStepRows; ++i) {
      hn::Store(p[i], d, pp + (r + i) * kLanes);
      hn::Store(o[i], d, po + (r + i) * kLanes);
    }
  }
  ReduceRows16(pp, predicted);
  ReduceRows16(po, read);
  for (int r = 0; r < kSubChunk; r += static_cast<int>(kLanes)) {
    const VF ur = hn::Mul(hn::Set(d, token.beta), hn::Sub(hn::LoadU(d, v + r), hn::Load(d, predicted + r)));
    hn::StoreU(ur, d, u + r);
    hn::StoreU(hn::MulAdd(hn::Set(d, token.qk), ur, hn::Load(d, read + r)), d, out + r);
  }
  for (int r = 0; r < kSubChunk; r += kStepRows) {
    const typename Src::T* s = src + static_cast<int64_t>(r) * K;
    typename Dst::T* t = dst + static_cast<int64_t>(r) * K;
    VF ur[kStepRows];
    KADENCE_UNROLL for (int i = 0; i < kStepRows; ++i) ur[i] = hn::Set(d, u[r + i]);
    for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
      const VF k = hn::Load(d, token.k + c), decay = hn::Load(d, token.decay + c);
      KADENCE_UNROLL for (int i = 0; i < kStepRows; ++i) {
        const VF x = hn::MulAdd(ur[i], k, hn::Mul(Src::Load(s + i * K + c), decay));
        Dst::Store(RoundThrough<Round>(x), t + i * K + c);
      }
    }
  }
}

void StepRows(const StepToken& token, const float* v, int K, const void* src, DType src_dtype, void* dst,
              DType dst_dtype, DType round, float* out, float* u) {
  WithType(src_dtype, [&](auto from) HWY_ATTR {
    using Src = decltype(from);
    const typename Src::T* s = static_cast<const typename Src::T*>(src);
    if (dst_dtype == DType::kF32) {
      WithType(round, [&](auto rounded) HWY_ATTR {
        StepRowsOf<Src, AsF32, decltype(rounded)>(token, v, K, s, static_cast<float*>(dst), out, u);
      });
    } else if (dst_dtype == DType::kBF16) {
      StepRowsOf<Src, AsBF16, AsF32>(token, v, K, s, static_cast<uint16_t*>(dst), out, u);
    } else {
      StepRowsOf<Src, AsF16, AsF32>(token, v, K, s, static_cast<uint16_t*>(dst), out, u);
    }
  });
}

void UpdateRows(const float* decay, const float* k, const float* u, int K, const float* src, float* dst, DType round) {
  const DF d;
  WithType(round, [&](auto rounded) HWY_ATTR {
    for (int r = 0; r < kSubChunk; ++r) {
      const VF ur = hn::Set(d, u[r]);
      for (int c = 0; c < K; c += static_cast<int>(kLanes)) {
        const int64_t at = static_cast<int64_t>(r) * K + c;
        const VF x = hn::MulAdd(ur, hn::LoadU(d, k + c), hn::Mul(hn::LoadU(d, src + at), hn::LoadU(d, decay + c)));
        hn::StoreU(RoundThrough<decltype(rounded)>(x), d, dst + at);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kadence::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
