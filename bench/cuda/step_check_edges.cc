// Parts of step_check: wrong metadata, rounding, graphs, pitches beyond 2^31 elements.
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bench/cuda/step_check_util.h"
#include "ops/conv1d.h"
#include "ops/testing/compare.h"
#include "ops/testing/guarded.h"
#include "ops/testing/kda_inputs.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::bench {
using namespace ops;           // NOLINT
using namespace ops::testing;  // NOLINT

namespace {

constexpr DType F32 = DType::kF32, BF16 = DType::kBF16, F16 = DType::kF16;

KdaProblem small_problem(KdaPhase phase, int rows, int H, int HV, DType state) {
  KdaProblem p;
  p.phase = phase;
  p.H = H, p.HV = HV, p.K = p.V = 128, p.io = p.decay = BF16, p.beta = F32,
  p.state_in = p.state_out = p.checkpoints = state;
  p.bounds = {rows, rows, 0};
  return p;
}

StateView state_view(const GuardedTensor& t) {
  StateView s;
  s.base = t.data(), s.dtype = t.dtype(), s.slots = t.rows(), s.slot_pitch = t.pitch();
  return s;
}

// One token per row on the device.
struct Tokens {
  GuardedTensor q, k, v, decay, beta, out;
  DeviceArray<float> A_log, dt_bias;
  Tokens(device::Stream& s, const KdaProblem& p, const KdaWeights& w, int64_t tokens) {
    q = GuardedTensor(s, tokens, p.H * p.K, p.H * p.K, p.io), k = GuardedTensor(s, tokens, p.H * p.K, p.H * p.K, p.io);
    v = GuardedTensor(s, tokens, p.HV * p.V, p.HV * p.V, p.io),
    out = GuardedTensor(s, tokens, p.HV * p.V, p.HV * p.V, p.io);
    decay = GuardedTensor(s, tokens, p.HV * p.K, p.HV * p.K, p.decay),
    beta = GuardedTensor(s, tokens, p.HV, p.HV, p.beta);
    A_log = DeviceArray<float>(s, w.A_log), dt_bias = DeviceArray<float>(s, w.dt_bias);
  }
  void place(const KdaProblem& p, const KdaRowData& r, int64_t t, int64_t at) {
    q.fill_row(at, &r.q[static_cast<size_t>(t * p.H * p.K)]), k.fill_row(at, &r.k[static_cast<size_t>(t * p.H * p.K)]);
    v.fill_row(at, &r.v[static_cast<size_t>(t * p.HV * p.V)]),
        decay.fill_row(at, &r.decay[static_cast<size_t>(t * p.HV * p.K)]);
    beta.fill_row(at, &r.beta[static_cast<size_t>(t * p.HV)]);
  }
  void upload(device::Stream& s) {
    for (GuardedTensor* t : {&q, &k, &v, &decay, &beta}) t->upload(s);
  }
  template <class Args>
  void fill(Args& a, const KdaWeights& w) const {
    a.q = q.const_tokens(), a.k = k.const_tokens(), a.v = v.const_tokens(), a.decay = decay.const_tokens(),
    a.beta = beta.const_tokens(), a.out = out.tokens();
    a.A_log = w.A_log.empty() ? nullptr : A_log.data(), a.dt_bias = w.dt_bias.empty() ? nullptr : dt_bias.data();
  }
};

bool zeros(const std::vector<float>& v) {
  for (float x : v)
    if (!(x == 0)) return false;
  return true;
}

}  // namespace

