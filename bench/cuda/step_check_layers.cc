// Parts of step_check: the fused step, the convolution and the copies.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bench/cuda/step_check_util.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/kda_backend.h"
#include "ops/testing/compare.h"
#include "ops/testing/guarded.h"
#include "ops/testing/kda_inputs.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::bench {
using namespace ops;           // NOLINT
using namespace ops::testing;  // NOLINT

namespace {

constexpr DType F32 = DType::kF32, BF16 = DType::kBF16, F16 = DType::kF16;

std::vector<float> normals(base::Rng& rng, int64_t n, DType t, double scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = round_to(static_cast<float>(scale * rng.normal()), t);
  return v;
}
std::vector<float> part(const std::vector<float>& v, int64_t begin, int64_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}
bool bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

WindowView window_view(const GuardedTensor& t) {
  WindowView w;
  w.base = t.data(), w.dtype = t.dtype(), w.slots = t.rows(), w.slot_pitch = t.pitch();
  return w;
}
StateView state_view(const GuardedTensor& t) {
  StateView s;
  s.base = t.data(), s.dtype = t.dtype(), s.slots = t.rows(), s.slot_pitch = t.pitch();
  return s;
}

// silu(conv) of one row's token with the tokens and the window before it, in double.
std::vector<double> conv_token(const std::vector<float>& x, const std::vector<float>& window,
                               const std::vector<float>& weight, const std::vector<float>& bias, int channels,
                               int64_t t) {
  std::vector<double> y(static_cast<size_t>(channels));
  for (int c = 0; c < channels; ++c) {
    double s = bias.empty() ? 0 : bias[static_cast<size_t>(c)];
    for (int j = 0; j < 4; ++j) {
      const int64_t i = t - 3 + j;
      const double in = i >= 0           ? x[static_cast<size_t>(i * channels + c)]
                        : window.empty() ? 0
                                         : window[static_cast<size_t>((3 + i) * channels + c)];
      s += weight[static_cast<size_t>(4 * c + j)] * in;
    }
    y[static_cast<size_t>(c)] = s / (1 + std::exp(-s));
  }
  return y;
}

}  // namespace

