// One test for each kind of fault that other KDA and delta-rule libraries have had in the arithmetic of their
// operators, named after the kind. Each goes red when the fault is planted (tests/faults/). What is right comes from
// float64 oracles or closed forms.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/testing/fault_helpers.h"

namespace kadence::ops::testing {
namespace {

TEST(FaultB01, NearParallelKeysWithBetaNearOne) {
  KdaProblem p = problem_of(128, 32);
  const KdaWeights w = unit_weights(p);
  KdaRowData same = make_row(p, {.gate = GateFamily::kOff, .key = KeyFamily::kIdentical}, 1024, 1);
  fill(same.beta, 8);
  expect_right(p, w, same, "identical keys", 2e-5);
  p.beta_mode = KdaBeta::kGiven, p.gate = KdaGate::kGivenLogDecay;
  KdaRowData near = make_row(p, {.key = KeyFamily::kNearParallel}, 1024, 2);
  fill(near.beta, 1), fill(near.decay, -0.012f);
  expect_right(p, {}, near, "near-parallel keys", 2e-5);
}

TEST(FaultB02, StrongGatesNeverOverflow) {
  KdaProblem p = problem_of(64, 32);
  p.gate = KdaGate::kGivenLogDecay;
  for (float g : {-0.1f, -1.0f, -2.5f, -3.0f, -5.0f, -20.0f, -1000.0f, -std::numeric_limits<float>::infinity()})
    for (int64_t len : {16, 65, 256}) {
      KdaRowData row = plain_row(p, len);
      fill(row.decay, g);
      expect_right(p, {}, row, "constant gate " + std::to_string(g));
      for (size_t i = 0; i < row.decay.size(); ++i)
        if (i % 7 != 3) row.decay[i] = -0.001f;
      expect_right(p, {}, row, "some channels at " + std::to_string(g));
    }
}

TEST(FaultB03, AnyLowerBoundIsRightWhenSaturated) {
  KdaProblem p = problem_of(32, 32);
  for (float lb : {-1.0f, -5.0f, -5.5f, -7.0f, -20.0f, -100.0f})
    for (int64_t len : {16, 64}) {
      p.lower_bound = lb;
      KdaRowData row = plain_row(p, len);
      fill(row.decay, 30);
      expect_right(p, unit_weights(p), row, "lower bound " + std::to_string(lb));
    }
}

TEST(FaultB04, EachGateHasItsOwnFormula) {
  KdaProblem p = problem_of(16, 16);
  p.beta_mode = KdaBeta::kGiven;
  KdaRowData row = plain_row(p, 1);
  fill(row.beta, 0), fill(row.state, 1);
  struct {
    KdaGate gate;
    float x, A_log;
    double log_decay;
  } cases[] = {{KdaGate::kBounded, 0, 0, -2.5},
               {KdaGate::kSoftplus, 0, 0, -std::log(2.0)},
               {KdaGate::kBounded, 1, std::log(2.0f), -4.403985},
               {KdaGate::kSoftplus, 1, std::log(2.0f), -2.626523},
               {KdaGate::kSoftplus, 25, 0, -25.0}};
  for (const auto& c : cases) {
    p.gate = c.gate;
    KdaWeights w = unit_weights(p);
    w.A_log[0] = c.A_log;
    fill(row.decay, c.x);
    for (const std::vector<float>& state : one_token_states(p, w, row))
      for (float s : state) EXPECT_NEAR(s, std::exp(c.log_decay), 2e-6 * std::exp(c.log_decay)) << c.x;
  }
  // The bias is inside the sigmoid's argument, and exp(A_log) multiplies both.
  p.gate = KdaGate::kBounded;
  KdaWeights w = unit_weights(p);
  w.A_log[0] = std::log(2.0f), w.dt_bias.assign(16, 0.25f);
  fill(row.decay, 0.5f);
  for (const std::vector<float>& state : one_token_states(p, w, row))
    EXPECT_NEAR(state[0], std::exp(-5 / (1 + std::exp(-1.5))), 1e-7);
}

TEST(FaultB05, LogitsAndGivenBetaAreTheSameNumber) {
  KdaProblem logits = problem_of(32, 32), given = logits;
  given.beta_mode = KdaBeta::kGiven;
  for (int64_t len : {1, 64, 333}) {
    const KdaWeights w = make_weights(logits, 1);
    const KdaRowData row = plain_row(logits, len);
    KdaRowData activated = row;
    for (float& b : activated.beta) b = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(b))));
    const RowResult a = run_extend(stream(), logits, w, {&row}).rows[0],
                    b = run_extend(stream(), given, w, {&activated}).rows[0];
    const std::vector<double> out(b.out.begin(), b.out.end());
    EXPECT_EQ(exceeds(compare(a.out, out, 1, 32), 5e-7, "out"), "");
  }
  // A logit of 0 means one half.
  KdaRowData row = plain_row(logits, 1);
  fill(row.beta, 0), fill(row.v, 2), fill(row.k, 0), fill(row.state, 0);
  row.k[0] = 1;
  logits.l2norm = false;
  for (const std::vector<float>& state : one_token_states(logits, unit_weights(logits), row)) EXPECT_EQ(state[0], 1.0f);
}