void check_hostile(Report& report, device::Stream& stream, bool) {
  // Slots out of range: zeros, no store, a status word; the rows beside are right.
  {
    const KdaProblem p = small_problem(KdaPhase::kStep, 6, 2, 2, F32);
    const KdaWeights w = make_weights(p, 1);
    const KdaPlan plan = plan_kda(p, stream.info(), {});
    const int64_t n = int64_t{p.HV} * p.V * p.K;
    const std::vector<int32_t> in = {0, 7, -2, 1, -1, 2}, out = {3, 4, 4, 9, 5, -1};
    for (int only = -1; only < 6; ++only) {
      if (only >= 0 && only != 1 && only != 2 && only != 3) continue;
      std::vector<int32_t> i2 = in, o2 = out;
      for (int i = 0; i < 6; ++i)
        if (only >= 0 && i != only) i2[static_cast<size_t>(i)] = -1;
      GuardedTensor pool(stream, 6, n, n, F32);
      std::vector<KdaRowData> rows;
      Tokens t(stream, p, w, 6);
      for (int i = 0; i < 6; ++i)
        rows.push_back(make_row(p, {}, 1, 40 + static_cast<uint64_t>(i))), t.place(p, rows.back(), 0, i);
      for (int i : {0, 3, 5}) pool.fill_row(in[static_cast<size_t>(i)], rows[static_cast<size_t>(i)].state.data());
      pool.upload(stream), t.upload(stream);
      const DeviceArray<int32_t> d_in(stream, i2), d_out(stream, o2), status(stream, {0, 0});
      KdaStepArgs a;
      t.fill(a, w);
      a.rows = 6, a.slot_in = d_in.data(), a.slot_out = d_out.data(), a.state_in = a.state_out = state_view(pool),
      a.status = status.data();
      run_kda(plan, a, stream);
      t.out.download(stream), pool.download(stream);
      const std::vector<int32_t> s = status.download(stream);
      report.expect(s[1] != 0, "hostile step: no status");
      if (only >= 0)
        report.expect(s[0] == only && s[1] == (only == 3 ? 3 : 2),
                      "hostile step: status of row " + std::to_string(only));
      for (int i = 0; i < 6; ++i) {
        const bool good = only < 0 && (i == 0 || i == 5);
        report.expect(zeros(t.out.row(i)) != good, "hostile step: row " + std::to_string(i));
        if (good) {
          const OracleResult o = oracle_recurrence(p, w, rows[static_cast<size_t>(i)]);
          report.expect(compare(t.out.row(i), o.out, p.HV, p.V).head < 4e-3,
                        "hostile step: good row " + std::to_string(i));
        }
      }
      report.expect(pool.untouched(4) && pool.untouched(5) && pool.untouched(3) == (only >= 0),
                    "hostile step: a slot was written");
    }
  }
  // Verify and commit, with a plan for five rows and one for as many as fill the device.
  for (int bound : {5, 400}) {
    KdaProblem p = small_problem(KdaPhase::kVerify, 5, 1, 1, F32);
    p.D = 4;
    p.bounds.max_rows = bound, p.bounds.max_tokens = bound * 4;
    const KdaWeights w = make_weights(p, 1);
    const KdaPlan plan = plan_kda(p, stream.info(), {});
    const int64_t n = int64_t{p.V} * p.K;
    GuardedTensor pool(stream, 8, n, n, F32);
    Tokens t(stream, p, w, 20);
    std::vector<KdaRowData> rows;
    for (int i = 0; i < 5; ++i) {
      rows.push_back(make_row(p, {}, 4, 60 + static_cast<uint64_t>(i)));
      for (int d = 0; d < 4; ++d) t.place(p, rows.back(), d, i * 4 + d);
      pool.fill_row(i, rows.back().state.data());
    }
    t.upload(stream), pool.upload(stream);
    // Row 1: node 2 has a parent after itself, node 3 hangs on it. Row 2: too many drafts. Row 3: slot out of range.
    const DeviceArray<int32_t> n_draft(stream, {4, 4, 5, 4, 3}),
        parent(stream, {-1, 0, 1, 2, -1, 0, 3, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 99}),
        slot(stream, {0, 1, 2, 8, 4}), v_status(stream, {0, 0});
    device::Buffer scratch = poisoned_buffer(stream, plan.scratch_bytes());
    KdaVerifyArgs v;
    t.fill(v, w);
    v.rows = 5, v.n_draft = n_draft.data(), v.parent = parent.data(), v.slot_in = slot.data(),
    v.state_in = state_view(pool), v.scratch = scratch.data(), v.status = v_status.data();
    run_kda(plan, v, stream);
    t.out.download(stream);
    report.expect(v_status.download(stream)[1] != 0, "hostile verify: no status");
    for (int i = 0; i < 5; ++i)
      for (int d = 0; d < 4; ++d) {
        const bool zero = (i == 1 && d >= 2) || i == 2 || i == 3 || (i == 4 && d == 3);
        report.expect(zeros(t.out.row(i * 4 + d)) == zero,
                      "hostile verify: row " + std::to_string(i) + " node " + std::to_string(d));
      }
    // Commit: row 0 node out of range; row 1 a node without a path; row 4 fine, its snapshot slot is out of range.
    const DeviceArray<int32_t> node(stream, {4, 3, 0, 0, 2}), out(stream, {5, 6, 2, 3, 7}),
        tn(stream, {-1, 1, -1, -1, 1}), ts(stream, {-1, 3, -1, -1, 8}), c_status(stream, {0, 0});
    std::vector<std::vector<float>> before;
    for (int i = 0; i < 8; ++i) before.push_back(pool.row(i));
    KdaCommitArgs c;
    c.rows = 5, c.n_draft = n_draft.data(), c.parent = parent.data(), c.slot_in = slot.data(), c.node = node.data(),
    c.slot_out = out.data();
    c.track_node = tn.data(), c.track_slot = ts.data(), c.scratch = scratch.data(),
    c.scratch_layer_bytes = plan.scratch_bytes(), c.states = state_view(pool), c.status = c_status.data();
    run_kda_commit(plan, c, stream);
    pool.download(stream);
    report.expect(c_status.download(stream)[1] != 0, "hostile commit: no status");
    for (int s : {0, 1, 2, 4})
      report.expect(pool.row(s) == before[static_cast<size_t>(s)],
                    "hostile commit: slot " + std::to_string(s) + " changed");
    report.expect(pool.untouched(5) && pool.untouched(6), "hostile commit: wrote for a bad node");
    const OracleResult o3 = oracle_recurrence(p, w, slice_row(p, rows[1], 0, 2, rows[1].state)),
                       o7 = oracle_recurrence(p, w, slice_row(p, rows[4], 0, 3, rows[4].state));
    report.expect(compare(pool.row(3), o3.state, 1, n).head < 2e-6, "hostile commit: snapshot of row 1");
    report.expect(compare(pool.row(7), o7.state, 1, n).head < 2e-6, "hostile commit: row 4");
  }
  // The convolution's rows: offsets that decrease, past the end, bad slots, bad checkpoints. Good rows are unharmed.
  {
    const int channels = 264, N = 8;
    const int64_t T = 300;
    base::Rng rng(3);
    std::vector<float> weight(4 * channels), x(static_cast<size_t>(T) * channels);
    for (float& e : weight) e = static_cast<float>(rng.normal());
    for (float& e : x) e = static_cast<float>(rng.normal());
    GuardedTensor dx(stream, T, channels, channels, F32), y(stream, T, channels, channels, F32),
        pool(stream, 12, 3 * channels, 3 * channels, F32);
    for (int64_t i = 0; i < T; ++i) dx.fill_row(i, &x[static_cast<size_t>(i * channels)]);
    dx.upload(stream);
    // rows: [0,20) good; [20,10) decreases; [10,40) overlaps; [40,140) bad checkpoint; [140,150) bad slot; [150,160)
    // good; [160,900) too long; [900,250)
    const DeviceArray<int32_t> begin(stream, {0, 20, 10, 40, 140, 150, 160, 900, 250}),
        in(stream, std::vector<int32_t>(8, -1)), out(stream, {0, 1, 2, 3, 12, 5, 6, 7}),
        cb(stream, {0, 0, 0, 0, 1, 1, 1, 1, 1}), cd(stream, {65}), cs(stream, {9}), status(stream, {0, 0});
    const DeviceArray<float> d_w(stream, weight);
    KdaPlan plan;
    plan.problem_ = small_problem(KdaPhase::kExtend, N, 1, 1, F32);
    plan.problem_.bounds = {N, T, 4};
    plan.device_ = stream.info();
    Conv1dExtendArgs a;
    a.conv.x = dx.const_tokens(), a.conv.y = y.tokens(), a.conv.channels = channels, a.conv.weight = d_w.data();
    a.tokens = T;
    a.metadata.seq_begin = begin.data(), a.metadata.state_in = in.data(), a.metadata.state_out = out.data();
    a.metadata.ckpt_begin = cb.data(), a.metadata.ckpt_depth = cd.data(), a.metadata.ckpt_slot = cs.data(),
    a.metadata.rows = N, a.metadata.status = status.data();
    a.window_in = a.window_out = a.checkpoints = {};
    a.window_in.base = pool.data(), a.window_in.slots = 12, a.window_in.slot_pitch = pool.pitch();
    a.window_out = a.checkpoints = a.window_in;
    run_conv1d(plan, a, stream);
    y.download(stream), pool.download(stream);
    report.expect(status.download(stream)[1] != 0, "hostile conv: no status");
    auto row = [&](int64_t b, int64_t e) {
      std::vector<float> v;
      for (int64_t i = b; i < e; ++i) {
        const std::vector<float> o = y.row(i);
        v.insert(v.end(), o.begin(), o.end());
      }
      return v;
    };
    auto good = [&](int64_t b, int64_t e) {
      const std::vector<float> in_row(x.begin() + b * channels, x.begin() + e * channels);
      return compare(row(b, e), oracle_conv(in_row, {}, weight, {}, channels), 1, channels).head < 1e-6;
    };
    report.expect(good(0, 20) && good(150, 160), "hostile conv: good rows");
    report.expect(zeros(row(20, 150)) && zeros(row(160, T)), "hostile conv: bad rows are not zero");
    for (int s : {1, 2, 3, 4, 6, 7, 8, 9, 10, 11})
      report.expect(pool.untouched(s), "hostile conv: slot " + std::to_string(s) + " written");
    report.expect(!pool.untouched(0) && !pool.untouched(5), "hostile conv: windows of good rows");
  }
  // One rounding per store: 1 + 2^-11 + 2^-23 is 1 + 2^-10 in fp16 and 1 in bf16; by way of bf16 it would be 1.
  for (DType to : {F16, BF16, F32}) {
    KdaProblem p = small_problem(KdaPhase::kStep, 1, 1, 1, F32);
    p.gate = KdaGate::kGivenLogDecay, p.state_out = to, p.decay = F32, p.beta_mode = KdaBeta::kGiven;
    const KdaWeights w;
    const KdaPlan plan = plan_kda(p, stream.info(), {});
    const int64_t n = int64_t{p.V} * p.K;
    GuardedTensor in(stream, 1, n, n, F32), out(stream, 1, n, n, to);
    Tokens t(stream, p, w, 1);
    KdaRowData r = make_row(p, {}, 1, 3);
    std::fill(r.k.begin(), r.k.end(), 0.0f), std::fill(r.decay.begin(), r.decay.end(), 0.0f);
    const float probe = 1.0f + 0x1p-11f + 0x1p-23f;
    const std::vector<float> state(static_cast<size_t>(n), probe);
    in.fill_row(0, state.data()), t.place(p, r, 0, 0);
    in.upload(stream), t.upload(stream);
    const DeviceArray<int32_t> slot(stream, {0});
    KdaStepArgs a;
    t.fill(a, w);
    a.rows = 1, a.slot_in = a.slot_out = slot.data(), a.state_in = state_view(in), a.state_out = state_view(out);
    run_kda(plan, a, stream);
    out.download(stream);
    const float want = to == F16 ? 1.0f + 0x1p-10f : to == BF16 ? 1.0f : probe;
    bool ok = true;
    for (float x : out.row(0)) ok = ok && x == want;
    report.expect(ok, std::string("rounding to ") + base::to_string(to));
  }
}

