#include "ops/cpu/nn_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/nn_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway demands.
#include <hwy/highway.h>

#include <cmath>

#include "ops/cpu/nn_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::HWY_NAMESPACE {

// Calls f(vector load, store) over a row: full vectors, then one partial.
template <class F>
HWY_INLINE void for_lanes(int64_t width, const F& f) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes)
    f(
        i, [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); },
        [&](VF v, float* p) HWY_ATTR { hn::StoreU(v, d, p); });
  if (i < width) {
    const auto rest = static_cast<size_t>(width - i);
    f(
        i, [&](const float* p) HWY_ATTR { return load_first(d, p, rest); },
        [&](VF v, float* p) HWY_ATTR { store_first(d, v, p, rest); });
  }
}

HWY_INLINE float inverse_rms(const float* HWY_RESTRICT x, float eps, int64_t width) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    const VF a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + lanes), c = hn::LoadU(d, x + i + 2 * lanes),
             e = hn::LoadU(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(a, a, s0), s1 = hn::MulAdd(b, b, s1), s2 = hn::MulAdd(c, c, s2), s3 = hn::MulAdd(e, e, s3);
  }
  for (; i + lanes <= width; i += lanes) {
    const VF a = hn::LoadU(d, x + i);
    s0 = hn::MulAdd(a, a, s0);
  }
  if (i < width) {
    const VF a = load_first(d, x + i, static_cast<size_t>(width - i));
    s1 = hn::MulAdd(a, a, s1);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

void RmsNormRow(const float* x, const float* weight, float eps, float* y, int64_t width) {
  const DF d;
  const VF scale = hn::Set(d, inverse_rms(x, eps, width));
  for_lanes(width, [&](int64_t i, auto load, auto store)
                       HWY_ATTR { store(hn::Mul(hn::Mul(load(x + i), scale), load(weight + i)), y + i); });
}

void GatedRmsNormRow(const float* x, const float* z, const float* weight, float eps, float* y, int64_t width) {
  const DF d;
  const VF scale = hn::Set(d, inverse_rms(x, eps, width));
  for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const VF normed = hn::Mul(hn::Mul(load(x + i), scale), load(weight + i));
    store(hn::Mul(normed, sigmoid(d, load(z + i))), y + i);
  });
}

void AddRow(float* acc, const float* x, int64_t width) {
  for_lanes(width,
            [&](int64_t i, auto load, auto store) HWY_ATTR { store(hn::Add(load(acc + i), load(x + i)), acc + i); });
}

void AddWeightedRows(float* out, const float* rows, int64_t pitch, const float* weights, int32_t count, int64_t width) {
  const DF d;
  for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
    VF sum = hn::Mul(hn::Set(d, weights[0]), load(rows + i));
    for (int32_t j = 1; j < count; ++j) sum = hn::MulAdd(hn::Set(d, weights[j]), load(rows + j * pitch + i), sum);
    store(hn::Add(load(out + i), sum), out + i);
  });
}

void GatedActivationRow(const Activation& a, const float* gate_up, float* y, int64_t width) {
  const DF d;
  const float* up_row = gate_up + width;
  switch (a.kind) {
    case Activation::Kind::kSilu:
      for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
        const VF gate = load(gate_up + i);
        store(hn::Mul(hn::Mul(gate, sigmoid(d, gate)), load(up_row + i)), y + i);
      });
      return;
    case Activation::Kind::kClampedSilu: {
      const VF limit = hn::Set(d, a.limit), low = hn::Neg(limit);
      for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
        VF gate = load(gate_up + i), up = load(up_row + i);
        gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
        up = hn::IfThenElse(hn::Gt(up, limit), limit, hn::IfThenElse(hn::Lt(up, low), low, up));
        store(hn::Mul(hn::Mul(gate, sigmoid(d, gate)), up), y + i);
      });
      return;
    }
    case Activation::Kind::kSitu: {
      const VF beta = hn::Set(d, a.beta), linear = hn::Set(d, a.linear_beta);
      for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
        const VF gate = load(gate_up + i), up = load(up_row + i);
        const VF left = hn::Mul(hn::Mul(beta, tanh_full(d, hn::Div(gate, beta))), sigmoid(d, gate));
        store(hn::Mul(left, hn::Mul(linear, tanh_full(d, hn::Div(up, linear)))), y + i);
      });
      return;
    }
  }
}

void ElementaryRow(Elementary function, const float* x, float* y, int64_t width) {
  const DF d;
  for_lanes(width, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const VF v = load(x + i);
    switch (function) {
      case Elementary::kExp:
        store(exp_full(d, v), y + i);
        break;
      case Elementary::kExpNonpositive:
        store(exp_nonpositive(d, v), y + i);
        break;
      case Elementary::kSigmoid:
        store(sigmoid(d, v), y + i);
        break;
      case Elementary::kTanh:
        store(tanh_full(d, v), y + i);
        break;
    }
  });
}

}  // namespace kadence::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/nn_isa.h"

namespace kadence::ops {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GatedRmsNormRow);
HWY_EXPORT(AddRow);
HWY_EXPORT(AddWeightedRows);
HWY_EXPORT(GatedActivationRow);
HWY_EXPORT(ElementaryRow);

void rms_norm_row(device::Isa isa, const float* x, const float* weight, float eps, float* y, int64_t width) {
  KADENCE_NN_DISPATCH(RmsNormRow, isa)(x, weight, eps, y, width);
}
void gated_rms_norm_row(device::Isa isa, const float* x, const float* z, const float* weight, float eps, float* y,
                        int64_t width) {
  KADENCE_NN_DISPATCH(GatedRmsNormRow, isa)(x, z, weight, eps, y, width);
}
void add_row(device::Isa isa, float* acc, const float* x, int64_t width) {
  KADENCE_NN_DISPATCH(AddRow, isa)(acc, x, width);
}
void add_weighted_rows(device::Isa isa, float* out, const float* rows, int64_t pitch, const float* weights,
                       int32_t count, int64_t width) {
  KADENCE_NN_DISPATCH(AddWeightedRows, isa)(out, rows, pitch, weights, count, width);
}
void gated_activation_row(device::Isa isa, const Activation& activation, const float* gate_up, float* y,
                          int64_t width) {
  KADENCE_NN_DISPATCH(GatedActivationRow, isa)(activation, gate_up, y, width);
}
void elementary_row(device::Isa isa, Elementary function, const float* x, float* y, int64_t width) {
  KADENCE_NN_DISPATCH(ElementaryRow, isa)(function, x, y, width);
}

}  // namespace kadence::ops
#endif  // HWY_ONCE
