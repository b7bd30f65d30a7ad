// The Kimi-Linear family in double precision, one loop at a time, straight from the definitions: the oracle of the
// forward pass. Attention in its expanded form, recurrence token by token, the whole sequence every time, no caches.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tests/checkpoint_writer.h"

namespace kadence::model {

class NaiveModel {
 public:
  NaiveModel(ModelConfig config, const TestTensors& tensors) : c_(std::move(config)) {
    for (const auto& [name, t] : tensors) w_[name] = t.values();
  }

  // Logits [tokens][vocab].
  std::vector<std::vector<double>> forward(const std::vector<int32_t>& ids) {
    Matrix h;
    for (const int32_t id : ids) {
      const auto& e = w("model.embed_tokens.weight");
      h.emplace_back(e.begin() + id * c_.hidden, e.begin() + (id + 1) * c_.hidden);
    }
    for (int32_t l = 0; l < c_.layers; ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      const Matrix x = norm(h, p + "input_layernorm.weight", c_.rms_eps);
      add(h, c_.layer_kinds[static_cast<size_t>(l)] == LayerKind::kKda ? kda(x, p + "self_attn.")
                                                                       : mla(x, p + "self_attn."));
      const Matrix y = norm(h, p + "post_attention_layernorm.weight", c_.rms_eps);
      add(h, c_.is_moe_layer(l)
                 ? moe(y, p + "block_sparse_moe.")
                 : mlp(y, p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight", p + "mlp.down_proj.weight"));
    }
    return times(norm(h, "model.norm.weight", c_.rms_eps),
                 c_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  }

 private:
  using Row = std::vector<double>;
  using Matrix = std::vector<Row>;

  const Row& w(const std::string& name) const { return w_.at(name); }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static void add(Matrix& a, const Matrix& b) {
    for (size_t t = 0; t < a.size(); ++t)
      for (size_t i = 0; i < a[t].size(); ++i) a[t][i] += b[t][i];
  }
  Row times(const Row& x, const std::string& name) const {
    const Row& m = w(name);
    Row y(m.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += m[o * x.size() + i] * x[i];
    return y;
  }
  Matrix times(const Matrix& x, const std::string& name) const {
    Matrix y;
    for (const Row& r : x) y.push_back(times(r, name));
    return y;
  }
  static Row normed(Row x, const Row& weight, double eps) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double r = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= r * weight[i];
    return x;
  }
  Matrix norm(const Matrix& x, const std::string& name, double eps) const {
    Matrix y;
    for (const Row& r : x) y.push_back(normed(r, w(name), eps));
    return y;
  }
  static Row unit(const Row& x) {
    double sum = 1e-6;
    for (const double v : x) sum += v * v;
    Row y = x;
    for (double& v : y) v /= std::sqrt(sum);
    return y;
  }
  static Row slice(const Row& x, int64_t first, int64_t n) { return {x.begin() + first, x.begin() + first + n}; }

  Matrix convolved(const Matrix& x, const std::string& name) const {
    const Row& m = w(name);
    Matrix y = x;
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t ch = 0; ch < x[t].size(); ++ch) {
        double s = 0;
        for (size_t j = 0; j < 4; ++j)
          if (t + j >= 3) s += m[ch * 4 + j] * x[t + j - 3][ch];
        y[t][ch] = s * sigmoid(s);
      }
    return y;
  }

  Matrix kda(const Matrix& x, const std::string& a) const {
    const KdaConfig& k = c_.kda;
    const int64_t K = k.K, V = k.V;
    const Matrix q = convolved(times(x, a + "q_proj.weight"), a + "q_conv1d.weight"),
                 key = convolved(times(x, a + "k_proj.weight"), a + "k_conv1d.weight"),
                 v = convolved(times(x, a + "v_proj.weight"), a + "v_conv1d.weight");
    const Matrix f = k.full_rank_decay ? times(x, a + "f_proj.weight")
                                       : times(times(x, a + "f_a_proj.weight"), a + "f_b_proj.weight");
    const Matrix z = k.full_rank_gate ? times(x, a + "g_proj.weight")
                                      : times(times(x, a + "g_a_proj.weight"), a + "g_b_proj.weight");
    const Matrix b = times(x, a + "b_proj.weight");
    Matrix o(x.size(), Row(static_cast<size_t>(k.HV * V)));
    for (int64_t h = 0; h < k.HV; ++h) {
      Matrix S(static_cast<size_t>(V), Row(static_cast<size_t>(K)));
      const double A = std::exp(w(a + "A_log")[static_cast<size_t>(h)]);
      for (size_t t = 0; t < x.size(); ++t) {
        const int64_t qh = h / (k.HV / k.H);
        const Row qt = unit(slice(q[t], qh * K, K)), kt = unit(slice(key[t], qh * K, K));
        const double beta = sigmoid(b[t][static_cast<size_t>(h)]) * (k.beta_doubled ? 2 : 1);
        Row out(static_cast<size_t>(V));
        for (int64_t i = 0; i < V; ++i) {
          Row& s = S[static_cast<size_t>(i)];
          double predicted = 0;
          for (int64_t j = 0; j < K; ++j) {
            const double pre = f[t][static_cast<size_t>(h * K + j)] + w(a + "dt_bias")[static_cast<size_t>(h * K + j)];
            const double g =
                k.gate == ops::KdaGate::kBounded ? k.lower_bound * sigmoid(A * pre) : -A * std::log1p(std::exp(pre));
            s[static_cast<size_t>(j)] *= std::exp(g);
            predicted += s[static_cast<size_t>(j)] * kt[static_cast<size_t>(j)];
          }
          const double u = beta * (v[t][static_cast<size_t>(h * V + i)] - predicted);
          for (int64_t j = 0; j < K; ++j) {
            s[static_cast<size_t>(j)] += u * kt[static_cast<size_t>(j)];
            out[static_cast<size_t>(i)] +=
                s[static_cast<size_t>(j)] * qt[static_cast<size_t>(j)] / std::sqrt(static_cast<double>(K));
          }
        }
        out = normed(out, w(a + "o_norm.weight"), c_.rms_eps);
        for (int64_t i = 0; i < V; ++i)
          o[t][static_cast<size_t>(h * V + i)] =
              out[static_cast<size_t>(i)] * sigmoid(z[t][static_cast<size_t>(h * V + i)]);
      }
    }
    return times(o, a + "o_proj.weight");
  }

  void rotate(double* x, int64_t position) const {
    const MlaConfig& m = c_.mla;
    const int64_t P = m.rope_dim;
    for (int64_t i = 0; i < P / 2; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(m.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(P));
      double &a = m.rope_interleaved ? x[2 * i] : x[i], &b = m.rope_interleaved ? x[2 * i + 1] : x[i + P / 2];
      const double u = a * std::cos(angle) - b * std::sin(angle), s = a * std::sin(angle) + b * std::cos(angle);
      a = u, b = s;
    }
  }

  Matrix mla(const Matrix& x, const std::string& a) const {
    const MlaConfig& m = c_.mla;
    const int64_t N = m.nope_dim, P = m.rope_dim, V = m.v_dim, R = m.kv_lora_rank;
    Matrix q = m.q_lora_rank > 0 ? times(norm(times(x, a + "q_a_proj.weight"), a + "q_a_layernorm.weight", 1e-6),
                                         a + "q_b_proj.weight")
                                 : times(x, a + "q_proj.weight");
    Matrix kv, shared, o;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row row = times(x[t], a + "kv_a_proj_with_mqa.weight");
      kv.push_back(times(normed(slice(row, 0, R), w(a + "kv_a_layernorm.weight"), 1e-6), a + "kv_b_proj.weight"));
      shared.push_back(slice(row, R, P));
      if (m.rotary) {
        rotate(shared.back().data(), static_cast<int64_t>(t));
        for (int64_t h = 0; h < m.heads; ++h) rotate(q[t].data() + h * (N + P) + N, static_cast<int64_t>(t));
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row out(static_cast<size_t>(m.heads * V));
      for (int64_t h = 0; h < m.heads; ++h) {
        const double* qh = q[t].data() + h * (N + P);
        Row p;
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (int64_t i = 0; i < N; ++i) dot += qh[i] * kv[s][static_cast<size_t>(h * (N + V) + i)];
          for (int64_t i = 0; i < P; ++i) dot += qh[N + i] * shared[s][static_cast<size_t>(i)];
          p.push_back(dot / std::sqrt(static_cast<double>(N + P)));
        }
        const double top = *std::max_element(p.begin(), p.end());
        for (double& e : p) sum += e = std::exp(e - top);
        for (size_t s = 0; s <= t; ++s)
          for (int64_t i = 0; i < V; ++i)
            out[static_cast<size_t>(h * V + i)] += p[s] / sum * kv[s][static_cast<size_t>(h * (N + V) + N + i)];
      }
      if (m.output_gate) {
        const Row z = times(x[t], a + "g_proj.weight");
        for (size_t i = 0; i < out.size(); ++i) out[i] *= sigmoid(z[i]);
      }
      o.push_back(out);
    }
    return times(o, a + "o_proj.weight");
  }

  Row ffn(const Row& x, const std::string& gate, const std::string& up, const std::string& down) const {
    Row g = times(x, gate);
    const Row u = times(x, up);
    const ops::Activation& act = c_.activation;
    for (size_t i = 0; i < g.size(); ++i) {
      double a = g[i], b = u[i];
      if (act.kind == ops::Activation::Kind::kSitu) {
        g[i] = act.beta * std::tanh(a / act.beta) * sigmoid(a) * act.linear_beta * std::tanh(b / act.linear_beta);
        continue;
      }
      if (act.kind == ops::Activation::Kind::kClampedSilu)
        a = std::min<double>(a, act.limit), b = std::clamp<double>(b, -act.limit, act.limit);
      g[i] = a * sigmoid(a) * b;
    }
    return times(g, down);
  }
  Matrix mlp(const Matrix& x, const std::string& gate, const std::string& up, const std::string& down) const {
    Matrix y;
    for (const Row& r : x) y.push_back(ffn(r, gate, up, down));
    return y;
  }

  Matrix moe(const Matrix& x, const std::string& p) const {
    const ops::RouterShape& r = c_.moe.router;
    Matrix y;
    for (const Row& row : x) {
      Row s = times(row, p + "gate.weight"), biased = s;
      const size_t E = s.size(), width = E / static_cast<size_t>(r.groups);
      for (size_t e = 0; e < E; ++e) s[e] = sigmoid(s[e]), biased[e] = s[e] + w(p + "gate.e_score_correction_bias")[e];
      if (r.groups > 1) {
        std::vector<std::pair<double, size_t>> groups;
        for (size_t g = 0; g < E / width; ++g) {
          Row two = slice(biased, static_cast<int64_t>(g * width), static_cast<int64_t>(width));
          std::sort(two.rbegin(), two.rend());
          groups.emplace_back(-(two[0] + two[1]), g);
        }
        std::sort(groups.begin(), groups.end());
        for (size_t g = static_cast<size_t>(r.topk_groups); g < groups.size(); ++g)
          for (size_t e = 0; e < width; ++e) biased[groups[g].second * width + e] = -INFINITY;
      }
      std::vector<std::pair<double, size_t>> order;
      for (size_t e = 0; e < E; ++e) order.emplace_back(-biased[e], e);
      std::sort(order.begin(), order.end());
      double sum = 1e-20;
      for (int32_t j = 0; j < r.top_k; ++j) sum += s[order[static_cast<size_t>(j)].second];
      Row out(row.size());
      if (c_.moe.shared_experts > 0)
        out = ffn(row, p + "shared_experts.gate_proj.weight", p + "shared_experts.up_proj.weight",
                  p + "shared_experts.down_proj.weight");
      for (int32_t j = 0; j < r.top_k; ++j) {
        const size_t e = order[static_cast<size_t>(j)].second;
        const std::string x_e = p + "experts." + std::to_string(e) + ".";
        const Row v = ffn(row, x_e + "w1.weight", x_e + "w3.weight", x_e + "w2.weight");
        for (size_t i = 0; i < out.size(); ++i) out[i] += v[i] * s[e] * (r.renormalize ? 1 / sum : 1) * r.scale;
      }
      y.push_back(out);
    }
    return y;
  }

  ModelConfig c_;
  std::map<std::string, Row> w_;
};

}  // namespace kadence::model
