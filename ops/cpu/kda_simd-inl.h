// Vector helpers shared by the kernels; included once per instruction set.
#if defined(KADENCE_OPS_CPU_KDA_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KADENCE_OPS_CPU_KDA_SIMD_INL_H_
#undef KADENCE_OPS_CPU_KDA_SIMD_INL_H_
#else
#define KADENCE_OPS_CPU_KDA_SIMD_INL_H_
#endif

#include <cstring>

#include "base/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#define KADENCE_UNROLL _Pragma("GCC unroll 16")

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Full vectors, at most 16 lanes.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
inline constexpr size_t kLanes = hn::MaxLanes(DF());

// Elementary functions of N vectors at once, in place. Their chains are long and a core looks only so far ahead, so the
// operations of the N chains alternate; a value does not depend on N.
template <int N>
using Vectors = VF[N];

// 2^x for x <= 127. Exactly 0 below -126 (also at -inf), exactly 1 at 0; NaN stays NaN. Error below 0.6 ulp: the last
// operation adds a small correction to 1.
template <int N>
HWY_INLINE void Exp2(Vectors<N>& x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  constexpr float kCoefficients[] = {1.5403530393381608e-4f,
                                     1.3333558146428443e-3f,
                                     9.6181291076284772e-3f,
                                     5.5504108664821580e-2f,
                                     2.4022650695910071e-1f,
                                     6.9314718055994531e-1f,
                                     1.0f};
  hn::Vec<decltype(di)> n[N];
  Vectors<N> f, p;
  KADENCE_UNROLL for (int i = 0; i < N; ++i) n[i] = hn::NearestInt(x[i]);
  KADENCE_UNROLL for (int i = 0; i < N; ++i) f[i] = hn::Sub(x[i], hn::ConvertTo(d, n[i]));
  KADENCE_UNROLL for (int i = 0; i < N; ++i) p[i] = hn::Set(d, 1.5252733804059841e-5f);
  KADENCE_UNROLL for (const float c : kCoefficients) {
    KADENCE_UNROLL for (int i = 0; i < N; ++i) p[i] = hn::MulAdd(p[i], f[i], hn::Set(d, c));
  }
  KADENCE_UNROLL for (int i = 0; i < N; ++i) {
    const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n[i], hn::Set(di, 127))));
    x[i] = hn::IfThenZeroElse(hn::Lt(x[i], hn::Set(d, -126.0f)), hn::Mul(p[i], power));
  }
}

inline constexpr float kLog2E = 1.44269504088896340736f;

// 1 / (1 + e^-y).
template <int N>
HWY_INLINE void Sigmoid(Vectors<N>& y) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  KADENCE_UNROLL for (int i = 0; i < N; ++i) y[i] = hn::Min(hn::Set(d, 126.0f), hn::Mul(y[i], hn::Set(d, -kLog2E)));
  Exp2<N>(y);
  KADENCE_UNROLL for (int i = 0; i < N; ++i) y[i] = hn::Div(one, hn::Add(one, y[i]));
}

// max(x, 0) + log(1 + e^-|x|); log1p(u) = 2 atanh(u / (2 + u)), relative error about one ulp for all u in [0,1].
template <int N>
HWY_INLINE void Softplus(Vectors<N>& x) {
  const DF d;
  constexpr float kCoefficients[] = {1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3};
  Vectors<N> u, s2, p;
  KADENCE_UNROLL for (int i = 0; i < N; ++i) u[i] = hn::Mul(hn::Abs(x[i]), hn::Set(d, -kLog2E));
  Exp2<N>(u);
  KADENCE_UNROLL for (int i = 0; i < N; ++i) u[i] = hn::Div(u[i], hn::Add(u[i], hn::Set(d, 2.0f)));
  KADENCE_UNROLL for (int i = 0; i < N; ++i) s2[i] = hn::Mul(u[i], u[i]);
  KADENCE_UNROLL for (int i = 0; i < N; ++i) p[i] = hn::Set(d, 1.0f / 13);
  KADENCE_UNROLL for (const float c : kCoefficients) {
    KADENCE_UNROLL for (int i = 0; i < N; ++i) p[i] = hn::MulAdd(p[i], s2[i], hn::Set(d, c));
  }
  KADENCE_UNROLL for (int i = 0; i < N; ++i) {
    const VF tail = hn::MulAdd(hn::Mul(p[i], s2[i]), u[i], u[i]);
    x[i] = hn::Add(hn::Max(hn::Zero(d), x[i]), hn::Add(tail, tail));
  }
}

