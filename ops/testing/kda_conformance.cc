#include "ops/testing/kda_conformance.h"

#include <algorithm>

#include "ops/testing/compare.h"
#include "ops/testing/kda_oracle.h"
#include "ops/testing/pairwise.h"

namespace kadence::ops::testing {
namespace {

std::vector<int32_t> depths_of(int64_t len, int every) {
  std::vector<int32_t> depths;
  for (int64_t d = every; every > 0 && d <= len; d += every) depths.push_back(static_cast<int32_t>(d));
  return depths;
}

KdaProblem main_problem(const KdaLimits& l) {
  KdaProblem p;
  p.H = p.HV = 2;
  p.K = p.V = std::count(l.K.begin(), l.K.end(), 64) ? 64 : 128;
  p.io = p.decay = l.fp32 ? DType::kF32 : DType::kBF16;
  return p;
}

// Half a step at 1.
double step_of(DType t) { return t == DType::kF32 ? 0 : t == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

bool hard_keys(KeyFamily k) {
  return k == KeyFamily::kIdentical || k == KeyFamily::kRecurring || k == KeyFamily::kNearParallel ||
         k == KeyFamily::kUniform;
}
bool weak_decay(GateFamily g) {
  return g == GateFamily::kWeak || g == GateFamily::kChannelBias || g == GateFamily::kOff || g == GateFamily::kNone ||
         g == GateFamily::kSlowChannel || g == GateFamily::kHandOff;
}

}  // namespace

KdaLimits limits_of(const std::string& backend) {
  KdaLimits l;
  if (backend == "cpu" || backend == "reference") return l;
  l.K = l.V = {128};
  l.io = {DType::kBF16};
  l.equal_kv = true;
  l.fp32 = false;
  return l;
}

Tolerance tolerance_of(const KdaCase& c, const KdaLimits& l) {
  const KdaProblem& p = c.problem;
  if (l.fp32) {
    // 1e-5, plus the one rounding of what is stored: at most 0.58 of the half step in the root mean square of many.
    const auto with = [](DType t) { return 1e-5 + 0.75 * step_of(t); };
    return {with(p.io), with(p.state_out), with(p.checkpoints)};
  }
  const bool hard = hard_keys(c.families.key);
  const auto state = [&](DType t) {
    if (t == DType::kF32) return hard ? 0.015 : 0.005;
    return weak_decay(c.families.gate) || hard ? 0.015 : 0.012;
  };
  return {hard ? 0.010 : 0.006, state(p.state_out), state(p.checkpoints)};
}

std::vector<KdaCase> family_cases(const KdaLimits& l) {
  std::vector<KdaCase> cases;
  const auto add = [&](const std::string& name, auto change) {
    KdaCase c;
    c.name = name;
    c.problem = main_problem(l);
    c.lengths = {300, 64, 17};
    c.seed = 100 + cases.size();
    change(c);
    cases.push_back(std::move(c));
  };
  using G = GateFamily;
  for (G g : {G::kNormal, G::kWeak, G::kChannelBias, G::kOff, G::kSaturated, G::kWide, G::kSlowChannel, G::kHandOff,
              G::kNone, G::kExtreme}) {
    for (float lb : {-5.0f, -1.0f, -0.1f, -5.5f, -20.0f})
      add("gate_bounded" + std::to_string(lb) + "_" + to_string(g),
          [&](KdaCase& c) { c.problem.lower_bound = lb, c.families.gate = g; });
    add(std::string("gate_softplus_") + to_string(g),
        [&](KdaCase& c) { c.problem.gate = KdaGate::kSoftplus, c.families.gate = g; });
    add(std::string("gate_given_") + to_string(g),
        [&](KdaCase& c) { c.problem.gate = KdaGate::kGivenLogDecay, c.families.gate = g; });
  }
  for (BetaFamily b : {BetaFamily::kNormal, BetaFamily::kHigh, BetaFamily::kLow, BetaFamily::kZero, BetaFamily::kOne})
    for (bool given : {false, true})
      for (bool doubled : {false, true})
        add(std::string("beta_") + to_string(b) + (given ? "_given" : "_logits") + (doubled ? "_doubled" : ""),
            [&](KdaCase& c) {
              c.families.beta = b, c.problem.beta_mode = given ? KdaBeta::kGiven : KdaBeta::kLogits,
              c.problem.beta_doubled = doubled;
            });
  using K = KeyFamily;
  for (K k : {K::kNormal, K::kUniform, K::kIdentical, K::kRecurring, K::kNearParallel, K::kOneHot, K::kZeroRows,
              K::kTiny, K::kHuge})
    for (G g : {G::kNormal, G::kOff})
      add(std::string("keys_") + to_string(k) + "_" + to_string(g),
          [&](KdaCase& c) { c.families.key = k, c.families.gate = g, c.families.beta = BetaFamily::kHigh; });
  for (float v : {1e-4f, 1.0f, 1e3f})
    for (StateFamily s : {StateFamily::kNone, StateFamily::kNormal, StateFamily::kLarge})
      add("scale_v" + std::to_string(v) + "_state_" + to_string(s),
          [&](KdaCase& c) { c.families.v_scale = v, c.families.state = s; });
  add("scale_given", [&](KdaCase& c) { c.problem.scale = 0.25f; });
  add("no_l2norm", [&](KdaCase& c) { c.problem.l2norm = false, c.families.key = K::kOneHot; });
  add("no_bias", [&](KdaCase& c) { c.bias = false; });
  add("long", [&](KdaCase& c) {
    c.lengths = {2048}, c.problem.H = c.problem.HV = 1, c.families.gate = G::kWeak, c.checkpoint_every = 512;
  });
  add("long_no_decay", [&](KdaCase& c) {
    c.lengths = {2048}, c.problem.H = c.problem.HV = 1, c.families.gate = G::kOff, c.checkpoint_every = 512;
  });
  add("long_softplus", [&](KdaCase& c) {
    c.lengths = {2048}, c.problem.H = c.problem.HV = 1, c.problem.gate = KdaGate::kSoftplus, c.checkpoint_every = 512;
  });
  return cases;
}

std::vector<KdaCase> length_cases(const KdaLimits& l) {
  std::vector<KdaCase> cases;
  const auto add = [&](const std::string& name, std::vector<int64_t> lengths, KdaGate gate) {
    KdaCase c;
    c.name = name + (gate == KdaGate::kSoftplus ? "_softplus" : "_bounded");
    c.problem = main_problem(l);
    c.problem.H = c.problem.HV = 1;
    c.problem.gate = gate;
    if (l.fp32) c.problem.K = 32, c.problem.V = 16;
    c.lengths = std::move(lengths);
    c.seed = 500 + cases.size();
    cases.push_back(std::move(c));
  };
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    std::vector<int64_t> all;
    for (int64_t n = 0; n <= 200; ++n) all.push_back(n);
    add("every_length", all, gate);
    add("edges", {1, 2, 3, 4, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 130, 289, 300}, gate);
    add("with_empty", {0, 0, 5, 0, 1024}, gate);
    add("all_empty", {0, 0, 0}, gate);
    add("many", std::vector<int64_t>(20, 409), gate);
    for (int64_t n : {1, 15, 16, 17, 31, 33, 63, 64, 65}) add("single_" + std::to_string(n), {n}, gate);
  }
  return cases;
}

std::vector<KdaCase> pairwise_cases(const KdaLimits& l) {
  const std::vector<std::pair<int, int>> heads{{1, 1}, {2, 2}, {1, 2}, {2, 4}, {1, 8}, {3, 3}};
  const std::vector<DType> states{DType::kF32, DType::kBF16, DType::kF16};
  std::vector<std::pair<int, int>> kv;
  for (int k : l.K)
    for (int v : l.V)
      if (k == v || (!l.equal_kv && (k == 32 || v == 16 || (k == 64 && v == 128)))) kv.push_back({k, v});
  const std::vector<GateFamily> gates{GateFamily::kNormal, GateFamily::kWeak, GateFamily::kSaturated, GateFamily::kWide,
                                      GateFamily::kExtreme};
  const std::vector<std::pair<KdaGate, float>> modes{
      {KdaGate::kBounded, -5.0f}, {KdaGate::kBounded, -12.0f}, {KdaGate::kSoftplus, 0}, {KdaGate::kGivenLogDecay, 0}};
  const std::vector<KeyFamily> keys{KeyFamily::kNormal, KeyFamily::kUniform, KeyFamily::kRecurring,
                                    KeyFamily::kZeroRows, KeyFamily::kTiny};
  const std::vector<std::vector<int64_t>> lengths{{70}, {1, 0, 33}, {16, 64, 15}, {128, 5}, {200}, {65, 65, 0}};
  const std::vector<int> sizes{static_cast<int>(heads.size()),
                               static_cast<int>(kv.size()),
                               static_cast<int>(l.io.size()),
                               2 /*decay fp32*/,
                               2 /*beta bf16*/,
                               static_cast<int>(modes.size()),
                               static_cast<int>(gates.size()),
                               static_cast<int>(keys.size()),
                               3 /*state in*/,
                               3 /*state out*/,
                               3 /*checkpoints*/,
                               4 /*beta mode*/,
                               static_cast<int>(lengths.size()),
                               3 /*initial state*/,
                               2 /*int64*/,
                               3 /*pitch*/,
                               2 /*metadata*/,
                               3 /*slots*/,
                               3 /*block*/};
  std::vector<KdaCase> cases;
  for (const std::vector<int>& r : pairwise_cover(sizes)) {
    KdaCase c;
    KdaProblem& p = c.problem;
    c.name = "pairwise_" + std::to_string(cases.size());
    c.seed = 1000 + cases.size();
    p.H = heads[r[0]].first, p.HV = heads[r[0]].second;
    p.K = kv[r[1]].first, p.V = kv[r[1]].second;
    p.io = l.io[r[2]];
    p.decay = r[3] ? DType::kF32 : p.io;
    p.beta = r[4] ? DType::kBF16 : DType::kF32;
    p.gate = modes[r[5]].first;
    if (p.gate == KdaGate::kBounded) p.lower_bound = modes[r[5]].second;
    c.families.gate = gates[r[6]], c.families.key = keys[r[7]];
    p.state_in = states[r[8]], p.state_out = states[r[9]], p.checkpoints = states[r[10]];
    p.beta_mode = r[11] % 2 ? KdaBeta::kGiven : KdaBeta::kLogits, p.beta_doubled = r[11] >= 2;
    c.lengths = lengths[r[12]];
    c.families.state = static_cast<StateFamily>(r[13]);
    c.layout.seq_int64 = r[14];
    c.layout.pitch_pad = r[15] * 16, c.layout.odd_beta = r[15] == 2;
    c.layout.device_metadata = r[16];
    c.layout.one_pool = r[17] > 0 && p.state_in == p.state_out && p.state_in == p.checkpoints;
    c.layout.in_place = r[17] > 1 && c.layout.one_pool;
    c.layout.slot_seed = c.seed;
    c.layout.options.extend_block_tokens = r[18] * 64;
    cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<std::string> check_case(device::Stream& stream, const std::string& backend, const KdaCase& c,
                                    const KdaLimits& limits, Measured* measured) {
  const KdaProblem& p = c.problem;
  const KdaWeights weights = make_weights(p, c.seed * 977 + 5, c.bias);
  std::vector<KdaRowData> data;
  std::vector<const KdaRowData*> rows;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    data.push_back(make_row(p, c.families, c.lengths[i], c.seed * 1000 + i));
    data.back().checkpoints = depths_of(c.lengths[i], c.checkpoint_every);
  }
  for (const KdaRowData& r : data) rows.push_back(&r);
  BatchLayout layout = c.layout;
  layout.options.backend = backend;
  if (p.state_in != p.state_out || p.state_in != p.checkpoints) layout.one_pool = layout.in_place = false;
  const BatchResult got = run_extend(stream, p, weights, rows, layout);
  std::vector<std::string> faults = got.faults;
  if (got.backend != backend) faults.push_back("ran on " + got.backend);
  const Tolerance tolerance = tolerance_of(c, limits);
  for (size_t i = 0; i < data.size(); ++i) {
    const std::string row = c.name + " row " + std::to_string(i) + " (" + std::to_string(data[i].len) + " tokens) ";
    const OracleResult want = oracle_recurrence(p, weights, data[i]);
    const auto judge = [&](const std::vector<float>& g, const std::vector<double>& w, int64_t width, DType stored,
                           double allowed, const std::string& what, double Measured::*field) {
      const ErrorStats stats = compare(g, w, p.HV, width, stored == DType::kF16 ? 0x1p-25 : 0);
      if (measured) measured->*field = std::max(measured->*field, stats.finite ? stats.head : 1e30);
      const std::string fault = exceeds(stats, allowed, row + what);
      if (!fault.empty()) faults.push_back(fault);
    };
    judge(got.rows[i].out, want.out, p.V, p.io, tolerance.out, "out", &Measured::out);
    judge(got.rows[i].state, want.state, int64_t{p.V} * p.K, p.state_out, tolerance.state, "state", &Measured::state);
    for (size_t d = 0; d < want.states.size(); ++d)
      judge(got.rows[i].checkpoints[d], want.states[d], int64_t{p.V} * p.K, p.checkpoints, tolerance.checkpoint,
            "checkpoint " + std::to_string(data[i].checkpoints[d]), &Measured::checkpoint);
  }
  return faults;
}

}  // namespace kadence::ops::testing