void check_fused(Report& report, device::Stream& stream, bool small) {
  struct Case {
    int rows, H, HV, K;
    DType io, conv, state;
    bool bias;
    int fusion;  // 0 = the plan's choice, else cuda::sm90::StepFusion
    int iterations;
  };
  std::vector<Case> cases = {{3, 2, 2, 128, BF16, BF16, F32, true, 0, 0},
                             {3, 2, 4, 128, F32, F32, F32, false, 0, 0},
                             {3, 2, 2, 128, F32, F32, F32, true, 2, 4}};
  if (!small) {
    for (int its : {1, 2, 4, 12})  // 12 = 4 iterations of 8 warps
      for (DType state : {F32, BF16, F16}) cases.push_back({5, 2, 2, 128, BF16, BF16, state, true, 1, its});
    cases.push_back({5, 1, 4, 128, BF16, F32, F32, false, 1, 4});
    cases.push_back({5, 1, 8, 128, BF16, BF16, F32, true, 0, 0});  // eight value heads to a key head: three launches
    cases.push_back({5, 2, 2, 64, F16, F16, F32, true, 0, 0});
    cases.push_back({5, 2, 2, 256, BF16, BF16, F32, true, 0, 0});
    cases.push_back({150, 2, 2, 128, BF16, BF16, F32, true, 0, 0});
    cases.push_back({150, 2, 2, 128, BF16, BF16, F32, true, 2, 4});
  }
  const int steps = 4;
  double worst = 0;
  std::vector<float> by_shape;  // out bits of the one-launch form with fp32 states
  for (const Case& c : cases) {
    KdaProblem p;
    p.phase = KdaPhase::kStep;
    p.H = c.H, p.HV = c.HV, p.K = p.V = c.K, p.io = c.io, p.decay = c.io, p.beta = F32,
    p.state_in = p.state_out = c.state;
    p.conv = c.conv, p.fused_step = true;
    p.bounds = {c.rows, c.rows, 0};
    KdaPlan plan = plan_kda(p, stream.info(), {});
    if (c.fusion) {
      plan.variant_ = cuda::sm90::encode(
          {c.iterations % 8, c.iterations == 12 ? 8 : 4, static_cast<cuda::sm90::StepFusion>(c.fusion)});
      if (c.fusion == 2)
        plan.workspace_bytes_ = static_cast<size_t>(c.rows) * (2 * c.H * c.K + 2 * c.HV * c.K) * 4 + 1024;
    }
    const std::string name = "fused H " + std::to_string(c.H) + " HV " + std::to_string(c.HV) + " K " +
                             std::to_string(c.K) + " rows " + std::to_string(c.rows) + " variant " +
                             std::to_string(plan.variant_);
    base::Rng rng(5);
    const int qk = c.H * c.K, vw = c.HV * c.K, channels = 2 * qk + vw;
    const int64_t n = int64_t{c.HV} * c.K * c.K;
    const KdaWeights w = make_weights(p, 3);
    const std::vector<float> weight = normals(rng, 4 * channels, F32, 0.5), bias = normals(rng, channels, F32, 0.2),
                             norm = normals(rng, c.K, F32);
    std::vector<std::vector<float>> x, z, decay, beta, window, state;
    for (int i = 0; i < c.rows; ++i) {
      x.push_back(normals(rng, int64_t{steps} * channels, c.conv)),
          z.push_back(normals(rng, int64_t{steps} * vw, c.io));
      decay.push_back(normals(rng, int64_t{steps} * vw, c.io)),
          beta.push_back(normals(rng, int64_t{steps} * c.HV, F32));
      window.push_back(normals(rng, 3 * channels, c.conv)), state.push_back(normals(rng, n, c.state, 0.3));
    }
    GuardedTensor pool(stream, c.rows + 2, n, n + 16, c.state),
        windows(stream, c.rows + 2, 3 * channels, 3 * channels + 16, c.conv);
    std::vector<int32_t> slot;
    for (int i = 0; i < c.rows; ++i) {
      slot.push_back((i + 1) % (c.rows + 2));
      pool.fill_row(slot.back(), state[static_cast<size_t>(i)].data());
      windows.fill_row(slot.back(), window[static_cast<size_t>(i)].data());
    }
    pool.upload(stream), windows.upload(stream);
    const DeviceArray<float> d_weight(stream, weight), d_bias(stream, bias), d_norm(stream, norm), d_A(stream, w.A_log),
        d_dt(stream, w.dt_bias);
    device::Buffer workspace = poisoned_buffer(stream, plan.workspace_bytes_);
    std::vector<std::vector<float>> got(static_cast<size_t>(c.rows));
    for (int t = 0; t < steps; ++t) {
      GuardedTensor dx(stream, c.rows, channels, channels + 16, c.conv), dz(stream, c.rows, vw, vw + 16, c.io),
          dd(stream, c.rows, vw, vw + 16, c.io), db(stream, c.rows, c.HV, c.HV + 1, F32),
          out(stream, c.rows, vw, vw + 16, c.io);
      std::vector<int32_t> now = slot;
      if (t == 2) now[1] = -1;  // row 1 sits this one out: its inputs stay NaN
      for (int i = 0; i < c.rows; ++i) {
        if (now[static_cast<size_t>(i)] < 0) continue;
        const size_t r = static_cast<size_t>(i);
        dx.fill_row(i, &x[r][static_cast<size_t>(t) * channels]), dz.fill_row(i, &z[r][static_cast<size_t>(t) * vw]);
        dd.fill_row(i, &decay[r][static_cast<size_t>(t) * vw]), db.fill_row(i, &beta[r][static_cast<size_t>(t) * c.HV]);
      }
      for (GuardedTensor* g : {&dx, &dz, &dd, &db}) g->upload(stream);
      const DeviceArray<int32_t> d_slot(stream, now);
      KdaStepArgs a;
      a.decay = dd.const_tokens(), a.beta = db.const_tokens(), a.A_log = d_A.data(), a.dt_bias = d_dt.data();
      a.out = out.tokens(), a.rows = c.rows, a.slot_in = a.slot_out = d_slot.data();
      a.state_in = a.state_out = state_view(pool);
      a.fused.x = dx.const_tokens(), a.fused.conv_weight = d_weight.data(),
      a.fused.conv_bias = c.bias ? d_bias.data() : nullptr;
      a.fused.windows = window_view(windows), a.fused.z = dz.const_tokens(), a.fused.norm_weight = d_norm.data();
      a.workspace = workspace.data();
      run_kda(plan, a, stream);
      out.download(stream);
      report.expect(out.damage("out").empty(), name + ": " + out.damage("out"));
      for (int i = 0; i < c.rows; ++i) {
        const std::vector<float> o = out.row(i);
        if (now[static_cast<size_t>(i)] >= 0)
          got[static_cast<size_t>(i)].insert(got[static_cast<size_t>(i)].end(), o.begin(), o.end());
        else
          for (float e : o) report.expect(e == 0, name + ": padded row");
      }
    }
    pool.download(stream), windows.download(stream);
    report.expect(pool.damage("pool").empty() && windows.damage("windows").empty(), name + ": guards of the pools");
    for (int s : {0, c.rows + 1})
      report.expect(pool.untouched(s) && windows.untouched(s), name + ": unused slot written");
    std::vector<float> all;
    for (int i = 0; i < c.rows; ++i) {
      const size_t r = static_cast<size_t>(i);
      // What the row saw: row 1 has one token less.
      std::vector<float> rx, rz;
      KdaRowData row;
      for (int t = 0; t < steps; ++t) {
        if (i == 1 && t == 2) continue;
        auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
          to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
        };
        add(rx, x[r], channels), add(rz, z[r], vw), add(row.decay, decay[r], vw), add(row.beta, beta[r], c.HV);
        ++row.len;
      }
      row.state = state[r];
      for (int64_t t = 0; t < row.len; ++t) {
        const std::vector<double> y =
            conv_token(rx, window[r], weight, c.bias ? bias : std::vector<float>{}, channels, t);
        for (int j = 0; j < channels; ++j)
          (j < qk ? row.q : j < 2 * qk ? row.k : row.v).push_back(static_cast<float>(y[static_cast<size_t>(j)]));
      }
      const OracleResult o = oracle_recurrence(p, w, row, c.state == F32 ? DType::kF64 : c.state);
      std::vector<double> want = o.out;
      for (int64_t h = 0; h < row.len * c.HV; ++h) {
        double sum = 0;
        for (int v = 0; v < c.K; ++v)
          sum += o.out[static_cast<size_t>(h * c.K + v)] * o.out[static_cast<size_t>(h * c.K + v)];
        const double f = 1 / std::sqrt(sum / c.K + 1e-5);
        for (int v = 0; v < c.K; ++v) {
          const size_t at = static_cast<size_t>(h * c.K + v);
          want[at] = o.out[at] * f * norm[static_cast<size_t>(v)] / (1 + std::exp(-double{rz[at]}));
        }
      }
      const ErrorStats e = compare(got[r], want, c.HV, c.K),
                       s = compare(pool.row(slot[r]), o.state, c.HV, int64_t{c.K} * c.K);
      const double tol = (c.io == F32    ? 4e-6
                          : c.io == BF16 ? 4e-3
                                         : 6e-4) +
                         (c.state == F32    ? 0
                          : c.state == BF16 ? 8e-3
                                            : 1e-3);
      report.expect(e.finite && e.head <= tol, name + " row " + std::to_string(i) + " out " + e.describe());
      report.expect(s.finite && s.head <= (c.state == F32    ? 4e-6
                                           : c.state == BF16 ? 5e-3
                                                             : 1e-3),
                    name + " row " + std::to_string(i) + " state " + s.describe());
      if (c.io == F32 && c.state == F32) worst = std::max(worst, e.head);
      std::vector<float> win;
      for (int j = 0; j < 3; ++j) {
        const int64_t t = row.len - 3 + j;
        const std::vector<float> one =
            t >= 0 ? part(rx, t * channels, channels) : part(window[r], (3 + t) * channels, channels);
        win.insert(win.end(), one.begin(), one.end());
      }
      report.expect(bits_equal(windows.row(slot[r]), win), name + " row " + std::to_string(i) + ": window");
      all.insert(all.end(), got[r].begin(), got[r].end());
    }
    if (c.fusion == 1 && c.rows == 5 && c.HV == 2 && c.K == 128 && c.state == F32) {
      report.expect(by_shape.empty() || bits_equal(by_shape, all), name + ": bits depend on the launch shape");
      by_shape = all;
    }
  }
  report.note("fused: worst relative error with fp32 " + number(worst));
}