void check_layers(Report& report, device::Stream& stream) {
  // One commit over three layers leaves what three commits of one layer leave, windows and snapshots included.
  const int layers = 3, N = 4, D = 4, slots = 9, channels = 72;
  // With a plan for as many rows as fill the device too: other launch shapes.
  for (auto [state, bound] : {std::pair{F32, N}, {BF16, N}, {F32, 400}, {BF16, 400}, {F16, 400}}) {
    KdaProblem p = small_problem(KdaPhase::kVerify, N, 2, 4, state);
    p.D = D;
    KdaProblem wide = p;
    wide.bounds = {bound, bound * D, 0};
    const KdaWeights w = make_weights(p, 5);
    const KdaPlan plan = plan_kda(p, stream.info(), {}), all_plan = plan_kda(wide, stream.info(), {});
    const int64_t n = int64_t{p.HV} * p.V * p.K;
    base::Rng rng(77);
    const auto make = [&](int64_t rows, int64_t width, int64_t pad, DType t) {
      GuardedTensor g(stream, rows, width, width + pad, t);
      base::Rng values(rng.next());
      std::vector<float> row(static_cast<size_t>(width));
      for (int64_t r = 0; r < rows; ++r) {
        for (float& x : row) x = round_to(static_cast<float>(values.normal()), t);
        g.fill_row(r, row.data());
      }
      g.upload(stream);
      return g;
    };
    GuardedTensor pool = make(layers * slots, n, 16, state), windows = make(layers * slots, 3 * channels, 8, BF16),
                  x = make(layers * N * D, channels, 8, BF16);
    const DeviceArray<int32_t> n_draft(stream, {4, 3, 4, 4}),
        parent(stream, {-1, 0, 1, 2, -1, 0, 0, 9, -1, -1, 1, 0, -1, 0, 1, 2}), slot(stream, {0, 1, 2, -1}),
        node(stream, {3, 2, -1, 0}), out(stream, {0, 3, 2, 4}), track(stream, {1, 1, 3, 0}),
        track_slot(stream, {5, 6, 7, 8});
    device::Buffer scratch = poisoned_buffer(stream, all_plan.scratch_bytes() * layers);
    StateView all = state_view(pool);
    all.slots = slots, all.layers = layers, all.layer_pitch = slots * pool.pitch();
    WindowView all_windows;
    all_windows.base = windows.data(), all_windows.dtype = BF16, all_windows.slots = slots,
    all_windows.slot_pitch = windows.pitch();
    all_windows.layers = layers, all_windows.layer_pitch = slots * windows.pitch();
    for (int l = 0; l < layers; ++l) {
      Tokens t(stream, p, w, N * D);
      for (int i = 0; i < N; ++i) {
        const KdaRowData row = make_row(p, {}, D, static_cast<uint64_t>(l * 10 + i));
        for (int d = 0; d < D; ++d) t.place(p, row, d, i * D + d);
      }
      t.upload(stream);
      KdaVerifyArgs v;
      t.fill(v, w);
      v.rows = N, v.n_draft = n_draft.data(), v.parent = parent.data(), v.slot_in = slot.data();
      v.state_in = all;
      v.state_in.layers = 1,
      v.state_in.base = static_cast<char*>(all.base) + l * all.layer_pitch * static_cast<int64_t>(base::size_of(state));
      v.scratch = scratch.as<char>() + static_cast<size_t>(l) * all_plan.scratch_bytes();
      run_kda(all_plan, v, stream);
      stream.synchronize();
    }
    KdaCommitArgs c;
    c.rows = N, c.n_draft = n_draft.data(), c.parent = parent.data(), c.slot_in = slot.data(), c.node = node.data(),
    c.slot_out = out.data();
    c.track_node = track.data(), c.track_slot = track_slot.data();
    c.scratch = scratch.data(), c.scratch_layer_bytes = all_plan.scratch_bytes(), c.states = all;
    c.conv_x = x.const_tokens(), c.conv_x_layer_pitch = N * D * x.pitch(), c.conv_channels = channels,
    c.windows = all_windows;
    run_kda_commit(all_plan, c, stream);
    GuardedTensor pool_one = std::move(pool), windows_one = std::move(windows);
    // The host mirrors still hold what was there before: a second pool for the commits one by one.
    std::vector<std::vector<float>> before_pool, before_windows;
    for (int r = 0; r < layers * slots; ++r)
      before_pool.push_back(pool_one.row(r)), before_windows.push_back(windows_one.row(r));
    pool_one.download(stream), windows_one.download(stream);
    GuardedTensor again(stream, layers * slots, n, n + 16, state),
        windows_again(stream, layers * slots, 3 * channels, 3 * channels + 8, BF16);
    for (int r = 0; r < layers * slots; ++r)
      again.fill_row(r, before_pool[static_cast<size_t>(r)].data()),
          windows_again.fill_row(r, before_windows[static_cast<size_t>(r)].data());
    again.upload(stream), windows_again.upload(stream);
    for (int l = 0; l < layers; ++l) {
      KdaCommitArgs one = c;
      one.scratch = scratch.as<char>() + static_cast<size_t>(l) * all_plan.scratch_bytes();
      one.states.layers = one.windows.layers = 1;
      one.states.base =
          static_cast<char*>(again.data()) + l * all.layer_pitch * static_cast<int64_t>(base::size_of(state));
      one.windows.base = static_cast<char*>(windows_again.data()) + l * all_windows.layer_pitch * 2;
      one.conv_x.data = static_cast<const char*>(one.conv_x.data) + l * one.conv_x_layer_pitch * 2;
      run_kda_commit(plan, one, stream);
    }
    again.download(stream), windows_again.download(stream);
    int changed = 0;
    for (int r = 0; r < layers * slots; ++r) {
      report.expect(pool_one.row(r) == again.row(r),
                    "layers: state slot " + std::to_string(r % slots) + " of layer " + std::to_string(r / slots));
      report.expect(windows_one.row(r) == windows_again.row(r),
                    "layers: window slot " + std::to_string(r % slots) + " of layer " + std::to_string(r / slots));
      changed += pool_one.row(r) != before_pool[static_cast<size_t>(r)];
    }
    // Rows 0 and 1 commit, rows 0, 1 and 2 leave snapshots; row 3 is padded.
    report.expect(changed == layers * 5, "layers: " + std::to_string(changed) + " state slots changed");
    report.expect(pool_one.damage("pool").empty() && windows_one.damage("windows").empty(), "layers: guards");
  }
}

