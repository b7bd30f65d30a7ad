// The recurrence of kda.h, written down once more and as plainly as possible.
#include "ops/testing/kda_oracle.h"

#include <cmath>

namespace kadence::ops::testing {
namespace {

using Vec = std::vector<double>;

double gate(const KdaProblem& p, const KdaWeights& w, double x, int hv, int c) {
  if (p.gate == KdaGate::kGivenLogDecay) return x;
  if (!w.dt_bias.empty()) x += w.dt_bias[static_cast<size_t>(hv * p.K + c)];
  const double a = std::exp(double{w.A_log[static_cast<size_t>(hv)]});
  if (p.gate == KdaGate::kBounded) return double{p.lower_bound} / (1 + std::exp(-a * x));
  return -a * (x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)));
}

Vec key(const KdaProblem& p, const std::vector<float>& from, int64_t at) {
  Vec x(from.begin() + at, from.begin() + at + p.K);
  if (!p.l2norm) return x;
  double sum = 1e-6;
  for (double e : x) sum += e * e;
  for (double& e : x) e /= std::sqrt(sum);
  return x;
}

// One token of one head through S [V,K].
void token(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row, int64_t t, int hv, double* S, double* out,
           DType round) {
  const int h = hv * p.H / p.HV;
  const Vec k = key(p, row.k, (t * p.H + h) * p.K);
  Vec q = key(p, row.q, (t * p.H + h) * p.K);
  const double scale = p.scale != 0 ? double{p.scale} : 1 / std::sqrt(double(p.K));
  const double b = row.beta[static_cast<size_t>(t * p.HV + hv)];
  const double beta = (p.beta_mode == KdaBeta::kGiven ? b : 1 / (1 + std::exp(-b))) * (p.beta_doubled ? 2 : 1);
  Vec decay(static_cast<size_t>(p.K));
  for (int c = 0; c < p.K; ++c)
    decay[static_cast<size_t>(c)] =
        std::exp(gate(p, w, row.decay[static_cast<size_t>((t * p.HV + hv) * p.K + c)], hv, c));
  for (int r = 0; r < p.V; ++r) {
    double* s = S + int64_t{r} * p.K;
    double prediction = 0, o = 0;
    for (int c = 0; c < p.K; ++c) {
      s[c] *= decay[static_cast<size_t>(c)];
      prediction += s[c] * k[static_cast<size_t>(c)];
    }
    const double u = beta * (row.v[static_cast<size_t>((t * p.HV + hv) * p.V + r)] - prediction);
    for (int c = 0; c < p.K; ++c) {
      s[c] += u * k[static_cast<size_t>(c)];
      o += s[c] * q[static_cast<size_t>(c)] * scale;
    }
    out[r] = o;
    if (round != DType::kF64)
      for (int c = 0; c < p.K; ++c) s[c] = round_to(static_cast<float>(s[c]), round);
  }
}

Vec initial_state(const KdaProblem& p, const KdaRowData& row) {
  if (row.state.empty()) return Vec(static_cast<size_t>(p.HV) * p.V * p.K, 0.0);
  return Vec(row.state.begin(), row.state.end());
}

}  // namespace

OracleResult oracle_recurrence(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row, DType round) {
  OracleResult r;
  r.state = initial_state(p, row);
  r.out.resize(static_cast<size_t>(row.len) * p.HV * p.V);
  size_t next = 0;
  for (int64_t t = 0; t < row.len; ++t) {
    for (int hv = 0; hv < p.HV; ++hv)
      token(p, w, row, t, hv, &r.state[static_cast<size_t>(hv) * p.V * p.K],
            &r.out[static_cast<size_t>(t * p.HV + hv) * p.V], round);
    if (next < row.checkpoints.size() && row.checkpoints[next] == t + 1) {
      r.states.push_back(r.state);
      ++next;
    }
  }
  return r;
}

TreeResult oracle_tree(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row,
                       const std::vector<int32_t>& parent, DType round) {
  TreeResult r;
  r.out.resize(static_cast<size_t>(row.len) * p.HV * p.V);
  for (int64_t t = 0; t < row.len; ++t) {
    const int32_t from = parent[static_cast<size_t>(t)];
    Vec S = from < 0 ? initial_state(p, row) : r.states[static_cast<size_t>(from)];
    for (int hv = 0; hv < p.HV; ++hv)
      token(p, w, row, t, hv, &S[static_cast<size_t>(hv) * p.V * p.K], &r.out[static_cast<size_t>(t * p.HV + hv) * p.V],
            round);
    r.states.push_back(std::move(S));
  }
  return r;
}

std::vector<double> oracle_conv(const std::vector<float>& x, const std::vector<float>& window,
                                const std::vector<float>& weight, const std::vector<float>& bias, int channels) {
  const int64_t len = static_cast<int64_t>(x.size()) / channels;
  Vec y(x.size());
  for (int64_t t = 0; t < len; ++t)
    for (int c = 0; c < channels; ++c) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(c)];
      for (int j = 0; j < 4; ++j) {
        const int64_t from = t - 3 + j;
        double value = 0;
        if (from >= 0)
          value = x[static_cast<size_t>(from * channels + c)];
        else if (!window.empty())
          value = window[static_cast<size_t>((3 + from) * channels + c)];
        sum += weight[static_cast<size_t>(c * 4 + j)] * value;
      }
      y[static_cast<size_t>(t * channels + c)] = sum / (1 + std::exp(-sum));
    }
  return y;
}

}  // namespace kadence::ops::testing
