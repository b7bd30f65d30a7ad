#include "ops/cpu/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway demands.
#include <hwy/highway.h>

#include <limits>

#include "ops/cpu/nn_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::HWY_NAMESPACE {

// Rows of a register tile: 12 x 2 accumulators fit the 32 registers of AVX-512, 4 x 2 the 16 of the others.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int32_t kRows = 12;
#else
inline constexpr int32_t kRows = 4;
#endif

static_assert(kKeyBlock % kRows == 0, "a group of keys must not run past the key buffer");

// c[i, :] = start + sum over k of a[i, k] * b[k, :] for kM rows and kN vectors of columns, k ascending;
// start = c[i, :] * scale if kScaled, else 0. a[i, k] is at a + i*a_row + k*a_col. Not inlined: among its neighbours
// the compiler runs out of registers and spills inside the loop, which costs a third of the speed.
template <int kM, int kN, bool kScaled>
HWY_NOINLINE void product_tile(const float* HWY_RESTRICT a, int64_t a_row, int64_t a_col, const float* HWY_RESTRICT b,
                               int64_t b_pitch, int32_t depth, float* HWY_RESTRICT c, int64_t c_pitch,
                               const float* HWY_RESTRICT scale) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF acc[kM][kN];
  for (int n = 0; n < kN; ++n) {
    if constexpr (kScaled) {
      const VF s = hn::LoadU(d, scale + n * lanes);
      for (int i = 0; i < kM; ++i) acc[i][n] = hn::Mul(hn::LoadU(d, c + i * c_pitch + n * lanes), s);
    } else {
      for (int i = 0; i < kM; ++i) acc[i][n] = hn::Zero(d);
    }
  }
  for (int32_t k = 0; k < depth; ++k, a += a_col, b += b_pitch) {
    VF bv[kN];
    for (int n = 0; n < kN; ++n) bv[n] = hn::LoadU(d, b + n * lanes);
    for (int i = 0; i < kM; ++i) {
      const VF av = hn::Set(d, a[i * a_row]);
      for (int n = 0; n < kN; ++n) acc[i][n] = hn::MulAdd(av, bv[n], acc[i][n]);
    }
  }
  for (int i = 0; i < kM; ++i)
    for (int n = 0; n < kN; ++n) hn::StoreU(acc[i][n], d, c + i * c_pitch + n * lanes);
}

template <int kN>
void AttendStripN(const StripArgs& args) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const int32_t end = args.keys_end, full = args.full_keys, pitch = args.lanes;
  // Scores, in groups of keys; the last group may run past the end, into what nobody reads.
  for (int32_t k = 0; k < end; k += kRows)
    product_tile<kRows, kN, false>(args.keys + static_cast<int64_t>(k) * args.width, args.width, 1, args.q, pitch,
                                   args.width, args.scores + k * pitch, pitch, nullptr);
  HWY_ALIGN float scale[kMaxStrip];
  const VF minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int n = 0; n < kN; ++n) {
    float* s = args.scores + n * lanes;
    const VF before = hn::LoadU(d, args.top + n * lanes);
    VF top = before;
    for (int32_t k = 0; k < full; ++k) top = hn::Max(top, hn::LoadU(d, s + k * pitch));
    if (full < end) {
      const VF limit = hn::LoadU(d, args.limits + n * lanes);
      for (int32_t k = full; k < end; ++k) {
        const VF v =
            hn::IfThenElse(hn::Lt(hn::Set(d, static_cast<float>(k)), limit), hn::LoadU(d, s + k * pitch), minus_inf);
        hn::StoreU(v, d, s + k * pitch);
        top = hn::Max(top, v);
      }
    }
    const VF factor = exp_nonpositive(d, hn::Sub(before, top));
    VF sum = hn::Mul(hn::LoadU(d, args.sum + n * lanes), factor);
    for (int32_t k = 0; k < end; ++k) {
      const VF p = exp_nonpositive(d, hn::Sub(hn::LoadU(d, s + k * pitch), top));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, s + k * pitch);
    }
    hn::StoreU(top, d, args.top + n * lanes);
    hn::StoreU(sum, d, args.sum + n * lanes);
    hn::StoreU(factor, d, scale + n * lanes);
  }
  int32_t r = 0;
  for (; r + kRows <= args.latent; r += kRows)
    product_tile<kRows, kN, true>(args.keys + r, 1, args.width, args.scores, pitch, full, args.acc + r * pitch, pitch,
                                  scale);
  for (; r + 4 <= args.latent; r += 4)
    product_tile<4, kN, true>(args.keys + r, 1, args.width, args.scores, pitch, full, args.acc + r * pitch, pitch,
                              scale);
  for (; r < args.latent; ++r)
    product_tile<1, kN, true>(args.keys + r, 1, args.width, args.scores, pitch, full, args.acc + r * pitch, pitch,
                              scale);
  // Keys that some lanes do not see are selected, not multiplied by zero: those lanes' bits stay, whatever the key
  // holds.
  for (int32_t k = full; k < end; ++k) {
    const float* key = args.keys + static_cast<int64_t>(k) * args.width;
    for (int n = 0; n < kN; ++n) {
      const auto seen = hn::Lt(hn::Set(d, static_cast<float>(k)), hn::LoadU(d, args.limits + n * lanes));
      const VF p = hn::LoadU(d, args.scores + k * pitch + n * lanes);
      for (int32_t i = 0; i < args.latent; ++i) {
        float* c = args.acc + i * pitch + n * lanes;
        const VF old = hn::LoadU(d, c);
        hn::StoreU(hn::IfThenElse(seen, hn::MulAdd(hn::Set(d, key[i]), p, old), old), d, c);
      }
    }
  }
}