void check_graph(Report& report, device::Stream& stream) {
  const int N = 4;
  const KdaProblem p = small_problem(KdaPhase::kStep, N, 2, 2, F32);
  const KdaWeights w = make_weights(p, 1);
  const KdaPlan plan = plan_kda(p, stream.info(), {});
  const int64_t n = int64_t{p.HV} * p.V * p.K;
  GuardedTensor pool(stream, 8, n, n, F32);
  Tokens t(stream, p, w, N);
  DeviceArray<int32_t> slot(stream, std::vector<int32_t>{-1, -1, -1, -1});
  KdaStepArgs a;
  t.fill(a, w);
  a.rows = N, a.slot_in = a.slot_out = slot.data(), a.state_in = a.state_out = state_view(pool);
  const auto native = static_cast<cudaStream_t>(stream.native());
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
  run_kda(plan, a, stream);
  report.expect(cudaStreamEndCapture(native, &graph) == cudaSuccess, "graph: capture");
  report.expect(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph: instantiate");
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> s;
    std::vector<KdaRowData> rows;
    for (int i = 0; i < N; ++i) {
      s.push_back(round == 1 && i == 2 ? -1 : (i * 3 + round) % 8);
      rows.push_back(make_row(p, {}, 1, static_cast<uint64_t>(900 + round * 10 + i)));
      t.place(p, rows.back(), 0, i);
      if (s.back() >= 0) pool.fill_row(s.back(), rows.back().state.data());
    }
    t.upload(stream), pool.upload(stream);
    device::copy_async(slot.data(), s.data(), s.size() * 4, stream);
    cudaGraphLaunch(exec, native);
    stream.synchronize();
    t.out.download(stream), pool.download(stream);
    for (int i = 0; i < N; ++i) {
      if (s[static_cast<size_t>(i)] < 0) {
        report.expect(zeros(t.out.row(i)), "graph: padded row");
        continue;
      }
      const OracleResult o = oracle_recurrence(p, w, rows[static_cast<size_t>(i)]);
      report.expect(compare(t.out.row(i), o.out, p.HV, p.V).head < 4e-3 &&
                        compare(pool.row(s[static_cast<size_t>(i)]), o.state, p.HV, int64_t{p.V} * p.K).head < 2e-6,
                    "graph: replay " + std::to_string(round) + " row " + std::to_string(i));
    }
  }
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  // The same inputs 10,000 times, one result.
  std::vector<KdaRowData> rows;
  for (int i = 0; i < N; ++i)
    rows.push_back(make_row(p, {}, 1, static_cast<uint64_t>(70 + i))), t.place(p, rows.back(), 0, i),
        pool.fill_row(i, rows.back().state.data());
  t.upload(stream), pool.upload(stream);
  const DeviceArray<int32_t> in(stream, {0, 1, 2, 3}), out(stream, {4, 5, 6, 7});
  a.slot_in = in.data(), a.slot_out = out.data();
  std::vector<float> first_out, first_state;
  bool same = true;
  for (int i = 0; i < 10000; ++i) {
    run_kda(plan, a, stream);
    if (i % 500) continue;  // every run writes the same memory; a sample of them is read back
    t.out.download(stream), pool.download(stream);
    std::vector<float> o, s;
    for (int r = 0; r < N; ++r) {
      const std::vector<float> x = t.out.row(r), y = pool.row(4 + r);
      o.insert(o.end(), x.begin(), x.end()), s.insert(s.end(), y.begin(), y.end());
    }
    if (i == 0) first_out = o, first_state = s;
    same = same && o == first_out && s == first_state;
  }
  report.expect(same, "10,000 repeats differ");
}

