// Kinds of faults around slots, padding, carried states and commits; see kda_fault_test.cc for the arithmetic.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/fault_helpers.h"

namespace kadence::ops::testing {
namespace {

// Slots as the device holds them: -1, out of range, far out of range.
struct StepRun {
  std::vector<std::vector<float>> out, pool;
  std::vector<int32_t> status;
  std::string damage;
};
StepRun step_slots(const std::string& backend, const std::vector<int32_t>& in, const std::vector<int32_t>& out_slots,
                   DType state) {
  KdaProblem p = problem_of(16, 16);
  p.phase = KdaPhase::kStep, p.state_in = p.state_out = state;
  const int64_t N = static_cast<int64_t>(in.size());
  p.bounds = {static_cast<int32_t>(N), N, 0};
  const KdaPlan plan = plan_kda(p, stream().info(), {.backend = backend});
  const KdaWeights w = make_weights(p, 1);
  const KdaRowData row = plain_row(p, N, 3);
  GuardedTensor tensors[5], out(stream(), N, 16, 16, DType::kF32), pool(stream(), 5, 256, 272, state);
  const std::vector<float>* from[] = {&row.q, &row.k, &row.v, &row.decay, &row.beta};
  for (int i = 0; i < 5; ++i) {
    const int64_t width = static_cast<int64_t>(from[i]->size()) / N;
    tensors[i] = GuardedTensor(stream(), N, width, width, DType::kF32);
    for (int64_t t = 0; t < N; ++t)
      if (in[static_cast<size_t>(t)] >= 0) tensors[i].fill_row(t, from[i]->data() + t * width);
    tensors[i].upload(stream());
  }
  for (int64_t s = 0; s < 5; ++s) pool.fill_row(s, std::vector<float>(256, static_cast<float>(s + 1)).data());
  pool.upload(stream());
  const DeviceArray<int32_t> d_in(stream(), in), d_out(stream(), out_slots), status(stream(), {0, 0});
  const device::Buffer workspace = poisoned_buffer(stream(), plan.workspace_bytes());
  KdaStepArgs a;
  a.q = tensors[0].const_tokens(), a.k = tensors[1].const_tokens(), a.v = tensors[2].const_tokens(),
  a.decay = tensors[3].const_tokens(), a.beta = tensors[4].const_tokens();
  a.out = out.tokens(), a.A_log = w.A_log.data(), a.dt_bias = w.dt_bias.data(), a.rows = static_cast<int32_t>(N),
  a.slot_in = d_in.data(), a.slot_out = d_out.data();
  a.state_in = a.state_out = {pool.data(), state, 5, pool.pitch()}, a.status = status.data(),
  a.workspace = workspace.data();
  run_kda(plan, a, stream());
  out.download(stream()), pool.download(stream());
  StepRun r;
  for (int64_t i = 0; i < N; ++i) r.out.push_back(out.row(i));
  for (int64_t s = 0; s < 5; ++s) r.pool.push_back(pool.row(s));
  r.status = status.download(stream()), r.damage = out.damage("out") + pool.damage("pool");
  return r;
}
bool slot_changed(const StepRun& r, int s) {
  return r.pool[static_cast<size_t>(s)] != std::vector<float>(256, static_cast<float>(s + 1));
}

TEST(FaultB26, PaddingSlotsTouchNothing) {
  const std::vector<float> zeros(16, 0.0f);
  for (const char* backend : {"cpu", "reference"})
    for (DType state : {DType::kF32, DType::kBF16})
      for (const std::vector<int32_t>& slots :
           {std::vector<int32_t>{-1, 3}, {3, -1, -1}, {-1, -1}, {0, 1}, {5, 3}, {1 << 30, 3}, {-2, 3}}) {
        const StepRun r = step_slots(backend, slots, slots, state);
        EXPECT_EQ(r.damage, "");
        bool out_of_range = false;
        for (int s = 0; s < 5; ++s)
          EXPECT_EQ(slot_changed(r, s), std::count(slots.begin(), slots.end(), s) > 0) << backend << " slot " << s;
        for (size_t i = 0; i < slots.size(); ++i) {
          if (slots[i] < 0 || slots[i] >= 5) {
            EXPECT_EQ(r.out[i], zeros);
          }
          out_of_range |= slots[i] < -1 || slots[i] >= 5;
        }
        EXPECT_EQ(r.status[1] != 0, out_of_range);
      }
}

TEST(FaultB27, PaddedRowsOfAStepAreZeros) {
  // step_slots poisons inputs of padded rows and all outputs with NaN.
  const StepRun r = step_slots("cpu", {0, -1, 1, -1, 2, -1, 3, 4}, {0, -1, 1, -1, 2, -1, 3, 4}, DType::kF32);
  for (size_t i = 0; i < r.out.size(); ++i)
    for (float x : r.out[i]) {
      EXPECT_TRUE(std::isfinite(x)) << i;
      if (i == 1 || i == 3 || i == 5) {
        EXPECT_EQ(x, 0.0f);
      }
    }
}

TEST(FaultB29, PaddingNeverReachesAParkedState) {
  // Six live states of which four are scheduled, padded to eight; the two others must keep every bit, in verify too.
  KdaProblem p = problem_of(16, 16);
  p.D = 3;
  const KdaWeights w = make_weights(p, 1);
  std::vector<KdaRowData> data;
  for (int i = 0; i < 8; ++i) data.push_back(plain_row(p, 3, 5 + static_cast<uint64_t>(i)));
  std::vector<VerifyRow> rows;
  for (int i = 0; i < 8; ++i) rows.push_back({&data[static_cast<size_t>(i)], {-1, 0, 1}, 2, -1, i >= 4});
  // run_verify parks the state of a padded row in a slot of its own, and reports any slot that verify or commit touch.
  const VerifyBatch got = run_verify(stream(), p, w, rows);
  EXPECT_TRUE(got.faults.empty()) << got.faults[0];
  EXPECT_EQ(got.status[1], 0);
  const StepRun r = step_slots("cpu", {0, 1, -1, -1}, {0, 1, -1, -1}, DType::kF32);
  for (int s : {2, 3, 4}) EXPECT_FALSE(slot_changed(r, s));
}

TEST(FaultB31, PoisonedSlotsDoNotLeakIntoFreshRows) {
  // All slots hold NaN in run_extend and run_verify unless a row reads them; -1 selects zeros and never multiplies.
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    KdaProblem p = problem_of(32, 32);
    p.gate = gate;
    const KdaWeights w = make_weights(p, 1);
    KdaRowData fresh = plain_row(p, 70, 1), saturated = make_row(p, {.gate = GateFamily::kSaturated}, 70, 2);
    fresh.state.clear(), saturated.state.clear();
    expect_right(p, w, fresh, "fresh");
    expect_right(p, w, saturated, "fresh and saturated");
  }
}

TEST(FaultB33, LaterPiecesContinueFromTheCarriedState) {
  const KdaProblem p = problem_of(32, 32);
  const KdaWeights w = make_weights(p, 1);
  const KdaRowData row = make_row(p, {.gate = GateFamily::kWeak}, 1000, 2);
  const OracleResult want = oracle_recurrence(p, w, row);
  const RowResult whole = run_extend(stream(), p, w, {&row}).rows[0];
  for (int64_t piece : {960, 143, 16, 1}) {
    std::vector<float> state = row.state;
    for (int64_t at = 0; at < row.len; at += piece) {
      const KdaRowData part = slice_row(p, row, at, std::min<int64_t>(row.len, at + piece), state);
      state = run_extend(stream(), p, w, {&part}).rows[0].state;
    }
    EXPECT_EQ(exceeds(compare(state, want.state, 1, 1024), kFp32, "pieces of " + std::to_string(piece)), "");
    if (piece % 64 == 0) {
      EXPECT_EQ(state, whole.state);
    }
  }
}

TEST(FaultB37, CommitTakesTheAcceptedNodeForStateAndWindow) {
  KdaProblem p = problem_of(32, 16);
  p.D = 4;
  const KdaWeights w = make_weights(p, 1);
  const int C = 32;
  std::vector<KdaRowData> data;
  std::vector<std::vector<float>> x, windows;
  std::vector<VerifyRow> rows;
  const std::vector<int32_t> chain{-1, 0, 1, 2}, tree{-1, 0, 0, 2};
  for (int i = 0; i < 8; ++i)
    data.push_back(make_row(p, {.gate = GateFamily::kWeak}, 4, 11 + static_cast<uint64_t>(i)));
  for (int i = 0; i < 8; ++i) {
    rows.push_back({&data[static_cast<size_t>(i)], i < 4 ? chain : tree, i % 4, -1, false});
    x.emplace_back(4 * C), windows.emplace_back(3 * C);
    for (int j = 0; j < 4 * C; ++j) x.back()[static_cast<size_t>(j)] = static_cast<float>(1000 * i + j);
    for (int j = 0; j < 3 * C; ++j) windows.back()[static_cast<size_t>(j)] = static_cast<float>(-1000 * i - j);
  }
  for (const char* backend : {"cpu", "reference"}) {
    const VerifyBatch got = run_verify(stream(), p, w, rows, C, x, windows, on(backend));
    for (const std::string& f : got.faults) ADD_FAILURE() << f;
    for (size_t i = 0; i < 8; ++i) {
      const std::vector<int32_t>& parent = rows[i].parent;
      const TreeResult want = oracle_tree(p, w, data[i], parent, DType::kF32);
      const int32_t node = rows[i].node;
      EXPECT_EQ(
          exceeds(compare(got.rows[i].committed, want.states[static_cast<size_t>(node)], 1, 512), 1e-6, "committed"),
          "")
          << i;
      // The newest entry of the window is the node's own input, the one before its parent's.
      EXPECT_EQ(got.rows[i].window[2 * C], x[i][static_cast<size_t>(node * C)]) << i;
      const int32_t up = parent[static_cast<size_t>(node)];
      EXPECT_EQ(got.rows[i].window[C], up < 0 ? windows[i][2 * C] : x[i][static_cast<size_t>(up * C)]) << i;
    }
  }
}

TEST(FaultB39, AcceptedNodesOutOfRangeAreFlaggedNeverIndexed) {
  KdaProblem p = problem_of(16, 16);
  p.D = 4;
  const KdaWeights w = make_weights(p, 1);
  const KdaRowData row = plain_row(p, 2, 3);
  for (const char* backend : {"cpu", "reference"})
    for (int32_t node : {-1, 2, 3, 99, -7}) {
      const VerifyBatch got = run_verify(stream(), p, w, {{&row, {-1, 0}, node, -1, false}}, 0, {}, {}, on(backend));
      EXPECT_TRUE(got.faults.empty());
      EXPECT_EQ(got.rows[0].committed, row.state) << node;
      EXPECT_EQ(got.status[1] != 0, node != -1) << node;
    }
}

}  // namespace
}  // namespace kadence::ops::testing
