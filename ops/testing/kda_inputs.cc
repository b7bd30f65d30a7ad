#include "ops/testing/kda_inputs.h"

#include <cmath>

#include "base/rng.h"

namespace kadence::ops::testing {
namespace {

float logit(const KdaProblem& p, GateFamily family, base::Rng& rng, int64_t token, int channel,
            const std::vector<float>& bias) {
  const double x = rng.normal();
  switch (family) {
    case GateFamily::kNormal:
      return static_cast<float>(x);
    case GateFamily::kWeak:
      return static_cast<float>(-7 + x);
    case GateFamily::kChannelBias:
      return static_cast<float>(bias[static_cast<size_t>(channel)] + 0.1 * x);
    case GateFamily::kOff:
      return -12;
    case GateFamily::kSaturated:
      return 8;
    case GateFamily::kWide:
      return static_cast<float>(8 * x);
    case GateFamily::kSlowChannel:
      return channel == p.K / 3 ? -9 : 8;
    case GateFamily::kHandOff:
      return ((channel < p.K / 2) == (token / 48 % 2 == 0)) ? 4 : -9;
    case GateFamily::kNone:
      return -200;
    case GateFamily::kExtreme:
      return rng.uniform() < 0.5 ? 30 : -30;
  }
  return 0;
}

// The log decay that a caller with its own gate would pass.
float given_decay(GateFamily family, float x, base::Rng& rng) {
  if (family == GateFamily::kNone) return 0.0f;
  if (family != GateFamily::kExtreme) return static_cast<float>(-std::log1p(std::exp(static_cast<double>(x))));
  const double u = rng.uniform();
  return u < 0.4 ? -0.01f : u < 0.6 ? -50.0f : u < 0.8 ? -1000.0f : -INFINITY;
}

float beta_value(const KdaProblem& p, BetaFamily family, base::Rng& rng) {
  const double x = rng.normal();
  double logit = x;
  switch (family) {
    case BetaFamily::kNormal:
      break;
    case BetaFamily::kHigh:
      logit = 10;
      break;
    case BetaFamily::kLow:
      logit = -10;
      break;
    case BetaFamily::kZero:
      return p.beta_mode == KdaBeta::kGiven ? 0.0f : -30.0f;
    case BetaFamily::kOne:
      return p.beta_mode == KdaBeta::kGiven ? 1.0f : 30.0f;
  }
  return static_cast<float>(p.beta_mode == KdaBeta::kGiven ? 1 / (1 + std::exp(-logit)) : logit);
}

// One key or query of K channels.
void fill_key(KeyFamily family, const std::vector<std::vector<float>>& pool, int64_t token, int K, base::Rng& rng,
              float* out) {
  const auto normal = [&](double scale) {
    for (int c = 0; c < K; ++c) out[c] = static_cast<float>(scale * rng.normal());
  };
  const auto from_pool = [&](size_t i, double noise) {
    for (int c = 0; c < K; ++c) out[c] = static_cast<float>(pool[i][static_cast<size_t>(c)] + noise * rng.normal());
  };
  switch (family) {
    case KeyFamily::kNormal:
      return normal(1);
    case KeyFamily::kTiny:
      return normal(1e-4);
    case KeyFamily::kHuge:
      return normal(1e3);
    case KeyFamily::kIdentical:
      return from_pool(0, 0);
    case KeyFamily::kNearParallel:
      return from_pool(0, 0.1);
    case KeyFamily::kRecurring:
      return from_pool(static_cast<size_t>(token % 4), 0);
    case KeyFamily::kUniform:
      for (int c = 0; c < K; ++c) out[c] = static_cast<float>(rng.uniform());
      return;
    case KeyFamily::kOneHot:
      for (int c = 0; c < K; ++c) out[c] = 0;
      out[rng.below(static_cast<uint64_t>(K))] = 1;
      return;
    case KeyFamily::kZeroRows:
      if (token % 3 == 1) {
        std::fill_n(out, K, 0.0f);
        return;
      }
      return normal(1);
  }
}

}  // namespace

const char* to_string(GateFamily f) {
  const char* names[] = {"normal", "weak",         "channel-bias", "off",  "saturated",
                         "wide",   "slow-channel", "hand-off",     "none", "extreme"};
  return names[static_cast<int>(f)];
}
const char* to_string(BetaFamily f) {
  const char* names[] = {"normal", "high", "low", "zero", "one"};
  return names[static_cast<int>(f)];
}
const char* to_string(KeyFamily f) {
  const char* names[] = {"normal",  "uniform",   "identical", "recurring", "near-parallel",
                         "one-hot", "zero-rows", "tiny",      "huge"};
  return names[static_cast<int>(f)];
}
const char* to_string(StateFamily f) {
  const char* names[] = {"none", "normal", "large"};
  return names[static_cast<int>(f)];
}

float round_to(float x, DType dtype) {
  char bytes[4];
  base::store_f32(bytes, 0, dtype, x);
  return base::load_f32(bytes, 0, dtype);
}

KdaWeights make_weights(const KdaProblem& p, uint64_t seed, bool with_bias) {
  KdaWeights w;
  if (p.gate == KdaGate::kGivenLogDecay) return w;
  base::Rng rng(seed);
  for (int h = 0; h < p.HV; ++h) w.A_log.push_back(static_cast<float>(0.3 * rng.normal()));
  if (with_bias)
    for (int64_t i = 0; i < int64_t{p.HV} * p.K; ++i) w.dt_bias.push_back(static_cast<float>(0.2 * rng.normal()));
  return w;
}

KdaRowData make_row(const KdaProblem& p, const KdaFamilies& f, int64_t len, uint64_t seed) {
  base::Rng rng(seed);
  KdaRowData r;
  r.len = len;
  const auto size = [len](int heads, int width) { return static_cast<size_t>(len * heads * width); };
  r.q.resize(size(p.H, p.K)), r.k.resize(size(p.H, p.K)), r.v.resize(size(p.HV, p.V));
  r.decay.resize(size(p.HV, p.K)), r.beta.resize(size(p.HV, 1));
  for (int h = 0; h < p.H; ++h) {
    std::vector<std::vector<float>> pool(4, std::vector<float>(static_cast<size_t>(p.K)));
    for (auto& key : pool)
      for (float& x : key) x = static_cast<float>(rng.normal());
    for (int64_t t = 0; t < len; ++t) {
      fill_key(f.key, pool, t, p.K, rng, &r.q[static_cast<size_t>((t * p.H + h) * p.K)]);
      fill_key(f.key, pool, t, p.K, rng, &r.k[static_cast<size_t>((t * p.H + h) * p.K)]);
    }
  }
  std::vector<float> bias(static_cast<size_t>(p.K));
  for (float& x : bias) x = static_cast<float>(-7 + rng.normal());
  for (int64_t t = 0; t < len; ++t)
    for (int hv = 0; hv < p.HV; ++hv) {
      for (int c = 0; c < p.V; ++c)
        r.v[static_cast<size_t>((t * p.HV + hv) * p.V + c)] = static_cast<float>(f.v_scale * rng.normal());
      for (int c = 0; c < p.K; ++c) {
        float x = logit(p, f.gate, rng, t, c, bias);
        if (p.gate == KdaGate::kGivenLogDecay) x = given_decay(f.gate, x, rng);
        if (p.gate == KdaGate::kSoftplus && f.gate == GateFamily::kExtreme)
          x = x < 0 ? -30.0f : rng.uniform() < 0.5 ? 50.0f : 1000.0f;
        r.decay[static_cast<size_t>((t * p.HV + hv) * p.K + c)] = x;
      }
      r.beta[static_cast<size_t>(t * p.HV + hv)] = beta_value(p, f.beta, rng);
    }
  if (f.state != StateFamily::kNone) {
    r.state.resize(static_cast<size_t>(p.HV) * p.V * p.K);
    for (float& x : r.state)
      x = round_to(static_cast<float>((f.state == StateFamily::kLarge ? 100.0 : 1.0) * rng.normal()), p.state_in);
  }
  for (auto* x : {&r.q, &r.k, &r.v})
    for (float& e : *x) e = round_to(e, p.io);
  for (float& e : r.decay) e = round_to(e, p.decay);
  for (float& e : r.beta) e = round_to(e, p.beta);
  return r;
}

KdaRowData slice_row(const KdaProblem& p, const KdaRowData& row, int64_t begin, int64_t end, std::vector<float> state) {
  KdaRowData r;
  r.len = end - begin;
  const auto cut = [&](const std::vector<float>& from, int64_t width) {
    return std::vector<float>(from.begin() + begin * width, from.begin() + end * width);
  };
  r.q = cut(row.q, int64_t{p.H} * p.K), r.k = cut(row.k, int64_t{p.H} * p.K), r.v = cut(row.v, int64_t{p.HV} * p.V);
  r.decay = cut(row.decay, int64_t{p.HV} * p.K), r.beta = cut(row.beta, p.HV);
  r.state = std::move(state);
  return r;
}

}  // namespace kadence::ops::testing