TEST(FaultB06, BetaStaysInFp32OnEveryPath) {
  KdaProblem p = problem_of(16, 16);
  p.beta = DType::kBF16, p.l2norm = false;
  KdaRowData row = plain_row(p, 1);
  row.state.clear();
  fill(row.beta, 0.5f), fill(row.v, 1), fill(row.k, 0);
  row.k[0] = 1;
  const auto states = one_token_states(p, unit_weights(p), row);
  for (const std::vector<float>& state : states) EXPECT_NEAR(state[0], 0.62245933, 1e-7);
  EXPECT_EQ(states[0], states[1]);
  EXPECT_EQ(states[1], states[2]);
}

TEST(FaultB08, NormAddsEpsilonToTheSumOfSquares) {
  KdaProblem p = problem_of(128, 16);
  p.beta_mode = KdaBeta::kGiven;
  for (float amplitude : {1.0f, 1e-1f, 1e-2f, 1e-3f, 1e-4f, 0.0f}) {
    KdaRowData row = plain_row(p, 1);
    row.state.clear();
    fill(row.k, amplitude), fill(row.q, amplitude), fill(row.v, 1), fill(row.beta, 1);
    const double x = amplitude / std::sqrt(128.0 * amplitude * amplitude + 1e-6);
    for (const std::vector<float>& state : one_token_states(p, unit_weights(p), row))
      EXPECT_NEAR(state[5], x, 3e-7 * x) << amplitude;
    const BatchResult got = run_extend(stream(), p, unit_weights(p), {&row});
    EXPECT_NEAR(got.rows[0].out[3], 128 * x * x / std::sqrt(128.0), 1e-6 * x) << amplitude;
  }
}

// Memory that is only there where it is touched, for offsets beyond 2^31 elements.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~Sparse() {
    if (data_) munmap(data_, bytes_);
  }
  void* data() const { return data_; }

 private:
  void* data_;
  size_t bytes_;
};

TEST(FaultB10, TokenOffsetsBeyondTwoToThe31) {
  KdaProblem p = problem_of(16, 16);
  p.io = p.decay = p.beta = DType::kBF16;
  const int64_t T = 70, pitch = int64_t{1} << 25;  // the last token is at 2.3e9 elements
  p.bounds = {1, T, 0};
  const KdaRowData row = plain_row(p, T);
  const KdaWeights w = make_weights(p, 2);
  for (const char* backend : {"cpu", "reference"}) {
    const KdaPlan plan = plan_kda(p, stream().info(), {.backend = backend});
    Sparse memory[6] = {Sparse(T * pitch * 2), Sparse(T * pitch * 2), Sparse(T * pitch * 2),
                        Sparse(T * pitch * 2), Sparse(T * pitch * 2), Sparse(T * pitch * 2)};
    for (const Sparse& m : memory) ASSERT_NE(m.data(), nullptr);
    const std::vector<float>* from[] = {&row.q, &row.k, &row.v, &row.decay, &row.beta};
    for (int i = 0; i < 5; ++i) {
      const int64_t width = static_cast<int64_t>(from[i]->size()) / T;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t c = 0; c < width; ++c)
          base::store_f32(memory[i].data(), t * pitch + c, DType::kBF16,
                          (*from[i])[static_cast<size_t>(t * width + c)]);
    }
    std::vector<int32_t> offsets{0, static_cast<int32_t>(T)}, none{-1};
    device::Buffer workspace = poisoned_buffer(stream(), plan.workspace_bytes());
    KdaExtendArgs a;
    a.q = {memory[0].data(), pitch}, a.k = {memory[1].data(), pitch}, a.v = {memory[2].data(), pitch},
    a.decay = {memory[3].data(), pitch}, a.beta = {memory[4].data(), pitch};
    a.out = {memory[5].data(), pitch}, a.tokens = T, a.A_log = w.A_log.data(), a.dt_bias = w.dt_bias.data(),
    a.workspace = workspace.data();
    a.metadata.seq_begin = offsets.data(), a.metadata.state_in = a.metadata.state_out = none.data(),
    a.metadata.rows = 1;
    run_kda(plan, a, stream());
    KdaRowData fresh = row;
    fresh.state.clear();
    const BatchResult want = run_extend(stream(), p, w, {&fresh}, on(backend));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < 16; ++c)
        ASSERT_EQ(base::load_f32(a.out.data, t * pitch + c, DType::kBF16),
                  want.rows[0].out[static_cast<size_t>(t * 16 + c)])
            << backend << " token " << t;
  }
}