void check_big_pitch(Report& report, device::Stream& stream) {
  // Slots 2^31 + 64 elements apart; all layers of a commit too.
  const int64_t pitch = (int64_t{1} << 31) + 64;
  for (DType state : {F32, BF16}) {
    KdaProblem p = small_problem(KdaPhase::kVerify, 2, 1, 1, state);
    p.D = 3;
    KdaProblem ps = p;
    ps.phase = KdaPhase::kStep;
    const KdaWeights w = make_weights(p, 1);
    const KdaPlan verify = plan_kda(p, stream.info(), {}), step = plan_kda(ps, stream.info(), {});
    const int64_t n = int64_t{p.V} * p.K, size = static_cast<int64_t>(base::size_of(state));
    device::Buffer pool = device::Buffer::allocate(stream.info(), static_cast<size_t>((3 * pitch + n) * size));
    const std::vector<KdaRowData> rows = {make_row(p, {}, 3, 1), make_row(p, {}, 3, 2)};
    StateView view;
    view.base = pool.data(), view.dtype = state, view.slots = 4, view.slot_pitch = pitch;
    auto put = [&](int64_t slot, const std::vector<float>& v) {
      std::vector<char> bytes(static_cast<size_t>(n * size));
      for (int64_t i = 0; i < n; ++i) base::store_f32(bytes.data(), i, state, v[static_cast<size_t>(i)]);
      device::copy_async(pool.as<char>() + slot * pitch * size, bytes.data(), bytes.size(), stream);
      stream.synchronize();
    };
    auto get = [&](int64_t slot) {
      std::vector<char> bytes(static_cast<size_t>(n * size));
      device::copy_async(bytes.data(), pool.as<char>() + slot * pitch * size, bytes.size(), stream);
      stream.synchronize();
      std::vector<float> v(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = base::load_f32(bytes.data(), i, state);
      return v;
    };
    put(1, rows[0].state), put(3, rows[1].state);
    Tokens t(stream, p, w, 6);
    for (int i = 0; i < 2; ++i)
      for (int d = 0; d < 3; ++d) t.place(p, rows[static_cast<size_t>(i)], d, i * 3 + d);
    t.upload(stream);
    const DeviceArray<int32_t> n_draft(stream, {3, 3}), parent(stream, {-1, 0, 1, -1, 0, 0}), slot(stream, {1, 3}),
        node(stream, {2, 1}), out(stream, {0, 3});
    device::Buffer scratch = poisoned_buffer(stream, verify.scratch_bytes());
    KdaVerifyArgs v;
    t.fill(v, w);
    v.rows = 2, v.n_draft = n_draft.data(), v.parent = parent.data(), v.slot_in = slot.data(), v.state_in = view,
    v.scratch = scratch.data();
    run_kda(verify, v, stream);
    KdaCommitArgs c;
    c.rows = 2, c.n_draft = n_draft.data(), c.parent = parent.data(), c.slot_in = slot.data(), c.node = node.data(),
    c.slot_out = out.data();
    c.scratch = scratch.data(), c.scratch_layer_bytes = verify.scratch_bytes(), c.states = view;
    run_kda_commit(verify, c, stream);
    stream.synchronize();
    const DType rounding = state == F32 ? DType::kF64 : state;
    const double tolerance = state == F32 ? 2e-6 : 4e-3;
    report.expect(compare(get(0), oracle_recurrence(p, w, rows[0], rounding).state, 1, n).head < tolerance,
                  "pitch: commit to slot 0");
    report.expect(
        compare(get(3), oracle_recurrence(p, w, slice_row(p, rows[1], 0, 2, rows[1].state), rounding).state, 1, n)
                .head < tolerance,
        "pitch: commit to slot 3");
    put(1, rows[0].state), put(3, rows[1].state);
    Tokens s(stream, ps, w, 2);
    s.place(ps, rows[0], 0, 0), s.place(ps, rows[1], 0, 1);
    s.upload(stream);
    KdaStepArgs a;
    s.fill(a, w);
    a.rows = 2, a.slot_in = slot.data(), a.slot_out = out.data(), a.state_in = a.state_out = view;
    run_kda(step, a, stream);
    stream.synchronize();
    report.expect(
        compare(get(0), oracle_recurrence(p, w, slice_row(p, rows[0], 0, 1, rows[0].state), rounding).state, 1, n)
                .head < tolerance,
        "pitch: step to slot 0");
    report.expect(
        compare(get(3), oracle_recurrence(p, w, slice_row(p, rows[1], 0, 1, rows[1].state), rounding).state, 1, n)
                .head < tolerance,
        "pitch: step to slot 3");
  }
}

}  // namespace kadence::bench
