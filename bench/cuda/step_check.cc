// Checks step, verify, commit, convolution and state copies on a CUDA device against the float64 oracles of
// ops/testing. Prints one line a failure and a summary; exits with 1 if anything failed, 77 if there is no device.
// `step_check [filter]` runs the groups whose name contains the filter; `step_check small` is what compute-sanitizer
// runs.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bench/cuda/step_check_util.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/testing/compare.h"
#include "ops/testing/kda_batch.h"
#include "ops/testing/kda_conformance.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::bench {
using namespace ops;           // NOLINT
using namespace ops::testing;  // NOLINT

namespace {

struct StepCase {
  std::string name;
  int rows, len, H, HV, K;
  DType io, decay, beta, state;
  KdaGate gate;
  KdaFamilies families;
  float lower_bound = -5;
  KdaBeta beta_mode = KdaBeta::kLogits;
  bool doubled = false, l2norm = true;
};

KdaProblem problem_of(const StepCase& c) {
  KdaProblem p;
  p.H = c.H, p.HV = c.HV, p.K = p.V = c.K;
  p.io = c.io, p.decay = c.decay, p.beta = c.beta, p.state_in = p.state_out = p.checkpoints = c.state;
  p.gate = c.gate, p.lower_bound = c.lower_bound, p.beta_mode = c.beta_mode, p.beta_doubled = c.doubled,
  p.l2norm = c.l2norm;
  return p;
}

constexpr DType F32 = DType::kF32, BF16 = DType::kBF16, F16 = DType::kF16;

std::vector<StepCase> step_cases(bool small) {
  using G = KdaGate;
  std::vector<StepCase> cases = {
      {"plain", 3, 4, 2, 2, 128, BF16, BF16, BF16, F32, G::kBounded, {}},
      {"gva", 3, 3, 2, 4, 128, BF16, BF16, F32, F32, G::kBounded, {}},
      {"fp32 io", 2, 3, 1, 4, 128, F32, F32, F32, F32, G::kSoftplus, {}},
      {"bf16 state", 3, 3, 2, 2, 128, BF16, F32, BF16, BF16, G::kBounded, {}},
      {"fp16", 3, 3, 2, 2, 128, F16, F16, F32, F16, G::kGivenLogDecay, {}},
      {"K 64", 3, 3, 2, 4, 64, BF16, BF16, BF16, F32, G::kSoftplus, {}},
      {"K 256", 2, 3, 2, 2, 256, BF16, BF16, BF16, BF16, G::kBounded, {}},
  };
  if (small) return cases;
  const std::vector<StepCase> more = {
      {"middle batch", 40, 2, 2, 4, 128, BF16, BF16, BF16, F32, G::kBounded, {}},
      {"large batch", 150, 2, 2, 2, 128, BF16, BF16, BF16, F32, G::kSoftplus, {}},
      {"large batch bf16", 150, 2, 2, 2, 128, BF16, BF16, BF16, BF16, G::kBounded, {}},
      {"large batch fp16", 150, 2, 2, 2, 128, F16, F16, F32, F16, G::kGivenLogDecay, {}},
      {"large batch gva", 70, 2, 2, 4, 128, F32, F32, F32, F32, G::kBounded, {}},
      {"K 64 fp16", 5, 3, 3, 3, 64, F16, F32, F32, F16, G::kBounded, {}},
      {"K 64 bf16", 5, 3, 3, 3, 64, BF16, F32, F32, BF16, G::kBounded, {}},
      {"K 256 fp32", 2, 3, 1, 2, 256, F32, F32, F32, F32, G::kBounded, {}},
      {"K 256 fp16", 2, 3, 1, 2, 256, F16, F16, BF16, F16, G::kSoftplus, {}},
      {"weak gate",
       4,
       16,
       2,
       2,
       128,
       BF16,
       BF16,
       BF16,
       F32,
       G::kBounded,
       {GateFamily::kWeak, BetaFamily::kNormal, KeyFamily::kNormal, StateFamily::kLarge}},
      {"identical keys",
       4,
       16,
       2,
       2,
       128,
       BF16,
       BF16,
       BF16,
       F32,
       G::kBounded,
       {GateFamily::kOff, BetaFamily::kHigh, KeyFamily::kIdentical}},
      {"near parallel",
       4,
       16,
       2,
       2,
       128,
       BF16,
       BF16,
       BF16,
       F32,
       G::kSoftplus,
       {GateFamily::kWeak, BetaFamily::kHigh, KeyFamily::kNearParallel}},
      {"extreme given", 4, 8, 2, 2, 128, F32, F32, F32, F32, G::kGivenLogDecay, {GateFamily::kExtreme}},
      {"extreme softplus", 4, 8, 2, 2, 128, BF16, F32, F32, F32, G::kSoftplus, {GateFamily::kExtreme}},
      {"zero rows",
       4,
       8,
       2,
       2,
       128,
       BF16,
       BF16,
       BF16,
       F32,
       G::kBounded,
       {GateFamily::kNormal, BetaFamily::kNormal, KeyFamily::kZeroRows}},
      {"tiny keys",
       4,
       8,
       2,
       2,
       128,
       BF16,
       BF16,
       BF16,
       F32,
       G::kBounded,
       {GateFamily::kNormal, BetaFamily::kNormal, KeyFamily::kTiny}},
      {"bound -0.1", 4, 8, 2, 2, 128, BF16, BF16, BF16, F32, G::kBounded, {}, -0.1f},
      {"beta given doubled", 4, 8, 2, 2, 128, BF16, BF16, F32, F32, G::kBounded, {}, -5, KdaBeta::kGiven, true},
      {"no l2norm",
       4,
       8,
       2,
       2,
       128,
       BF16,
       BF16,
       F32,
       F32,
       G::kBounded,
       {GateFamily::kNormal, BetaFamily::kLow, KeyFamily::kTiny},
       -5,
       KdaBeta::kLogits,
       false,
       false},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

// ||got - want|| / ||want|| of the worst head may be at most this.
double tolerance(DType stored) { return stored == DType::kF32 ? 2e-6 : stored == DType::kBF16 ? 4e-3 : 6e-4; }

void check_steps(Report& report, device::Stream& stream, bool small) {
  double worst_out = 0, worst_state = 0;
  for (const StepCase& c : step_cases(small)) {
    const KdaProblem p = problem_of(c);
    const KdaWeights w = make_weights(p, 7);
    std::vector<KdaRowData> rows;
    for (int i = 0; i < c.rows; ++i)
      rows.push_back(make_row(p, c.families, std::max(1, c.len - i % 3), 100 + static_cast<uint64_t>(i)));
    std::vector<const KdaRowData*> pointers;
    for (const KdaRowData& r : rows) pointers.push_back(&r);
    BatchLayout layout;
    layout.pitch_pad = 16, layout.odd_beta = true;
    const BatchResult got = run_steps(stream, p, w, pointers, layout);
    report.expect(got.backend == "sm90", "step " + c.name + ": ran on " + got.backend);
    for (const std::string& f : got.faults) report.expect(false, "step " + c.name + ": " + f);
    for (size_t i = 0; i < rows.size(); ++i) {
      // The fp32 path is compared with an unrounded recurrence; 16-bit states with one that rounds after each step.
      const OracleResult want = oracle_recurrence(p, w, rows[i], c.state == F32 ? DType::kF64 : c.state);
      const ErrorStats out = compare(got.rows[i].out, want.out, p.HV, p.V),
                       state = compare(got.rows[i].state, want.state, p.HV, int64_t{p.V} * p.K);
      const double to = std::max(tolerance(c.io), c.state == F32 ? 0 : 2 * tolerance(c.state)), ts = tolerance(c.state);
      report.expect(out.finite && out.head <= to,
                    "step " + c.name + " row " + std::to_string(i) + " out " + out.describe());
      report.expect(state.finite && state.head <= ts,
                    "step " + c.name + " row " + std::to_string(i) + " state " + state.describe());
      if (c.io == F32 && c.state == F32) worst_out = std::max(worst_out, out.head);
      if (c.state == F32) worst_state = std::max(worst_state, state.head);
    }
    if (small) continue;
    // Alone and in another order: the same bits, whatever launch shape the batch has.
    for (size_t i = 0; i < rows.size(); i += 1 + rows.size() / 4) {
      const BatchResult alone = run_steps(stream, p, w, {pointers[i]}, {});
      report.expect(alone.rows[0] == got.rows[i],
                    "step " + c.name + " row " + std::to_string(i) + ": bits depend on the batch");
    }
  }
  report.note("step: worst relative error, fp32 out " + number(worst_out) + ", fp32 state " + number(worst_state));
}

// Tokens of a node's path as a row of its own.
KdaRowData path_row(const KdaProblem& p, const KdaRowData& row, const std::vector<int32_t>& parent, int32_t node) {
  std::vector<int32_t> path;
  for (int32_t a = node; a >= 0; a = parent[static_cast<size_t>(a)]) path.insert(path.begin(), a);
  KdaRowData r;
  r.len = static_cast<int64_t>(path.size());
  r.state = row.state;
  auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
    for (int32_t t : path) to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
  };
  add(r.q, row.q, int64_t{p.H} * p.K), add(r.k, row.k, int64_t{p.H} * p.K), add(r.v, row.v, int64_t{p.HV} * p.V);
  add(r.decay, row.decay, int64_t{p.HV} * p.K), add(r.beta, row.beta, p.HV);
  return r;
}

bool same(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

void check_verify(Report& report, device::Stream& stream, bool small) {
  struct Case {
    StepCase step;
    int D;
    int trees;  // 0 chain, 1 random trees, 2 star
  };
  std::vector<Case> cases;
  const std::vector<StepCase> base = step_cases(false);
  auto named = [&](const char* name) {
    for (const StepCase& c : base)
      if (c.name == name) return c;
    return base[0];
  };
  for (const char* name : {"plain", "gva", "bf16 state", "K 64", "K 256"})
    cases.push_back({named(name), 4, 0}), cases.push_back({named(name), 6, 1});
  // A batch that fills the device.
  cases.push_back({named("large batch"), 3, 1});
  if (!small) {
    for (const char* name :
         {"fp32 io", "fp16", "weak gate", "identical keys", "extreme given", "K 256 fp32", "K 64 fp16"})
      cases.push_back({named(name), 8, 0}), cases.push_back({named(name), 8, 1});
    cases.push_back({named("middle batch"), 8, 1});
    cases.push_back({named("large batch"), 8, 0});
    cases.push_back({named("large batch"), 12, 2});
    cases.push_back({named("large batch bf16"), 8, 1});
    cases.push_back({named("large batch fp16"), 7, 1});
    cases.push_back({named("large batch gva"), 5, 1});
    cases.push_back({named("plain"), 64, 1}), cases.push_back({named("bf16 state"), 64, 0}),
        cases.push_back({named("plain"), 16, 2});
    cases.push_back({named("plain"), 1, 0});
  }
  int bit_equal = 0;
  double worst_loose = 0;
  for (const Case& c : cases) {
    KdaProblem p = problem_of(c.step);
    p.D = c.D;
    const std::string name =
        "verify " + c.step.name + " D " + std::to_string(c.D) + " trees " + std::to_string(c.trees);
    const KdaWeights w = make_weights(p, 17);
    base::Rng rng(c.D * 31 + c.trees);
    const int channels = 2 * p.H * p.K + p.HV * p.V;
    std::vector<KdaRowData> data;
    std::vector<VerifyRow> rows;
    std::vector<std::vector<float>> conv_x, windows;
    for (int i = 0; i < c.step.rows; ++i)
      data.push_back(
          make_row(p, c.step.families, i % 4 == 3 ? std::max(1, c.D - 2) : c.D, 500 + static_cast<uint64_t>(i)));
    for (int i = 0; i < c.step.rows; ++i) {
      VerifyRow r;
      r.data = &data[static_cast<size_t>(i)];
      const int32_t len = static_cast<int32_t>(r.data->len);
      for (int32_t d = 0; d < len; ++d)
        r.parent.push_back(c.trees == 0   ? d - 1
                           : c.trees == 2 ? (d == 0 ? -1 : 0)
                                          : static_cast<int32_t>(rng.below(static_cast<uint64_t>(d) + 1)) - 1);
      r.node = i % 5 == 4 ? -1 : static_cast<int32_t>(rng.below(static_cast<uint64_t>(len)));
      if (i % 3 == 0) r.track_node = static_cast<int32_t>(rng.below(static_cast<uint64_t>(len)));
      if (i % 3 == 2) r.track_node = 0;
      r.padded = i % 7 == 5;
      rows.push_back(r);
      std::vector<float> x(static_cast<size_t>(len) * channels), win(3 * static_cast<size_t>(channels));
      for (float& e : x) e = static_cast<float>(rng.normal());
      for (float& e : win) e = static_cast<float>(rng.normal());
      conv_x.push_back(x), windows.push_back(win);
      if (r.padded) rows.back().track_node = -1;
    }
    BatchLayout layout;
    layout.pitch_pad = 16;
    const VerifyBatch got = run_verify(stream, p, w, rows, channels, conv_x, windows, layout);
    for (const std::string& f : got.faults) report.expect(false, name + ": " + f);
    report.expect(got.status[1] == 0, name + ": status " + std::to_string(got.status[1]));
    // The same without the promise of step's bits: right, though not equal.
    BatchLayout loose = layout;
    loose.options.verify_matches_step = false;
    const VerifyBatch other = run_verify(stream, p, w, rows, channels, conv_x, windows, loose);
    for (const std::string& f : other.faults) report.expect(false, name + " loose: " + f);
    for (size_t i = 0; i < rows.size(); ++i) {
      const VerifyRow& r = rows[i];
      if (r.padded) continue;
      const TreeResult exact = oracle_tree(p, w, *r.data, r.parent, DType::kF64);
      const ErrorStats other_out = compare(other.rows[i].out, exact.out, p.HV, p.V);
      report.expect(other_out.finite && other_out.head <= std::max(tolerance(p.io), 4e-6),
                    name + " loose row " + std::to_string(i) + " out " + other_out.describe());
      if (p.io == F32) worst_loose = std::max(worst_loose, other_out.head);
      if (r.node < 0) continue;
      const std::vector<double>& state = exact.states[static_cast<size_t>(r.node)];
      const ErrorStats committed = compare(other.rows[i].committed, state, p.HV, int64_t{p.V} * p.K);
      report.expect(committed.finite && committed.head <= tolerance(c.step.state) * 2,
                    name + " loose row " + std::to_string(i) + " committed " + committed.describe());
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const VerifyRow& r = rows[i];
      if (r.padded) continue;
      const TreeResult want = oracle_tree(p, w, *r.data, r.parent, c.step.state == F32 ? DType::kF64 : c.step.state);
      const ErrorStats out = compare(got.rows[i].out, want.out, p.HV, p.V);
      const double to = std::max(tolerance(p.io), c.step.state == F32 ? 0 : 2 * tolerance(c.step.state));
      report.expect(out.finite && out.head <= to, name + " row " + std::to_string(i) + " out " + out.describe());
      // Step sequences along every path.
      std::vector<KdaRowData> paths;
      for (int32_t d = 0; d < r.data->len; ++d) paths.push_back(path_row(p, *r.data, r.parent, d));
      std::vector<const KdaRowData*> pointers;
      for (const KdaRowData& x : paths) pointers.push_back(&x);
      if (small || c.step.rows > 30 ? i < 2 || i + 2 >= rows.size() : c.D <= 16 || i == 0) {
        const BatchResult steps = run_steps(stream, p, w, pointers, {});
        const size_t width = static_cast<size_t>(p.HV) * p.V;
        for (size_t d = 0; d < paths.size(); ++d) {
          const std::vector<float>& s = steps.rows[d].out;
          const bool equal = same(&got.rows[i].out[d * width], &s[s.size() - width], width);
          report.expect(
              equal, name + " row " + std::to_string(i) + " node " + std::to_string(d) + ": bits differ from step's");
          bit_equal += equal;
        }
        if (r.node >= 0)
          report.expect(got.rows[i].committed == steps.rows[static_cast<size_t>(r.node)].state,
                        name + " row " + std::to_string(i) + ": committed state differs from step's");
        if (r.track_node >= 0)
          report.expect(got.rows[i].tracked == steps.rows[static_cast<size_t>(r.track_node)].state,
                        name + " row " + std::to_string(i) + ": snapshot differs from step's");
      }
      if (r.node < 0)
        report.expect(got.rows[i].committed ==
                          (r.data->state.empty() ? std::vector<float>(got.rows[i].committed.size()) : r.data->state),
                      name + ": node -1 changed the state");
      auto window_after = [&](int32_t node) {
        std::vector<std::vector<float>> seq;
        for (int j = 0; j < 3; ++j)
          seq.emplace_back(windows[i].begin() + j * channels, windows[i].begin() + (j + 1) * channels);
        std::vector<int32_t> path;
        for (int32_t a = node; a >= 0; a = r.parent[static_cast<size_t>(a)]) path.insert(path.begin(), a);
        for (int32_t t : path)
          seq.emplace_back(conv_x[i].begin() + t * channels, conv_x[i].begin() + (t + 1) * channels);
        std::vector<float> window;
        for (size_t j = seq.size() - 3; j < seq.size(); ++j) window.insert(window.end(), seq[j].begin(), seq[j].end());
        return window;
      };
      report.expect(got.rows[i].window == window_after(r.node), name + " row " + std::to_string(i) + ": window");
      if (r.track_node >= 0)
        report.expect(got.rows[i].tracked_window == window_after(r.track_node),
                      name + " row " + std::to_string(i) + ": snapshot window");
    }
  }
  report.note(
      "verify: " + std::to_string(bit_equal) +
      " nodes bit-equal to the step sequence along their path; without that promise worst relative error, fp32 out " +
      number(worst_loose));
}

// The conformance table on the portable backend. Its arithmetic is fp32 throughout, so where nothing is stored in fewer
// bits the error is held to 2e-5 as well.
void check_portable_extend(Report& report, device::Stream& stream, bool small) {
  KdaLimits limits;
  limits.K = limits.V = {64, 128, 256};
  limits.equal_kv = true;
  limits.fp32 = false;
  std::vector<KdaCase> cases;
  const auto take = [&](const std::vector<KdaCase>& from, size_t step) {
    for (size_t i = 0; i < from.size(); i += step) cases.push_back(from[i]);
  };
  take(pairwise_cases(limits), small ? 16 : 1);
  if (!small) {
    limits.K = limits.V = {128};
    take(family_cases(limits), 1);
    take(length_cases(limits), 1);
  }
  Measured worst;
  for (const KdaCase& c : cases) {
    Measured m;
    for (const std::string& fault : check_case(stream, "sm80-recurrent", c, limits, &m))
      report.expect(false, "portable extend " + c.name + ": " + fault);
    if (c.problem.io == F32) worst.out = std::max(worst.out, m.out);
    if (c.problem.state_out == F32) worst.state = std::max(worst.state, m.state);
    report.expect(worst.out <= 2e-5 && worst.state <= 2e-5,
                  "portable extend " + c.name + ": fp32 out " + number(m.out) + ", fp32 state " + number(m.state));
  }
  report.note("portable extend: " + std::to_string(cases.size()) + " cases, worst relative error, fp32 out " +
              number(worst.out) + ", fp32 state " + number(worst.state));
}

}  // namespace
}  // namespace kadence::bench

int main(int argc, char** argv) {
  using namespace kadence;         // NOLINT
  using namespace kadence::bench;  // NOLINT
  const std::string filter = argc > 1 ? argv[1] : "";
  const bool small = filter == "small";
  std::string why;
  if (device::cuda_device_count(&why) == 0) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  device::Stream stream = device::Stream::cuda(0);
  Report report;
  auto group = [&](const char* name, const std::function<void()>& f) {
    if (!small && !filter.empty() && std::string(name).find(filter) == std::string::npos) return;
    const int before = report.failed;
    try {
      f();
    } catch (const std::exception& e) {
      report.expect(false, std::string(name) + ": " + e.what());
    }
    std::printf("%-10s %s\n", name, report.failed == before ? "ok" : "FAILED");
    std::fflush(stdout);
  };
  group("step", [&] { check_steps(report, stream, small); });
  group("verify", [&] { check_verify(report, stream, small); });
  group("portable", [&] { check_portable_extend(report, stream, small); });
  group("fused", [&] { check_fused(report, stream, small); });
  group("conv", [&] { check_conv(report, stream, small); });
  group("copy", [&] { check_copies(report, stream, small); });
  group("hostile", [&] { check_hostile(report, stream, small); });
  group("layers", [&] { check_layers(report, stream); });
  if (!small) group("graph", [&] { check_graph(report, stream); });
  if (!small) group("pitch", [&] { check_big_pitch(report, stream); });
  report.print();
  return report.failed ? 1 : 0;
}
