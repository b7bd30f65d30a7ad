#include "ops/cpu/attention_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway demands.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/cpu/nn_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kadence::ops::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// Vectors of one lane cannot hold four heads; callers ask attention_lanes() first.
void AttendRows(const RowsArgs&) { KADENCE_CHECK(!"vectors of four lanes or more"); }
#else
// Keys of a register tile: times four heads they fill the registers.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileKeys = 4;
#else
inline constexpr int kTileKeys = 2;
#endif

// Sums of the lanes of a, b, c, e.
HWY_INLINE hn::Vec<hn::CappedTag<float, 4> > sums_of_four(DF d, VF a, VF b, VF c, VF e) {
  const hn::Repartition<uint64_t, DF> d64;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto p = hn::BitCast(d64, ab), q = hn::BitCast(d64, ce);
  const VF blocks =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, p, q)), hn::BitCast(d, hn::InterleaveUpper(d64, p, q)));
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<DF> dh;
  const hn::Half<decltype(dh)> dq;
  const auto half = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
  return hn::Add(hn::LowerHalf(dq, half), hn::UpperHalf(dq, half));
#elif HWY_TARGET <= HWY_AVX2
  const hn::Half<DF> dh;
  return hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
#else
  return blocks;
#endif
}

// scores[k, h] for four heads and all keys.
HWY_INLINE void score_rows(const RowsArgs& args, const float* HWY_RESTRICT q) {
  const DF d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const hn::CappedTag<float, 4> d4;
  for (int32_t k = 0; k < args.keys; k += kTileKeys) {
    VF acc[kTileKeys][4];
    for (int i = 0; i < kTileKeys; ++i)
      for (int h = 0; h < 4; ++h) acc[i][h] = hn::Zero(d);
    const float* row[kTileKeys];
    for (int i = 0; i < kTileKeys; ++i) row[i] = args.rows[k + i];
    for (int32_t c = 0; c < args.width; c += lanes) {
      VF qv[4];
      for (int h = 0; h < 4; ++h) qv[h] = hn::LoadU(d, q + h * args.width + c);
      for (int i = 0; i < kTileKeys; ++i) {
        const VF kv = hn::LoadU(d, row[i] + c);
        for (int h = 0; h < 4; ++h) acc[i][h] = hn::MulAdd(qv[h], kv, acc[i][h]);
      }
    }
    for (int i = 0; i < kTileKeys; ++i)
      hn::StoreU(sums_of_four(d, acc[i][0], acc[i][1], acc[i][2], acc[i][3]), d4, args.scores + (k + i) * 4);
  }
}

// acc[h, c : c + kN vectors] = acc * factor[h] + sum over keys of p[k, h] * row[k][c ...].
template <int kN>
HWY_INLINE void sum_rows(const RowsArgs& args, const float* HWY_RESTRICT factor, float* HWY_RESTRICT acc_rows,
                         int32_t column) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF acc[4][kN];
  for (int h = 0; h < 4; ++h)
    for (int n = 0; n < kN; ++n)
      acc[h][n] = hn::Mul(hn::Set(d, factor[h]), hn::LoadU(d, acc_rows + h * args.latent + column + n * lanes));
  for (int32_t k = 0; k < args.keys; ++k) {
    const float* HWY_RESTRICT row = args.rows[k] + column;
    VF v[kN];
    for (int n = 0; n < kN; ++n) v[n] = hn::LoadU(d, row + n * lanes);
    for (int h = 0; h < 4; ++h) {
      const VF p = hn::Set(d, args.scores[k * 4 + h]);
      for (int n = 0; n < kN; ++n) acc[h][n] = hn::MulAdd(p, v[n], acc[h][n]);
    }
  }
  for (int h = 0; h < 4; ++h)
    for (int n = 0; n < kN; ++n) hn::StoreU(acc[h][n], d, acc_rows + h * args.latent + column + n * lanes);
}