TEST(FaultB11, SlotOffsetsBeyondTwoToThe31) {
  KdaProblem p = problem_of(16, 16);
  p.phase = KdaPhase::kStep, p.state_in = p.state_out = DType::kBF16;
  p.bounds = {2, 2, 0};
  const int64_t slots = 4100, pitch = 540672, n = 256;  // slot 3972 is the first beyond 2^31 elements
  const KdaRowData row = plain_row(p, 1);
  const KdaWeights w = make_weights(p, 2);
  for (const char* backend : {"cpu", "reference"}) {
    Sparse pool(static_cast<size_t>(slots * pitch) * 2);
    ASSERT_NE(pool.data(), nullptr);
    const auto at = [&](int64_t slot) { return static_cast<uint16_t*>(pool.data()) + slot * pitch; };
    for (int64_t slot : {1, 4097})
      for (int64_t i = 0; i < n; ++i) base::store_f32(at(slot), i, DType::kBF16, row.state[static_cast<size_t>(i)]);
    const KdaPlan plan = plan_kda(p, stream().info(), {.backend = backend});
    device::Buffer workspace = poisoned_buffer(stream(), plan.workspace_bytes());
    std::vector<std::vector<float>> two;
    for (const std::vector<float>* v : {&row.q, &row.k, &row.v, &row.decay}) {
      two.push_back(*v);
      two.back().insert(two.back().end(), v->begin(), v->end());
    }
    std::vector<float> beta{row.beta[0], row.beta[0]}, out(32);
    alignas(64) static float aligned[5][32];
    for (int i = 0; i < 4; ++i)
      std::copy(two[static_cast<size_t>(i)].begin(), two[static_cast<size_t>(i)].end(), aligned[i]);
    const std::vector<int32_t> from{1, 4097}, to{1, 4099};
    KdaStepArgs a;
    a.q = {aligned[0], 16}, a.k = {aligned[1], 16}, a.v = {aligned[2], 16}, a.decay = {aligned[3], 16},
    a.beta = {beta.data(), 1}, a.out = {aligned[4], 16};
    a.A_log = w.A_log.data(), a.dt_bias = w.dt_bias.data(), a.rows = 2, a.slot_in = from.data(), a.slot_out = to.data();
    a.state_in = a.state_out = {pool.data(), DType::kBF16, slots, pitch}, a.workspace = workspace.data();
    run_kda(plan, a, stream());
    EXPECT_EQ(std::memcmp(at(1), at(4099), n * 2), 0);
    EXPECT_EQ(std::memcmp(aligned[4], aligned[4] + 16, 64), 0);
    const std::vector<uint16_t> zeros(n);
    // 4099 * pitch wrapped to 32 bits, and the neighbours.
    for (int64_t slot : {0, 2, 4096, 4098}) EXPECT_EQ(std::memcmp(at(slot), zeros.data(), n * 2), 0) << slot;
    for (int64_t i = 0; i < n; ++i)
      EXPECT_EQ(base::load_f32(at(4097), i, DType::kBF16), row.state[static_cast<size_t>(i)]);
  }
}

