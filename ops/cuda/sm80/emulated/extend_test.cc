// The chunked extend kernels on emulated warps: the conformance table against float64, and what must hold to the bit.
#define KADENCE_EMULATED_SWITCH
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ops/cuda/sm80/emulated/warps.h"
#include "ops/cuda/sm80/extend_chunked/kernel.cuh"
#include "ops/cuda/sm80/extend_chunked/plan.h"
#include "ops/cuda/sm80/extend_chunked/rows.cuh"
#include "ops/kda_table.h"
#include "ops/testing/kda_conformance.h"

namespace kadence::ops {

// A table of this backend alone, in place of kda_registry.cc.
namespace {

std::vector<std::string> no_misses(const KdaProblem&, const device::DeviceInfo&) { return {}; }

void emulated_extend(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream&) {
  namespace sm80 = cuda::sm80;
  if (args.tokens == 0 && args.metadata.rows == 0) return;
  const sm80::Call call = sm80::make_call(plan, args);
  cuda::emulated::run(1, sm80::kPlanThreads, 0, [&] { sm80::rows_kernel(call.rows); });
  const bool half = plan.problem().io == DType::kF16, wide = plan.problem().decay == DType::kF32;
  for (int32_t i = 0; i <= call.windows; ++i) {
    const sm80::WindowParams p = call.launch(i);
    cuda::emulated::run(static_cast<unsigned>(p.scan_ctas + p.prep_ctas), sm80::kThreads, sm80::kSharedBytes, [&] {
      if (half) {
        wide ? sm80::window_kernel<__half, true>(p) : sm80::window_kernel<__half, false>(p);
      } else {
        wide ? sm80::window_kernel<__nv_bfloat16, true>(p) : sm80::window_kernel<__nv_bfloat16, false>(p);
      }
    });
  }
}

const KdaBackend kEmulated = {
    {"sm80", device::DeviceKind::kCpu, true, false, false, true, "emulated"},
    no_misses,
    cuda::sm80::plan_chunked,
    emulated_extend,
    nullptr,
    nullptr,
    nullptr,
};
constexpr const KdaBackend* kTable[] = {&kEmulated};

}  // namespace

std::span<const KdaBackend* const> kda_table() { return kTable; }
const KdaBackend* find_kda_backend(std::string_view name) { return name == kEmulated.info.name ? &kEmulated : nullptr; }
std::span<const KdaBackendInfo> kda_backends() { return {&kEmulated.info, 1}; }
std::vector<std::string> kda_backend_misses(const std::string&, const KdaProblem&, const device::DeviceInfo&) {
  return {};
}

namespace testing {
namespace {

class Emulated : public ::testing::Test {
 protected:
  Emulated() : stream_(device::Stream::cpu(1)) {
    limits_ = limits_of("sm80");
    limits_.io = {DType::kBF16, DType::kF16};
  }
  // Every `step`-th case; KADENCE_ALL_CASES=1 runs all.
  void run(const std::vector<KdaCase>& cases, size_t step) {
    if (std::getenv("KADENCE_ALL_CASES")) step = 1;
    for (size_t i = 0; i < cases.size(); i += step) {
      if (const char* f = std::getenv("KADENCE_CASES"); f && cases[i].name.find(f) == std::string::npos) continue;
      Measured m;
      for (const std::string& fault : check_case(stream_, "sm80", cases[i], limits_, &m)) ADD_FAILURE() << fault;
      if (std::getenv("KADENCE_PRINT"))
        std::printf("%-44s out %.2e state %.2e checkpoint %.2e\n", cases[i].name.c_str(), m.out, m.state, m.checkpoint);
    }
  }
  device::Stream stream_;
  KdaLimits limits_;
};

TEST_F(Emulated, InputFamilies) { run(family_cases(limits_), 8); }
TEST_F(Emulated, Lengths) { run(length_cases(limits_), 5); }
TEST_F(Emulated, PairwiseAxes) { run(pairwise_cases(limits_), 6); }

// A row alone, in batches, in windows of several sizes and split on the grid: the same bits.
TEST_F(Emulated, BitsDependOnTheRowAlone) {
  KdaProblem p;
  p.H = 1, p.HV = 2, p.K = p.V = 128, p.io = p.decay = DType::kBF16;
  for (GateFamily family : {GateFamily::kNormal, GateFamily::kWeak, GateFamily::kExtreme}) {
    p.gate = family == GateFamily::kExtreme ? KdaGate::kSoftplus : KdaGate::kBounded;
    const KdaWeights w = make_weights(p, 11);
    KdaFamilies f;
    f.gate = family;
    std::vector<KdaRowData> data;
    for (int64_t n : {300, 1, 64, 0, 130, 33, 260}) {
      data.push_back(make_row(p, f, n, 40 + data.size()));
      for (int32_t d = 64; d <= n; d += 64) data.back().checkpoints.push_back(d);
    }
    BatchLayout layout;
    layout.options.backend = "sm80";
    std::vector<const KdaRowData*> all;
    for (const KdaRowData& r : data) all.push_back(&r);
    const BatchResult batch = run_extend(stream_, p, w, all, layout);
    EXPECT_TRUE(batch.faults.empty()) << batch.faults[0];
    for (int block : {64, 128, 320}) {
      BatchLayout windows = layout;
      windows.options.extend_block_tokens = block;
      const BatchResult got = run_extend(stream_, p, w, all, windows);
      EXPECT_TRUE(got.faults.empty()) << got.faults[0];
      for (size_t i = 0; i < data.size(); ++i)
        EXPECT_TRUE(got.rows[i] == batch.rows[i]) << "row " << i << ", " << block;
    }
    for (size_t i = 0; i < data.size(); ++i)
      EXPECT_TRUE(run_extend(stream_, p, w, {&data[i]}, layout).rows[0] == batch.rows[i]) << "row " << i;
    for (int64_t cut : {64, 256}) {
      const KdaRowData head = slice_row(p, data[0], 0, cut, data[0].state);
      const BatchResult a = run_extend(stream_, p, w, {&head}, layout);
      EXPECT_EQ(a.rows[0].state, batch.rows[0].checkpoints[static_cast<size_t>(cut / 64 - 1)]) << cut;
      const KdaRowData tail = slice_row(p, data[0], cut, data[0].len, a.rows[0].state);
      const BatchResult b = run_extend(stream_, p, w, {&tail}, layout);
      EXPECT_EQ(b.rows[0].state, batch.rows[0].state) << cut;
      EXPECT_EQ(b.rows[0].out,
                std::vector<float>(batch.rows[0].out.begin() + cut * p.HV * p.V, batch.rows[0].out.end()))
          << cut;
    }
  }
}

// More rows than a group, a window or the CTA of rows_kernel hold; most are short, some empty.
TEST_F(Emulated, ManyRows) {
  KdaCase c;
  c.name = "many rows";
  c.problem.H = c.problem.HV = 1, c.problem.K = c.problem.V = 128, c.problem.io = c.problem.decay = DType::kBF16;
  for (int i = 0; i < 600; ++i) c.lengths.push_back(i % 7 == 0 ? 0 : i % 50 == 1 ? 150 : 1 + i % 5);
  c.layout.options.extend_block_tokens = 640;
  for (const std::string& fault : check_case(stream_, "sm80", c, limits_)) ADD_FAILURE() << fault;
}

// Metadata that the host never sees: bad rows are skipped and the first is reported, the others keep their bits.
class EmulatedMetadata : public Emulated {
 protected:
  static constexpr int kSlots = 8, kTokens = 210, kWidth = 128;
  struct Raw {
    std::vector<int32_t> begin{0, 70, 140, 200}, in{0, 1, -1}, out{2, 3, 4}, ckpt_begin{0, 1, 2, 2}, depth{64, 64},
        slot{5, 6};
    int32_t rows_device = 3;
  };
  struct Result {
    std::vector<std::vector<float>> out, pool;
    std::vector<int32_t> status;
  };
  EmulatedMetadata() {
    p_.H = p_.HV = 1, p_.K = p_.V = kWidth, p_.io = p_.decay = DType::kBF16;
    p_.bounds = {4, kTokens, 4};
    w_ = make_weights(p_, 1);
    row_ = make_row(p_, {}, kTokens, 2);
  }
  Result run(const Raw& raw) {
    const KdaPlan plan = plan_kda(p_, stream_.info(), {.backend = "sm80", .extend_block_tokens = 64});
    GuardedTensor tensors[5], out(stream_, kTokens, kWidth, kWidth, p_.io),
        pool(stream_, kSlots, kWidth * kWidth, kWidth * kWidth, DType::kF32);
    const std::vector<float>* from[] = {&row_.q, &row_.k, &row_.v, &row_.decay, &row_.beta};
    for (int i = 0; i < 5; ++i) {
      const int64_t width = static_cast<int64_t>(from[i]->size()) / kTokens;
      tensors[i] = GuardedTensor(stream_, kTokens, width, width, i < 4 ? p_.io : p_.beta);
      for (int64_t t = 0; t < kTokens; ++t) tensors[i].fill_row(t, from[i]->data() + t * width);
      tensors[i].upload(stream_);
    }
    for (int s = 0; s < kSlots; ++s)
      pool.fill_row(s, std::vector<float>(kWidth * kWidth, static_cast<float>(s)).data());
    pool.upload(stream_);
    const DeviceArray<int32_t> begin(stream_, raw.begin), in(stream_, raw.in), out_slot(stream_, raw.out),
        ckpt_begin(stream_, raw.ckpt_begin), depth(stream_, raw.depth), slot(stream_, raw.slot),
        rows(stream_, {raw.rows_device}), status(stream_, {0, 0});
    const device::Buffer workspace = poisoned_buffer(stream_, plan.workspace_bytes());
    KdaExtendArgs a;
    a.q = tensors[0].const_tokens(), a.k = tensors[1].const_tokens(), a.v = tensors[2].const_tokens(),
    a.decay = tensors[3].const_tokens(), a.beta = tensors[4].const_tokens();
    a.out = out.tokens(), a.tokens = kTokens, a.A_log = w_.A_log.data(), a.dt_bias = w_.dt_bias.data(),
    a.workspace = workspace.data();
    KdaMetadata& m = a.metadata;
    m.seq_begin = begin.data(), m.state_in = in.data(), m.state_out = out_slot.data(), m.ckpt_begin = ckpt_begin.data(),
    m.ckpt_depth = depth.data(), m.ckpt_slot = slot.data(), m.rows = static_cast<int32_t>(raw.in.size()),
    m.rows_device = rows.data(), m.status = status.data();
    a.state_in = a.state_out = a.checkpoints = {pool.data(), DType::kF32, kSlots, kWidth * kWidth};
    run_kda(plan, a, stream_);
    Result r;
    out.download(stream_), pool.download(stream_);
    for (int t = 0; t < kTokens; ++t) r.out.push_back(out.row(t));
    for (int s = 0; s < kSlots; ++s) r.pool.push_back(pool.row(s));
    r.status = status.download(stream_);
    EXPECT_EQ(out.damage("out") + pool.damage("pool"), "");
    return r;
  }
  void expect_skipped(const Raw& raw, const std::vector<int>& bad, KdaRowStatus reason) {
    const Raw clean_raw;
    const Result clean = run(clean_raw), got = run(raw);
    EXPECT_EQ(clean.status[1], 0);
    EXPECT_EQ(got.status, (std::vector<int32_t>{bad[0], static_cast<int32_t>(reason)}));
    const std::vector<float> zeros(kWidth, 0.0f);
    std::vector<bool> written(kSlots, false);
    for (int i = 0; i < 3; ++i) {
      const bool skipped = std::count(bad.begin(), bad.end(), i) > 0;
      const size_t row = static_cast<size_t>(i);
      for (int t = clean_raw.begin[row]; t < clean_raw.begin[row + 1]; ++t)
        EXPECT_EQ(got.out[static_cast<size_t>(t)], skipped ? zeros : clean.out[static_cast<size_t>(t)]) << t;
      if (skipped) continue;
      written[static_cast<size_t>(clean_raw.out[row])] = true;
      for (int c = clean_raw.ckpt_begin[row]; c < clean_raw.ckpt_begin[row + 1]; ++c)
        written[static_cast<size_t>(clean_raw.slot[static_cast<size_t>(c)])] = true;
    }
    for (size_t s = 0; s < kSlots; ++s)
      EXPECT_EQ(got.pool[s], written[s] ? clean.pool[s] : std::vector<float>(kWidth * kWidth, static_cast<float>(s)))
          << "slot " << s;
    for (size_t t = 200; t < kTokens; ++t) EXPECT_EQ(got.out[t], zeros);
  }
  KdaProblem p_;
  KdaWeights w_;
  KdaRowData row_;
};

TEST_F(EmulatedMetadata, BadRowsAreSkipped) {
  Raw raw;
  raw.in[1] = kSlots;
  expect_skipped(raw, {1}, KdaRowStatus::kBadStateIn);
  raw = {}, raw.out[2] = -7;
  expect_skipped(raw, {2}, KdaRowStatus::kBadStateOut);
  raw = {}, raw.depth[1] = 96;
  expect_skipped(raw, {1}, KdaRowStatus::kBadCheckpoint);
  raw = {}, raw.slot[0] = kSlots;
  expect_skipped(raw, {0}, KdaRowStatus::kBadCheckpoint);
  raw = {}, raw.begin[3] = kTokens + 1;
  expect_skipped(raw, {2}, KdaRowStatus::kBadOffsets);
  raw = {}, raw.begin = {0, 70, 60, 200};  // row 1 ends before it begins, and row 2 begins inside row 0
  expect_skipped(raw, {1, 2}, KdaRowStatus::kBadOffsets);
  raw = {}, raw.ckpt_begin = {0, 3, 2, 2};  // row 0 has an entry that is not its own, row 1 steps back
  const Result got = run(raw);
  EXPECT_EQ(got.status, (std::vector<int32_t>{0, static_cast<int32_t>(KdaRowStatus::kBadCheckpoint)}));
}

TEST_F(EmulatedMetadata, FewerRowsThanTheBound) {
  Raw raw;
  raw.rows_device = 2;
  const Result clean = run(Raw{}), got = run(raw);
  EXPECT_EQ(got.status[1], 0);
  for (size_t t = 0; t < kTokens; ++t)
    EXPECT_EQ(got.out[t], t < 140 ? clean.out[t] : std::vector<float>(kWidth, 0.0f)) << t;
  raw.rows_device = 0;
  for (const std::vector<float>& row : run(raw).out) EXPECT_EQ(row, std::vector<float>(kWidth, 0.0f));
}

}  // namespace
}  // namespace testing
}  // namespace kadence::ops