void AttendRows(const RowsArgs& args) {
  const DF d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t group = 0; group < args.heads; group += kRowHeadGroup) {
    score_rows(args, args.q + group * args.width);
    float* s = args.scores;
    const int32_t used = args.keys * 4, end = (used + lanes - 1) / lanes * lanes;
    std::fill(s + used, s + end, -std::numeric_limits<float>::infinity());
    // Lane l of these vectors belongs to head l % 4.
    HWY_ALIGN float lane[kMaxLanes];
    float factor[4];
    VF best = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (int32_t i = 0; i < end; i += lanes) best = hn::Max(best, hn::LoadU(d, s + i));
    hn::Store(best, d, lane);
    for (int h = 0; h < 4; ++h) {
      const float before = args.top[group + h];
      float top = before;
      for (int32_t i = h; i < lanes; i += 4) top = std::max(top, lane[i]);
      args.top[group + h] = top;
      factor[h] = hn::GetLane(exp_nonpositive(d, hn::Set(d, before - top)));
      for (int32_t i = h; i < lanes; i += 4) lane[i] = top;
    }
    const VF top = hn::Load(d, lane);
    VF sum = hn::Zero(d);
    for (int32_t i = 0; i < end; i += lanes) {
      const VF p = exp_nonpositive(d, hn::Sub(hn::LoadU(d, s + i), top));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, s + i);
    }
    hn::Store(sum, d, lane);
    for (int h = 0; h < 4; ++h) {
      float total = args.sum[group + h] * factor[h];
      for (int32_t i = h; i < lanes; i += 4) total += lane[i];
      args.sum[group + h] = total;
    }
    float* acc = args.acc + group * args.latent;
    constexpr int kWide = kTileKeys;  // the same register budget
    int32_t c = 0;
    for (; c + kWide * lanes <= args.latent; c += kWide * lanes) sum_rows<kWide>(args, factor, acc, c);
    for (; c < args.latent; c += lanes) sum_rows<1>(args, factor, acc, c);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void FinishRows(int32_t heads, int32_t latent, int32_t parts, const float* acc, int64_t acc_pitch, const float* top,
                const float* sum, int64_t stat_pitch, float* out) {
  const DF d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t h = 0; h < heads; ++h) {
    float best = top[h];
    for (int32_t p = 1; p < parts; ++p) best = std::max(best, top[p * stat_pitch + h]);
    VF total = hn::Zero(d);
    for (int32_t p = 0; p < parts; ++p)
      total = hn::MulAdd(hn::Set(d, sum[p * stat_pitch + h]),
                         exp_nonpositive(d, hn::Set(d, top[p * stat_pitch + h] - best)), total);
    for (int32_t c = 0; c < latent; c += lanes) {
      VF v = hn::Zero(d);
      for (int32_t p = 0; p < parts; ++p) {
        const VF factor = exp_nonpositive(d, hn::Set(d, top[p * stat_pitch + h] - best));
        v = hn::MulAdd(factor, hn::LoadU(d, acc + p * acc_pitch + h * latent + c), v);
      }
      hn::StoreU(hn::Div(v, total), d, out + h * latent + c);
    }
  }
}

}  // namespace kadence::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "ops/cpu/nn_isa.h"

namespace kadence::ops {

HWY_EXPORT(AttendRows);
HWY_EXPORT(FinishRows);

void attend_rows(device::Isa isa, const RowsArgs& args) { KADENCE_NN_DISPATCH(AttendRows, isa)(args); }
void finish_rows(device::Isa isa, int32_t heads, int32_t latent, int32_t parts, const float* acc, int64_t acc_pitch,
                 const float* top, const float* sum, int64_t stat_pitch, float* out) {
  KADENCE_NN_DISPATCH(FinishRows, isa)(heads, latent, parts, acc, acc_pitch, top, sum, stat_pitch, out);
}

}  // namespace kadence::ops
#endif  // HWY_ONCE