TEST(FaultB12, LastPartialChunkUsesItsOwnEndDecay) {
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    KdaProblem p = problem_of(32, 16);
    p.gate = gate;
    const KdaWeights w = make_weights(p, 3);
    for (int64_t len : {1, 2, 3, 4, 8, 15, 16, 17, 31, 33, 47, 63, 65, 72, 127, 129, 130, 289, 300})
      for (StateFamily state : {StateFamily::kNone, StateFamily::kNormal})
        expect_right(p, w, make_row(p, {.gate = GateFamily::kWeak, .state = state}, len, static_cast<uint64_t>(len)),
                     std::to_string(len) + " tokens");
  }
}

TEST(FaultB13, ScratchContentDoesNotMatter) {
  KdaProblem p = problem_of(32, 32, 2, 2);
  const KdaWeights w = make_weights(p, 1);
  std::vector<KdaRowData> rows;
  std::vector<const KdaRowData*> batch;
  for (int64_t len : {200, 63, 17, 1, 95, 128, 64, 31, 5, 79})
    rows.push_back(plain_row(p, len, static_cast<uint64_t>(len)));
  for (const KdaRowData& r : rows) batch.push_back(&r);
  // run_extend fills the workspace with NaN patterns; what is left there by other work must not matter either.
  const BatchResult first = run_extend(stream(), p, w, batch);
  for (int i = 0; i < 30; ++i) {
    const BatchResult got = run_extend(stream(), p, w, batch);
    for (size_t r = 0; r < rows.size(); ++r)
      ASSERT_TRUE(got.rows[r] == first.rows[r]) << "repeat " << i << " row " << r;
  }
  KdaProblem bounds = with_bounds(p, batch, 0);
  const KdaPlan plan = plan_kda(bounds, stream().info());
  std::vector<std::vector<float>> states;
  for (int fill_byte : {0x00, 0xff, 0x7f}) {
    device::Buffer workspace = device::Buffer::allocate(stream().info(), plan.workspace_bytes());
    device::fill_async(workspace.data(), fill_byte, workspace.size(), stream());
    const KdaRowData& r = rows[1];
    std::vector<int32_t> offsets{0, 63}, in{-1}, out_slot{0};
    GuardedTensor out(stream(), 63, 64, 64, DType::kF32), pool(stream(), 1, 2 * 32 * 32, 2 * 32 * 32, DType::kF32);
    GuardedTensor tensors[5];
    const std::vector<float>* from[] = {&r.q, &r.k, &r.v, &r.decay, &r.beta};
    for (int i = 0; i < 5; ++i) {
      const int64_t width = static_cast<int64_t>(from[i]->size()) / 63;
      tensors[i] = GuardedTensor(stream(), 63, width, width, DType::kF32);
      for (int64_t t = 0; t < 63; ++t) tensors[i].fill_row(t, from[i]->data() + t * width);
      tensors[i].upload(stream());
    }
    KdaExtendArgs a;
    a.q = tensors[0].const_tokens(), a.k = tensors[1].const_tokens(), a.v = tensors[2].const_tokens(),
    a.decay = tensors[3].const_tokens(), a.beta = tensors[4].const_tokens();
    a.out = out.tokens(), a.tokens = 63, a.A_log = w.A_log.data(), a.dt_bias = w.dt_bias.data(),
    a.workspace = workspace.data();
    a.metadata.seq_begin = offsets.data(), a.metadata.state_in = in.data(), a.metadata.state_out = out_slot.data(),
    a.metadata.rows = 1;
    a.state_out = {pool.data(), DType::kF32, 1, pool.pitch()};
    run_kda(plan, a, stream());
    pool.download(stream());
    states.push_back(pool.row(0));
  }
  EXPECT_EQ(states[0], states[1]);
  EXPECT_EQ(states[0], states[2]);
}

TEST(FaultB15, KAndVMayDiffer) {
  for (const auto& [K, V] :
       std::vector<std::pair<int, int>>{{128, 512}, {64, 128}, {256, 64}, {16, 48}, {48, 16}, {112, 80}}) {
    KdaProblem p = problem_of(K, V);
    const KdaWeights w = make_weights(p, 1);
    const KdaRowData row = plain_row(p, 50);
    expect_right(p, w, row, "K " + std::to_string(K) + " V " + std::to_string(V));
    const OracleResult want = oracle_recurrence(p, w, row);
    EXPECT_EQ(
        exceeds(compare(run_steps(stream(), p, w, {&row}).rows[0].state, want.state, 1, int64_t{V} * K), 1e-6, "steps"),
        "");
  }
  // What cannot run is refused up front.
  EXPECT_THROW(plan_kda(problem_of(128, 1024), stream().info()), base::Error);
  EXPECT_THROW(plan_kda(problem_of(40, 64), stream().info()), base::Error);
}