void check_conv(Report& report, device::Stream& stream, bool small, ConvOps run) {
  if (!run.extend) {
    run.extend = [](const KdaPlan& plan, const Conv1dExtendArgs& a, device::Stream& s) {
      // A width that no vector fits goes past the checks of run_conv1d.
      if (a.conv.channels % 8) return cuda::conv1d_extend(plan, a, s);
      run_conv1d(plan, a, s);
    };
    run.step = [](const Conv1dStepArgs& a, device::Stream& s) { run_conv1d(a, s); };
    run.verify = [](const Conv1dVerifyArgs& a, device::Stream& s) { run_conv1d(a, s); };
  }
  double worst = 0;
  for (DType t : {F32, BF16, F16}) {
    for (int variant = 0; variant < (small ? 2 : 6); ++variant) {
      // variant: bit 0 odd channel count (no vectors), then in place / other slots with a checkpoint in the row's own
      // slot.
      const int channels = variant % 2 ? 37 : 264;
      const bool in_place = variant / 2 == 0, own_slot = variant / 2 == 2;
      base::Rng rng(static_cast<uint64_t>(variant) * 7 + 1);
      std::vector<int64_t> len = {0, 1, 2, 3, 5, 64, 70, 130, 0, 1, 1, 2, 16, 15, 17, 257, 3, 0};
      if (!small)
        for (int i = 0; i < 200; ++i) len.push_back(static_cast<int64_t>(rng.below(6)));
      len.push_back(200), len.push_back(0);
      const int N = static_cast<int>(len.size()), slots = 2 * N + 40;
      std::vector<int64_t> begin{0};
      for (int64_t l : len) begin.push_back(begin.back() + l);
      const int64_t T = begin.back() + 5;
      GuardedTensor x(stream, T, channels, channels + (variant % 2 ? 3 : 16), t),
          y(stream, T, channels, channels + (variant % 2 ? 3 : 16), t),
          pool(stream, slots, 3 * channels, 3 * channels + (variant % 2 ? 1 : 16), t);
      const std::vector<float> weight = normals(rng, 4 * channels, F32, 0.5), bias = normals(rng, channels, F32, 0.3);
      const bool with_bias = variant % 3 != 0;
      std::vector<std::vector<float>> rx, rw;
      std::vector<int32_t> in, out, cb{0}, cd, cs;
      int32_t next = 1;
      for (int i = 0; i < N; ++i) {
        rx.push_back(normals(rng, len[static_cast<size_t>(i)] * channels, t));
        for (int64_t j = 0; j < len[static_cast<size_t>(i)]; ++j)
          x.fill_row(begin[static_cast<size_t>(i)] + j, &rx.back()[static_cast<size_t>(j * channels)]);
        if (i % 4 == 1) {
          in.push_back(-1);
          rw.emplace_back();
        } else {
          in.push_back(next++);
          rw.push_back(normals(rng, 3 * channels, t));
          pool.fill_row(in.back(), rw.back().data());
        }
        out.push_back(i % 5 == 2 ? -1 : in_place && in.back() >= 0 ? in.back() : next++);
        for (int32_t d = 64; d <= len[static_cast<size_t>(i)]; d += 64) {
          cd.push_back(d);
          cs.push_back(d == 128 && own_slot && in.back() >= 0 ? in.back() : d == 192 ? -1 : next++);
        }
        cb.push_back(static_cast<int32_t>(cd.size()));
      }
      report.expect(next <= slots, "conv: test pool too small");
      x.upload(stream), pool.upload(stream);
      KdaProblem p;
      p.H = p.HV = 1, p.K = p.V = 128, p.io = BF16, p.decay = BF16, p.seq_int64 = variant % 2;
      p.bounds = {N, T, static_cast<int32_t>(cd.size())};
      KdaPlan plan;
      plan.problem_ = p, plan.device_ = stream.info();
      const DeviceArray<int64_t> b64(stream, begin);
      const DeviceArray<int32_t> b32(stream, std::vector<int32_t>(begin.begin(), begin.end())), d_in(stream, in),
          d_out(stream, out), d_cb(stream, cb), d_cd(stream, cd), d_cs(stream, cs), status(stream, {0, 0});
      const DeviceArray<float> d_w(stream, weight), d_b(stream, bias);
      Conv1dExtendArgs a;
      a.conv.x = x.const_tokens(), a.conv.y = y.tokens(), a.conv.dtype = t, a.conv.channels = channels,
      a.conv.weight = d_w.data(), a.conv.bias = with_bias ? d_b.data() : nullptr;
      a.tokens = T;
      a.metadata.seq_begin = p.seq_int64 ? static_cast<const void*>(b64.data()) : b32.data();
      a.metadata.state_in = d_in.data(), a.metadata.state_out = d_out.data(), a.metadata.ckpt_begin = d_cb.data(),
      a.metadata.ckpt_depth = d_cd.data(), a.metadata.ckpt_slot = d_cs.data();
      a.metadata.rows = N, a.metadata.status = status.data();
      a.window_in = a.window_out = a.checkpoints = window_view(pool);
      const GuardedTensor* const pool_before = &pool;
      std::vector<std::vector<float>> before;
      for (int s = 0; s < slots; ++s) before.push_back(pool_before->row(s));
      run.extend(plan, a, stream);
      y.download(stream), pool.download(stream);
      const std::string name = std::string("conv extend ") + base::to_string(t) + " variant " + std::to_string(variant);
      report.expect(y.damage("y").empty() && pool.damage("pool").empty(),
                    name + ": " + y.damage("y") + pool.damage("pool"));
      report.expect(status.download(stream)[1] == 0, name + ": status");
      std::vector<bool> written(static_cast<size_t>(slots));
      auto expect_window = [&](int i, int64_t depth, int32_t slot) {
        std::vector<float> win;
        for (int j = 0; j < 3; ++j) {
          const int64_t at = depth - 3 + j;
          const std::vector<float> one = at >= 0 ? part(rx[static_cast<size_t>(i)], at * channels, channels)
                                         : rw[static_cast<size_t>(i)].empty()
                                             ? std::vector<float>(static_cast<size_t>(channels))
                                             : part(rw[static_cast<size_t>(i)], (3 + at) * channels, channels);
          win.insert(win.end(), one.begin(), one.end());
        }
        report.expect(bits_equal(pool.row(slot), win),
                      name + " row " + std::to_string(i) + " window at " + std::to_string(depth));
        written[static_cast<size_t>(slot)] = true;
      };
      for (int i = 0; i < N; ++i) {
        std::vector<float> got;
        for (int64_t j = begin[static_cast<size_t>(i)]; j < begin[static_cast<size_t>(i) + 1]; ++j) {
          const std::vector<float> o = y.row(j);
          got.insert(got.end(), o.begin(), o.end());
        }
        if (!got.empty()) {
          const ErrorStats e = compare(got,
                                       oracle_conv(rx[static_cast<size_t>(i)], rw[static_cast<size_t>(i)], weight,
                                                   with_bias ? bias : std::vector<float>{}, channels),
                                       1, channels);
          report.expect(e.finite && e.head <= (t == F32    ? 1e-6
                                               : t == BF16 ? 4e-3
                                                           : 6e-4),
                        name + " row " + std::to_string(i) + " " + e.describe());
          if (t == F32) worst = std::max(worst, e.head);
        }
        if (out[static_cast<size_t>(i)] >= 0 &&
            !(len[static_cast<size_t>(i)] == 0 && out[static_cast<size_t>(i)] == in[static_cast<size_t>(i)]))
          expect_window(i, len[static_cast<size_t>(i)], out[static_cast<size_t>(i)]);
        for (int32_t m = cb[static_cast<size_t>(i)]; m < cb[static_cast<size_t>(i) + 1]; ++m)
          if (cs[static_cast<size_t>(m)] >= 0) expect_window(i, cd[static_cast<size_t>(m)], cs[static_cast<size_t>(m)]);
      }
      for (int64_t j = begin.back(); j < T; ++j)
        for (float e : y.row(j)) report.expect(e == 0, name + ": tail not zero");
      for (int s = 0; s < slots; ++s)
        if (!written[static_cast<size_t>(s)])
          report.expect(bits_equal(before[static_cast<size_t>(s)], pool.row(s)),
                        name + ": slot " + std::to_string(s) + " changed");

      // Step, then verify, on the same data: the same bits as extend.
      const int D = 5;
      GuardedTensor sy(stream, 4, channels, channels + 16, t), sx(stream, 4, channels, channels + 16, t),
          vx(stream, 2 * D, channels, channels + 16, t), vy(stream, 2 * D, channels, channels + 16, t);
      GuardedTensor sp(stream, 5, 3 * channels, 3 * channels + 16, t);
      std::vector<std::vector<float>> w5;
      for (int s = 0; s < 5; ++s) w5.push_back(normals(rng, 3 * channels, t)), sp.fill_row(s, w5.back().data());
      const std::vector<float> tokens = normals(rng, int64_t{D} * channels, t);
      for (int i = 0; i < 3; ++i) sx.fill_row(i, &tokens[static_cast<size_t>(i) * channels]);
      sx.upload(stream), sp.upload(stream);
      const DeviceArray<int32_t> s_in(stream, {3, 1, 0, -1}), s_out(stream, {3, 4, -1, 2});
      Conv1dStepArgs st;
      st.conv = a.conv, st.conv.x = sx.const_tokens(), st.conv.y = sy.tokens();
      st.rows = 4, st.slot_in = s_in.data(), st.slot_out = s_out.data(), st.window_in = st.window_out = window_view(sp);
      if (variant % 2 == 0) {
        run.step(st, stream);
        sy.download(stream), sp.download(stream);
        const int32_t si[] = {3, 1, 0};
        for (int i = 0; i < 3; ++i) {
          const ErrorStats e =
              compare(sy.row(i),
                      oracle_conv(part(tokens, int64_t{i} * channels, channels), w5[static_cast<size_t>(si[i])], weight,
                                  with_bias ? bias : std::vector<float>{}, channels),
                      1, channels);
          report.expect(e.finite && e.head <= (t == F32 ? 1e-6 : 4e-3), name + " step " + e.describe());
        }
        for (float e : sy.row(3)) report.expect(e == 0, name + ": padded step row");
        auto shifted = [&](int s, int tok) {
          std::vector<float> v = part(w5[static_cast<size_t>(s)], channels, 2 * channels),
                             one = part(tokens, int64_t{tok} * channels, channels);
          v.insert(v.end(), one.begin(), one.end());
          return v;
        };
        report.expect(bits_equal(sp.row(3), shifted(3, 0)) && bits_equal(sp.row(4), shifted(1, 1)) &&
                          bits_equal(sp.row(1), w5[1]) && bits_equal(sp.row(0), w5[0]) && bits_equal(sp.row(2), w5[2]),
                      name + ": step windows");
        // Row 0: a tree; row 1: a node with a bad parent and its child give zeros.
        const std::vector<int32_t> parent = {-1, 0, 0, 2, 3, -1, 0, 7, 2, 99};
        for (int d = 0; d < D; ++d)
          vx.fill_row(d, &tokens[static_cast<size_t>(d) * channels]),
              vx.fill_row(D + d, &tokens[static_cast<size_t>(d) * channels]);
        vx.upload(stream);
        const DeviceArray<int32_t> v_n(stream, {5, 4}), v_parent(stream, parent), v_slot(stream, {2, 0});
        Conv1dVerifyArgs v;
        v.conv = a.conv, v.conv.x = vx.const_tokens(), v.conv.y = vy.tokens();
        v.rows = 2, v.D = D, v.n_draft = v_n.data(), v.parent = v_parent.data(), v.slot_in = v_slot.data(),
        v.window_in = window_view(sp);
        run.verify(v, stream);
        vy.download(stream);
        for (int i = 0; i < 2; ++i)
          for (int d = 0; d < D; ++d) {
            const bool zero = i == 1 && d >= 2;
            std::vector<float> path;
            for (int32_t at = d; at >= 0 && !zero; at = parent[static_cast<size_t>(i * D + at)]) {
              const std::vector<float> one = part(tokens, int64_t{at} * channels, channels);
              path.insert(path.begin(), one.begin(), one.end());
            }
            const std::vector<float> got = vy.row(i * D + d);
            if (zero) {
              for (float e : got) report.expect(e == 0, name + ": verify node without a path");
              continue;
            }
            std::vector<double> want =
                oracle_conv(path, w5[i == 0 ? 2 : 0], weight, with_bias ? bias : std::vector<float>{}, channels);
            want.erase(want.begin(), want.end() - channels);
            const ErrorStats e = compare(got, want, 1, channels);
            report.expect(e.finite && e.head <= (t == F32 ? 1e-6 : 4e-3),
                          name + " verify node " + std::to_string(d) + " " + e.describe());
          }
      }
    }
  }
  report.note("conv: worst relative error with fp32 " + number(worst));
}

