// Vector helpers shared by the kernel files of kadence_ops_nn; compiled once per instruction set.
#if defined(KADENCE_OPS_CPU_NN_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KADENCE_OPS_CPU_NN_MATH_INL_H_
#undef KADENCE_OPS_CPU_NN_MATH_INL_H_
#else
#define KADENCE_OPS_CPU_NN_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
// 512 bits is the widest vector of the targets that this library dispatches to.
inline constexpr size_t kMaxLanes = 16;

// Lanes [0, n) of p, zeros above; never reads p[n].
HWY_INLINE VF load_first(DF d, const float* HWY_RESTRICT p, size_t n) {
  HWY_ALIGN float buffer[kMaxLanes] = {};
  std::memcpy(buffer, p, n * sizeof(float));
  return hn::Load(d, buffer);
}
HWY_INLINE void store_first(DF d, VF v, float* HWY_RESTRICT p, size_t n) {
  HWY_ALIGN float buffer[kMaxLanes];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, n * sizeof(float));
}

// 2^n for integral n in [-126, 127].
HWY_INLINE VF exp2_integral(DF d, hn::Vec<hn::RebindToSigned<DF>> n) {
  const hn::RebindToSigned<DF> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

// exp of r in [-ln2/2, ln2/2]: Taylor-like polynomial with the coefficients of Cephes' expf (Moshier 1992).
HWY_INLINE VF exp_reduced(DF d, VF r) {
  VF p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
}

// exp(x) within 2 ulp; exp(0) = 1 and exp(-inf) = 0 exactly; inf above the range, NaN stays NaN.
HWY_INLINE VF exp_full(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF hi = hn::Set(d, 90.0f), lo = hn::Set(d, -106.0f);
  x = hn::IfThenElse(hn::Gt(x, hi), hi, x);  // comparisons, not Min and Max: those drop a NaN
  x = hn::IfThenElse(hn::Lt(x, lo), lo, x);
  const VF n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // In two steps, so that both ends of the range (subnormal, infinite) come out right.
  const auto whole = hn::ConvertTo(di, n), half = hn::ShiftRight<1>(whole);
  return hn::Mul(hn::Mul(exp_reduced(d, r), exp2_integral(d, half)), exp2_integral(d, hn::Sub(whole, half)));
}

// exp(x) for x <= 0 as a softmax needs it: exactly 1 at 0, exactly 0 below -87 and at -inf.
HWY_INLINE VF exp_nonpositive(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF lo = hn::Set(d, -87.0f);
  const auto tiny = hn::Lt(x, lo);
  const VF n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  return hn::IfThenZeroElse(tiny, hn::Mul(exp_reduced(d, r), exp2_integral(d, hn::ConvertTo(di, n))));
}

HWY_INLINE VF sigmoid(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp_full(d, hn::Neg(x))));
}

// tanh: odd polynomial below 0.625 (Cephes' tanhf), by exp(-2|x|) above.
HWY_INLINE VF tanh_full(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f), a = hn::Abs(x), z = hn::Mul(x, x);
  VF p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1f));
  const VF small = hn::MulAdd(hn::Mul(p, z), x, x);
  const VF e = exp_full(d, hn::Mul(a, hn::Set(d, -2.0f)));
  const VF large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, large);
}

}  // namespace kadence::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
