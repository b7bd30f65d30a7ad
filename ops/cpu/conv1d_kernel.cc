// Compiled once per instruction set: lanes over channels, the window in registers.
#include "ops/cpu/kda_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/conv1d_kernel.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include <algorithm>

#include "ops/cpu/conv1d_kernel.h"
#include "ops/cpu/kda_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::cpu {
namespace HWY_NAMESPACE {

// One vector of channels; all pointers are valid for kLanes channels.
template <class As>
HWY_INLINE void ConvolveVector(const void* const* x, int tokens, int c, const float* weight, const float* bias, void* y,
                               int64_t y_stride) {
  using T = typename As::T;
  const DF d;
  VF w0, w1, w2, w3;
  hn::LoadInterleaved4(d, weight, w0, w1, w2, w3);
  const VF b = bias ? hn::LoadU(d, bias) : hn::Zero(d);
  const auto load = [&](int i) HWY_ATTR { return x[i] ? As::Load(static_cast<const T*>(x[i]) + c) : hn::Zero(d); };
  VF x0 = load(0), x1 = load(1), x2 = load(2);
  for (int t = 0; t < tokens; ++t) {
    const VF x3 = load(t + 3);
    const VF sum = hn::MulAdd(w3, x3, hn::MulAdd(w2, x2, hn::MulAdd(w1, x1, hn::MulAdd(w0, x0, b))));
    Vectors<1> gate = {sum};
    Sigmoid<1>(gate);
    As::Store(hn::Mul(sum, gate[0]), reinterpret_cast<T*>(static_cast<char*>(y) + t * y_stride) + c);
    x0 = x1, x1 = x2, x2 = x3;
  }
}

template <class As>
HWY_INLINE void ConvolveType(const Conv1dArgs& conv, const void* const* x, int tokens, int first, int channels, void* y,
                             int64_t y_stride) {
  using T = typename As::T;
  const int lanes = static_cast<int>(kLanes);
  const float* weight = conv.weight + int64_t{first} * kConvWidth;
  const float* bias = conv.bias ? conv.bias + first : nullptr;
  int c = 0;
  for (; c + lanes <= channels; c += lanes)
    ConvolveVector<As>(x, tokens, c, weight + c * kConvWidth, bias ? bias + c : nullptr, y, y_stride);
  if (c == channels) return;
  // The last channels, in a vector of their own: nothing beyond them is read or written.
  const int rest = channels - c;
  HWY_ALIGN float w[kLanes * kConvWidth] = {}, b[kLanes] = {};
  std::copy_n(weight + c * kConvWidth, rest * kConvWidth, w);
  if (bias) std::copy_n(bias + c, rest, b);
  for (int t = 0; t < tokens; ++t) {
    T in[kConvWidth][kLanes] = {}, out[kLanes];
    const void* rows[kConvWidth];
    for (int j = 0; j < kConvWidth; ++j) {
      if (x[t + j]) std::copy_n(static_cast<const T*>(x[t + j]) + c, rest, in[j]);
      rows[j] = in[j];
    }
    ConvolveVector<As>(rows, 1, 0, w, b, out, 0);
    std::copy_n(out, rest, reinterpret_cast<T*>(static_cast<char*>(y) + t * y_stride) + c);
  }
}

void Convolve(const Conv1dArgs& conv, const void* const* x, int tokens, int first, int channels, void* y,
              int64_t y_stride) {
  WithType(conv.dtype,
           [&](auto as) HWY_ATTR { ConvolveType<decltype(as)>(conv, x, tokens, first, channels, y, y_stride); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kadence::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kadence::ops::cpu {

ConvKernel conv_kernel(device::Isa isa) {
#if HWY_TARGETS & HWY_AVX3
  if (isa == device::Isa::kAvx512) return N_AVX3::Convolve;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (isa == device::Isa::kAvx2) return N_AVX2::Convolve;
#endif
  (void)isa;
  return HWY_STATIC_DISPATCH(Convolve);
}

}  // namespace kadence::ops::cpu
#endif  // HWY_ONCE