void check_copies(Report& report, device::Stream& stream, bool small) {
  for (DType t : {F32, BF16}) {
    const int layers = 3, slots = 12, HV = small ? 1 : 3, K = 64, channels = 40;
    const int64_t n = int64_t{HV} * K * K, w = 3 * channels;
    GuardedTensor pool(stream, layers * slots, n, n + 16, t), windows(stream, layers * slots, w, w + 8, t);
    base::Rng rng(9);
    std::vector<std::vector<float>> ps, ws;
    for (int i = 0; i < layers * slots; ++i) {
      ps.push_back(normals(rng, n, t)), ws.push_back(normals(rng, w, t));
      pool.fill_row(i, ps.back().data()), windows.fill_row(i, ws.back().data());
    }
    pool.upload(stream), windows.upload(stream);
    const DeviceArray<int32_t> src(stream, {0, 5, -1, 0, 2, 99}), dst(stream, {3, 4, 6, 7, -1, 8}),
        clear(stream, {9, -1, 3, 200});
    StateCopyArgs a;
    a.states = state_view(pool), a.states.slots = slots, a.states.layers = layers,
    a.states.layer_pitch = slots * pool.pitch();
    a.windows = window_view(windows), a.windows.slots = slots, a.windows.layers = layers,
    a.windows.layer_pitch = slots * windows.pitch();
    a.HV = HV, a.V = a.K = K, a.conv_channels = channels;
    a.src = src.data(), a.dst = dst.data(), a.copies = 6, a.clear = clear.data(), a.clears = 4;
    run_state_copy(a, stream);
    pool.download(stream), windows.download(stream);
    report.expect(pool.damage("pool").empty() && windows.damage("windows").empty(), "copy: guards");
    for (int l = 0; l < layers; ++l)
      for (int s = 0; s < slots; ++s) {
        const int from = s == 4 ? 5 : s == 7 ? 0 : s;
        const bool zero = s == 9 || s == 3;
        const auto want = [&](const std::vector<std::vector<float>>& v, int64_t width) {
          return zero ? std::vector<float>(static_cast<size_t>(width)) : v[static_cast<size_t>(l * slots + from)];
        };
        report.expect(
            bits_equal(pool.row(l * slots + s), want(ps, n)) && bits_equal(windows.row(l * slots + s), want(ws, w)),
            "copy: layer " + std::to_string(l) + " slot " + std::to_string(s));
      }
  }
}

}  // namespace kadence::bench