TEST(FaultB17, GivenDecayIsTheNaturalLogPerToken) {
  KdaProblem p = problem_of(16, 16);
  p.gate = KdaGate::kGivenLogDecay, p.beta_mode = KdaBeta::kGiven;
  KdaRowData row = plain_row(p, 3);
  fill(row.decay, -1), fill(row.beta, 0), fill(row.state, 1);
  for (const std::vector<float>& state : one_token_states(p, {}, slice_row(p, row, 0, 1, row.state)))
    EXPECT_NEAR(state[7], std::exp(-1.0), 1e-7);
  EXPECT_NEAR(run_extend(stream(), p, {}, {&row}).rows[0].state[7], std::exp(-3.0), 1e-8);
}

TEST(FaultB18, NeighboursAndSplitsDoNotChangeBits) {
  const KdaProblem p = problem_of(64, 32);
  const KdaWeights w = make_weights(p, 1);
  KdaRowData a = plain_row(p, 200, 1), zeros = a, none = a;
  none.state.clear();
  fill(zeros.state, 0);
  const RowResult alone = run_extend(stream(), p, w, {&a}).rows[0];
  std::vector<KdaRowData> others;
  std::vector<const KdaRowData*> batch{&a};
  for (int i = 0; i < 7; ++i) others.push_back(plain_row(p, 10 + 30 * i, 50 + static_cast<uint64_t>(i)));
  for (const KdaRowData& r : others) batch.insert(batch.begin(), &r);
  EXPECT_TRUE(run_extend(stream(), p, w, batch).rows.back() == alone);
  EXPECT_TRUE(run_extend(stream(), p, w, {&zeros}).rows[0] == run_extend(stream(), p, w, {&none}).rows[0]);
  for (int64_t at : {64, 128}) {
    const RowResult first = run_extend(stream(), p, w, {[&] {
                                         static KdaRowData s;
                                         s = slice_row(p, a, 0, at, a.state);
                                         return &s;
                                       }()})
                                .rows[0];
    const KdaRowData rest = slice_row(p, a, at, 200, first.state);
    EXPECT_EQ(run_extend(stream(), p, w, {&rest}).rows[0].state, alone.state) << at;
  }
}

TEST(FaultB21, ValueHeadsShareQAndKOnly) {
  for (int HV : {2, 4, 8}) {
    const KdaProblem p = problem_of(32, 16, 2, HV), wide = problem_of(32, 16, HV, HV);
    const KdaWeights w = make_weights(p, 3);
    const KdaRowData row = plain_row(p, 70);
    KdaRowData repeated = row;
    repeated.q.clear(), repeated.k.clear();
    for (int64_t t = 0; t < row.len; ++t)
      for (int hv = 0; hv < HV; ++hv)
        for (auto [to, from] : {std::pair{&repeated.q, &row.q}, std::pair{&repeated.k, &row.k}}) {
          const auto begin = from->begin() + (t * 2 + hv / (HV / 2)) * 32;
          to->insert(to->end(), begin, begin + 32);
        }
    EXPECT_TRUE(run_extend(stream(), p, w, {&row}).rows[0] == run_extend(stream(), wide, w, {&repeated}).rows[0]) << HV;
    EXPECT_EQ(run_steps(stream(), p, w, {&row}).rows[0].out, run_steps(stream(), wide, w, {&repeated}).rows[0].out)
        << HV;
    expect_right(p, w, row, "grouped heads");
  }
  EXPECT_THROW(plan_kda(problem_of(32, 32, 2, 3), stream().info()), base::Error);
}

