// The chunk form in float64. For a chunk with tokens i, j and per-channel decays d:
//   P(j, i) = prod_{j < t <= i} d_t;  A_ij = sum_c k_i P(j,i) k_j,  M_ij = sum_c q_i P(j,i) k_j
//   R_i = beta_i (v_i - S Kd_i - sum_{j<i} A_ij R_j);  o_i = S Qd_i + sum_{j<=i} M_ij R_j;  S' = S diag(P) + sum_j R_j
//   Kr_j^T
#include <algorithm>
#include <cmath>

#include "ops/testing/kda_oracle.h"

namespace kadence::ops::testing {
namespace {

constexpr int64_t kTokens = 16;

struct Matrix {
  int64_t cols;
  std::vector<double> data;
  Matrix(int64_t r, int64_t c) : cols(c), data(static_cast<size_t>(r * c), 0.0) {}
  double* operator[](int64_t r) { return data.data() + r * cols; }
};

// Rows [first, first + n) of a [len, heads, width] array for one head.
Matrix gather(const std::vector<float>& from, int64_t first, int64_t n, int heads, int head, int width) {
  Matrix m(n, width);
  for (int64_t i = 0; i < n; ++i)
    for (int c = 0; c < width; ++c) m[i][c] = from[static_cast<size_t>(((first + i) * heads + head) * width + c)];
  return m;
}

void normalise(Matrix& m, int64_t n, double scale, bool l2) {
  for (int64_t i = 0; i < n; ++i) {
    double norm = 0;
    for (int64_t c = 0; c < m.cols; ++c) norm += m[i][c] * m[i][c];
    const double factor = l2 ? scale / std::sqrt(norm + 1e-6) : scale;
    for (int64_t c = 0; c < m.cols; ++c) m[i][c] *= factor;
  }
}

// The branch keeps tiny values exact.
double logistic(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

double decay_of(const KdaProblem& p, const KdaWeights& w, double x, int hv, int64_t c) {
  switch (p.gate) {
    case KdaGate::kGivenLogDecay:
      return std::exp(x);
    case KdaGate::kBounded:
    case KdaGate::kSoftplus:
      break;
  }
  const double bias = w.dt_bias.empty() ? 0.0 : w.dt_bias[static_cast<size_t>(hv * p.K + c)];
  const double rate = std::exp(static_cast<double>(w.A_log[static_cast<size_t>(hv)]));
  if (p.gate == KdaGate::kBounded) return std::exp(p.lower_bound * logistic(rate * (x + bias)));
  return std::exp(-rate * std::max(x + bias, 0.0)) * std::exp(-rate * std::log1p(std::exp(-std::abs(x + bias))));
}

}  // namespace

OracleResult oracle_chunked(const KdaProblem& p, const KdaWeights& w, const KdaRowData& row) {
  OracleResult result;
  const int64_t K = p.K, V = p.V;
  result.out.resize(static_cast<size_t>(row.len * p.HV * V));
  result.state.assign(static_cast<size_t>(p.HV * V * K), 0.0);
  if (!row.state.empty()) std::copy(row.state.begin(), row.state.end(), result.state.begin());
  result.states.assign(row.checkpoints.size(), result.state);
  for (int hv = 0; hv < p.HV; ++hv) {
    double* S = &result.state[static_cast<size_t>(hv * V * K)];
    for (int64_t first = 0; first < row.len; first += kTokens) {
      const int64_t n = std::min(kTokens, row.len - first);
      const int group = p.HV / p.H;
      Matrix q = gather(row.q, first, n, p.H, hv / group, p.K), k = gather(row.k, first, n, p.H, hv / group, p.K);
      Matrix R = gather(row.v, first, n, p.HV, hv, p.V), d = gather(row.decay, first, n, p.HV, hv, p.K);
      normalise(q, n, p.scale != 0 ? p.scale : std::pow(static_cast<double>(K), -0.5), p.l2norm);
      normalise(k, n, 1.0, p.l2norm);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < K; ++c) d[i][c] = decay_of(p, w, d[i][c], hv, c);
      Matrix A(n, n), M(n, n), Kd(n, K), Qd(n, K), Kr(n, K);
      std::vector<double> all(static_cast<size_t>(K));
      for (int64_t c = 0; c < K; ++c) {
        for (int64_t j = 0; j < n; ++j) {
          double P = 1;
          for (int64_t i = j; i < n; ++i) {
            if (i > j) P *= d[i][c];
            if (i > j) A[i][j] += k[i][c] * P * k[j][c];
            M[i][j] += q[i][c] * P * k[j][c];
          }
          Kr[j][c] = P * k[j][c];
        }
        double P = 1;
        for (int64_t i = 0; i < n; ++i) {
          P *= d[i][c];
          Kd[i][c] = P * k[i][c];
          Qd[i][c] = P * q[i][c];
        }
        all[static_cast<size_t>(c)] = P;
      }
      for (int64_t i = 0; i < n; ++i) {
        const double b = row.beta[static_cast<size_t>((first + i) * p.HV + hv)];
        const double beta = (p.beta_doubled ? 2.0 : 1.0) * (p.beta_mode == KdaBeta::kLogits ? logistic(b) : b);
        for (int64_t v = 0; v < V; ++v) {
          double x = R[i][v];
          for (int64_t c = 0; c < K; ++c) x -= S[v * K + c] * Kd[i][c];
          for (int64_t j = 0; j < i; ++j) x -= A[i][j] * R[j][v];
          R[i][v] = beta * x;
          double o = 0;
          for (int64_t c = 0; c < K; ++c) o += S[v * K + c] * Qd[i][c];
          for (int64_t j = 0; j <= i; ++j) o += M[i][j] * R[j][v];
          result.out[static_cast<size_t>(((first + i) * p.HV + hv) * V + v)] = o;
        }
      }
      for (int64_t v = 0; v < V; ++v)
        for (int64_t c = 0; c < K; ++c) {
          double s = S[v * K + c] * all[static_cast<size_t>(c)];
          for (int64_t j = 0; j < n; ++j) s += R[j][v] * Kr[j][c];
          S[v * K + c] = s;
        }
      for (size_t i = 0; i < row.checkpoints.size(); ++i)
        if (row.checkpoints[i] == first + n)
          std::copy(S, S + V * K, &result.states[i][static_cast<size_t>(hv * V * K)]);
    }
  }
  return result;
}

}  // namespace kadence::ops::testing