// out[r] = sum of the lanes of row r of rows[16][kLanes].
HWY_INLINE void ReduceRows16(const float* HWY_RESTRICT rows, float* HWY_RESTRICT out) {
  const DF d;
  const hn::RepartitionToWide<DF> d64;
  const hn::CappedTag<float, 4> d4;
  HWY_ALIGN float block[kLanes];
  for (int g = 0; g < 4; ++g) {
    const float* at = rows + g * 4 * static_cast<int>(kLanes);
    const VF a = hn::Load(d, at), b = hn::Load(d, at + kLanes), c = hn::Load(d, at + 2 * kLanes),
             e = hn::Load(d, at + 3 * kLanes);
    const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
    const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
    const auto lo = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
    const auto hi = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
    hn::Store(hn::Add(hn::BitCast(d, lo), hn::BitCast(d, hi)), d, block);
    auto sum = hn::Load(d4, block);
    for (size_t i = 4; i < kLanes; i += 4) sum = hn::Add(sum, hn::Load(d4, block + i));
    hn::StoreU(sum, d4, out + g * 4);
  }
}

// bf16 from fp32, to nearest even, NaN stays NaN. (Highway's own conversion truncates.)
HWY_INLINE void StoreBF16(VF x, uint16_t* to) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::Ne(x, x));
  const auto half = hn::IfThenElse(is_nan, quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, half)), d16, to);
}

HWY_INLINE VF LoadBF16(const uint16_t* from) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

HWY_INLINE VF LoadF16(const uint16_t* from) {
  const DF d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, DF> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  HWY_ALIGN float x[kLanes];
  for (size_t i = 0; i < kLanes; ++i) x[i] = base::f16_to_f32(from[i]);
  return hn::Load(d, x);
#endif
}
HWY_INLINE void StoreF16(VF x, uint16_t* to) {
  const DF d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, DF> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(to));
#else
  HWY_ALIGN float v[kLanes];
  hn::Store(x, d, v);
  for (size_t i = 0; i < kLanes; ++i) to[i] = base::f32_to_f16(v[i]);
#endif
}

// Elements of a dtype as a compile-time type.
struct AsF32 {
  using T = float;
  static HWY_INLINE VF Load(const float* p) { return hn::LoadU(DF(), p); }
  static HWY_INLINE void Store(VF x, float* p) { hn::StoreU(x, DF(), p); }
};
struct AsBF16 {
  using T = uint16_t;
  static HWY_INLINE VF Load(const uint16_t* p) { return LoadBF16(p); }
  static HWY_INLINE void Store(VF x, uint16_t* p) { StoreBF16(x, p); }
};
struct AsF16 {
  using T = uint16_t;
  static HWY_INLINE VF Load(const uint16_t* p) { return LoadF16(p); }
  static HWY_INLINE void Store(VF x, uint16_t* p) { StoreF16(x, p); }
};
// f(AsF32{}) or ... for a dtype that was validated by the plan.
template <class F>
HWY_INLINE void WithType(base::DType t, F&& f) {
  if (t == base::DType::kF32)
    f(AsF32());
  else if (t == base::DType::kBF16)
    f(AsBF16());
  else
    f(AsF16());
}

// n is a multiple of 16.
HWY_INLINE void ToFloat(const void* src, base::DType dtype, int64_t n, float* dst) {
  WithType(dtype, [&](auto as) HWY_ATTR {
    using A = decltype(as);
    const typename A::T* s = static_cast<const typename A::T*>(src);
    for (int64_t i = 0; i < n; i += kLanes) hn::StoreU(A::Load(s + i), DF(), dst + i);
  });
}
HWY_INLINE void FromFloat(const float* src, int64_t n, void* dst, base::DType dtype) {
  WithType(dtype, [&](auto as) HWY_ATTR {
    using A = decltype(as);
    typename A::T* to = static_cast<typename A::T*>(dst);
    for (int64_t i = 0; i < n; i += kLanes) A::Store(hn::LoadU(DF(), src + i), to + i);
  });
}
// fp32 rows as they are, others converted into `buffer`.
HWY_INLINE const float* Fetch(const void* src, base::DType dtype, int64_t n, float* buffer) {
  if (dtype == base::DType::kF32) return static_cast<const float*>(src);
  ToFloat(src, dtype, n, buffer);
  return buffer;
}

}  // namespace HWY_NAMESPACE
}  // namespace kadence::ops::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