TEST(FaultB22, StatesAreVMajorOnEveryPath) {
  for (const auto& [K, V] : std::vector<std::pair<int, int>>{{32, 32}, {64, 128}}) {
    KdaProblem p = problem_of(K, V);
    const KdaWeights w = make_weights(p, 1);
    KdaRowData row = make_row(p, {.gate = GateFamily::kWeak}, 4, 2);
    for (int v = 0; v < V; ++v)
      for (int k = 0; k < K; ++k) row.state[static_cast<size_t>(v * K + k)] = static_cast<float>(v + 1000 * k) * 1e-3f;
    const OracleResult want = oracle_recurrence(p, w, row);
    // extend 2 -> step 1 -> verify and commit 1, handing on one slot.
    const KdaRowData first = slice_row(p, row, 0, 2, row.state);
    const std::vector<float> extended = run_extend(stream(), p, w, {&first}).rows[0].state;
    const KdaRowData second = slice_row(p, row, 2, 3, extended);
    const std::vector<float> stepped = run_steps(stream(), p, w, {&second}).rows[0].state;
    const KdaRowData third = slice_row(p, row, 3, 4, stepped);
    p.D = 1;
    const VerifyBatch last = run_verify(stream(), p, w, {{&third, {-1}, 0, -1, false}});
    EXPECT_EQ(exceeds(compare(last.rows[0].committed, want.state, 1, int64_t{V} * K), 2e-6, "state"), "");
    EXPECT_EQ(
        exceeds(compare(last.rows[0].out, std::vector<double>(want.out.end() - V, want.out.end()), 1, V), 2e-6, "out"),
        "");
  }
}

TEST(FaultB24, EmptyRowsAndEmptyBatches) {
  for (DType state : {DType::kF32, DType::kBF16}) {
    KdaProblem p = problem_of(16, 32);
    p.state_in = p.state_out = p.checkpoints = state;
    const KdaWeights w = make_weights(p, 1);
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{0, 5, 0, 0, 4, 0}, {0, 0}, {0}, {}})
      for (bool with_state : {false, true})
        for (const char* backend : {"cpu", "reference"}) {
          std::vector<KdaRowData> rows;
          std::vector<const KdaRowData*> batch;
          for (int64_t len : lengths) {
            rows.push_back(plain_row(p, len, 7 + static_cast<uint64_t>(len)));
            if (!with_state) rows.back().state.clear();
          }
          for (const KdaRowData& r : rows) batch.push_back(&r);
          const BatchResult got = run_extend(stream(), p, w, batch, on(backend));
          for (const std::string& f : got.faults) ADD_FAILURE() << f;
          for (size_t i = 0; i < rows.size(); ++i) {
            if (rows[i].len > 0) {
              EXPECT_TRUE(got.rows[i] == run_extend(stream(), p, w, {&rows[i]}, on(backend)).rows[0]);
            } else {
              EXPECT_EQ(got.rows[i].state, with_state ? rows[i].state : std::vector<float>(16 * 32, 0.0f));
            }
          }
        }
    EXPECT_TRUE(run_steps(stream(), p, w, {}).faults.empty());
    p.D = 2;
    EXPECT_TRUE(run_verify(stream(), p, w, {}).faults.empty());
  }
}

TEST(FaultB25, StateKeepsItsDtypeAndFp32DoesNotDrift) {
  KdaProblem p = problem_of(16, 16);
  const KdaWeights w = make_weights(p, 1);
  const KdaRowData row = make_row(p, {.gate = GateFamily::kWeak}, 1024, 2);
  const OracleResult want = oracle_recurrence(p, w, row);
  EXPECT_EQ(exceeds(compare(run_steps(stream(), p, w, {&row}).rows[0].state, want.state, 1, 256), 1e-5, "fp32"), "");
  // A view of another dtype than the plan's is refused, not converted.
  p.phase = KdaPhase::kStep, p.bounds = {1, 1, 0};
  const KdaPlan plan = plan_kda(p, stream().info());
  alignas(64) static float memory[256];
  const std::vector<int32_t> slot{0};
  const device::Buffer workspace = device::Buffer::allocate(stream().info(), plan.workspace_bytes());
  KdaStepArgs a;
  a.q = {memory, 16}, a.k = {memory, 16}, a.v = {memory, 16}, a.decay = {memory, 16}, a.beta = {memory, 1},
  a.out = {memory + 64, 16}, a.A_log = memory;
  a.rows = 1, a.slot_in = a.slot_out = slot.data(), a.workspace = workspace.data();
  a.state_in = a.state_out = {memory, DType::kBF16, 1, 256};
  EXPECT_THROW(run_kda(plan, a, stream()), base::Error);
}

}  // namespace
}  // namespace kadence::ops::testing