void AttendStrip(const StripArgs& args) {
  const DF d;
  if (args.lanes == static_cast<int32_t>(hn::Lanes(d)))
    AttendStripN<1>(args);
  else
    AttendStripN<2>(args);
}

int32_t AttentionLanes() { return static_cast<int32_t>(hn::Lanes(DF())); }

void MergeStrips(int32_t lanes, int32_t latent, int32_t parts, float* acc, int64_t acc_pitch, float* top, float* sum,
                 int64_t stat_pitch) {
  const DF d;
  for (int32_t n = 0; n < lanes; n += static_cast<int32_t>(hn::Lanes(d))) {
    VF best = hn::LoadU(d, top + n);
    for (int32_t p = 1; p < parts; ++p) best = hn::Max(best, hn::LoadU(d, top + p * stat_pitch + n));
    VF total = hn::Zero(d);
    for (int32_t p = 0; p < parts; ++p) {
      const VF factor = exp_nonpositive(d, hn::Sub(hn::LoadU(d, top + p * stat_pitch + n), best));
      total = hn::MulAdd(hn::LoadU(d, sum + p * stat_pitch + n), factor, total);
      const float* part = acc + p * acc_pitch + n;
      for (int32_t r = 0; r < latent; ++r) {
        const VF scaled = hn::Mul(hn::LoadU(d, part + r * lanes), factor);
        float* c = acc + r * lanes + n;
        hn::StoreU(p == 0 ? scaled : hn::Add(hn::LoadU(d, c), scaled), d, c);
      }
    }
    hn::StoreU(total, d, sum + n);
    hn::StoreU(best, d, top + n);
  }
}

void FinishStrip(int32_t lanes, int32_t latent, float* acc, const float* sum) {
  const DF d;
  for (int32_t n = 0; n < lanes; n += static_cast<int32_t>(hn::Lanes(d))) {
    const VF total = hn::LoadU(d, sum + n);
    for (int32_t r = 0; r < latent; ++r) {
      float* c = acc + r * lanes + n;
      hn::StoreU(hn::Div(hn::LoadU(d, c), total), d, c);
    }
  }
}

void Widen(const uint16_t* src, base::DType dtype, float* dst, int64_t n) {
  int64_t i = 0;
  if (dtype == base::DType::kBF16) {
    const hn::ScalableTag<uint32_t> du;
    const hn::Rebind<uint16_t, decltype(du)> dh;
    const auto lanes = static_cast<int64_t>(hn::Lanes(du));
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, src + i)))), DF(), dst + i);
    for (; i < n; ++i) dst[i] = base::bf16_to_f32(src[i]);
  } else {
    const hn::Rebind<uint16_t, DF> du;
    const hn::Rebind<hwy::float16_t, DF> dh;
    const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::PromoteTo(DF(), hn::BitCast(dh, hn::LoadU(du, src + i))), DF(), dst + i);
    for (; i < n; ++i) dst[i] = base::f16_to_f32(src[i]);
  }
}

}  // namespace kadence::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/nn_isa.h"

namespace kadence::ops {

HWY_EXPORT(AttendStrip);
HWY_EXPORT(AttentionLanes);
HWY_EXPORT(MergeStrips);
HWY_EXPORT(FinishStrip);
HWY_EXPORT(Widen);

int32_t attention_lanes(device::Isa isa) { return KADENCE_NN_DISPATCH(AttentionLanes, isa)(); }
void attend_strip(device::Isa isa, const StripArgs& args) { KADENCE_NN_DISPATCH(AttendStrip, isa)(args); }
void merge_strips(device::Isa isa, int32_t lanes, int32_t latent, int32_t parts, float* acc, int64_t acc_pitch,
                  float* top, float* sum, int64_t stat_pitch) {
  KADENCE_NN_DISPATCH(MergeStrips, isa)(lanes, latent, parts, acc, acc_pitch, top, sum, stat_pitch);
}
void finish_strip(device::Isa isa, int32_t lanes, int32_t latent, float* acc, const float* sum) {
  KADENCE_NN_DISPATCH(FinishStrip, isa)(lanes, latent, acc, sum);
}
void widen(device::Isa isa, const uint16_t* src, base::DType dtype, float* dst, int64_t n) {
  KADENCE_NN_DISPATCH(Widen, isa)(src, dtype, dst, n);
}

}  // namespace kadence::ops
#endif  // HWY_ONCE
