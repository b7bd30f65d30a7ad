// Plans, the table of backends, host metadata: what is refused, by which name, and what the upload leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "ops/kda_table.h"
#include "ops/testing/kda_batch.h"

namespace kadence::ops::testing {
namespace {

using ::testing::HasSubstr;

KdaProblem small() {
  KdaProblem p;
  p.H = p.HV = 1, p.K = p.V = 16;
  p.bounds = {4, 512, 8};
  return p;
}
const device::DeviceInfo& cpu() {
  static const device::DeviceInfo info = device::cpu_info(2);
  return info;
}
// The message of the Error that `f` throws, with its code in front.
std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return std::string(base::to_string(e.code())) + ": " + e.what();
  }
  return "nothing was refused";
}
std::string refused(const std::function<void(KdaProblem&)>& change, KdaOptions options = {}) {
  KdaProblem p = small();
  change(p);
  return refusal([&] { plan_kda(p, cpu(), options); });
}

TEST(Plan, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(refused([](KdaProblem& p) { p.H = 0; }), HasSubstr("KdaProblem::H"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.H = 2, p.HV = 3; }), HasSubstr("HV"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.K = 0; }), HasSubstr("KdaProblem::K"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.io = DType::kI32; }), HasSubstr("io"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.io = DType::kBF16, p.decay = DType::kF16; }), HasSubstr("decay"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.beta = DType::kF16; }), HasSubstr("beta"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.state_in = DType::kF64; }), HasSubstr("state_in"));
  for (float lb : {0.0f, 1.0f, -INFINITY, NAN})
    EXPECT_THAT(refused([&](KdaProblem& p) { p.lower_bound = lb; }), HasSubstr("lower_bound")) << lb;
  EXPECT_THAT(refused([](KdaProblem& p) { p.scale = NAN; }), HasSubstr("scale"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.bounds.max_rows = -1; }), HasSubstr("max_rows"));
  EXPECT_THAT(refused([](KdaProblem& p) { p.phase = KdaPhase::kStep; }), HasSubstr("max_checkpoints"));
  for (int D : {0, -1, kMaxDraftTokens + 1})
    EXPECT_THAT(refused([&](KdaProblem& p) { p.phase = KdaPhase::kVerify, p.bounds.max_checkpoints = 0, p.D = D; }),
                HasSubstr("KdaProblem::D"));
  EXPECT_THAT(refused([](KdaProblem& p) {
                p.phase = KdaPhase::kVerify, p.bounds.max_checkpoints = 0, p.D = 2, p.state_out = DType::kBF16;
              }),
              HasSubstr("state_out"));
  EXPECT_THAT(refused([](KdaProblem&) {}, {.backend = "tpu"}), HasSubstr("wanted auto, cpu, reference, got tpu"));
}

// Blocks are multiples of the 64-token grid: others are refused, not rounded, so that what is asked is what runs.
TEST(Plan, BlocksOffTheGridAreRefused) {
  for (int block : {1, 16, 63, 65, 100, -64})
    EXPECT_THAT(refused([](KdaProblem&) {}, {.extend_block_tokens = block}), HasSubstr("0 or a multiple of 64"))
        << block;
  EXPECT_EQ(plan_kda(small(), cpu(), {.extend_block_tokens = 192}).block_tokens(), 192);
  EXPECT_GT(plan_kda(small(), cpu()).block_tokens(), 0);
}

TEST(Plan, RefusalListsWhatWasAskedWhatIsLackingAndTheSwitch) {
  const std::string text = refused([](KdaProblem& p) { p.K = 40, p.phase = KdaPhase::kExtend; }, {.backend = "cpu"});
  EXPECT_THAT(text, HasSubstr("K=40"));
  EXPECT_THAT(text, HasSubstr("multiples of 16"));
  EXPECT_THAT(text, HasSubstr("--linear-attn-prefill-backend"));
  const std::string fused =
      refused([](KdaProblem& p) { p.phase = KdaPhase::kStep, p.bounds.max_checkpoints = 0, p.fused_step = true; });
  EXPECT_THAT(fused, HasSubstr("fused step"));
  EXPECT_THAT(fused, HasSubstr("--linear-attn-decode-backend"));
  // The reference could, but it runs only when it is named.
  EXPECT_THAT(refused([](KdaProblem& p) { p.K = 40; }), HasSubstr("only when named"));
  KdaProblem odd = small();
  odd.K = 40;
  EXPECT_EQ(plan_kda(odd, cpu(), {.backend = "reference"}).backend(), "reference");
}

TEST(Plan, AutoTakesCpuAndForcingProvesWhichRuns) {
  EXPECT_EQ(plan_kda(small(), cpu()).backend(), "cpu");
  EXPECT_EQ(plan_kda(small(), cpu(), {.backend = "reference"}).backend(), "reference");
  EXPECT_EQ(plan_kda(small(), cpu()).isa(), cpu().isa);
  EXPECT_EQ(plan_kda(small(), device::cpu_info(1, device::Isa::kBaseline)).isa(), device::Isa::kBaseline);
  EXPECT_EQ(plan_kda(small(), cpu()).scale(), 0.25f);
}

TEST(Registry, EveryLineSaysWhatItIs) {
  EXPECT_GE(kda_backends().size(), 2u);
  for (const KdaBackendInfo& info : kda_backends()) {
    EXPECT_NE(std::string(info.summary), "");
    EXPECT_EQ(find_kda_backend(info.name)->info.name, info.name);
    if (info.kind == device::DeviceKind::kCuda) {
      EXPECT_THAT(kda_backend_misses(info.name, small(), cpu())[0], HasSubstr("a CPU"));
    }
  }
  EXPECT_THAT(kda_backend_misses("nothing", small(), cpu())[0], HasSubstr("nothing"));
  device::DeviceInfo gpu;
  gpu.kind = device::DeviceKind::kCuda;
  EXPECT_THAT(kda_backend_misses("cpu", small(), gpu)[0], HasSubstr("CUDA"));
}

// A batch with checkpoints cannot reach a plan that was made without.
TEST(Registry, TrackedBatchNeedsAPlanWithCheckpoints) {
  device::Stream s = device::Stream::cpu(1);
  KdaProblem p = small();
  p.bounds.max_checkpoints = 0;
  const KdaPlan plan = plan_kda(p, s.info());
  const std::vector<int64_t> begin{0, 64};
  const std::vector<int32_t> none{-1}, ckpt{0, 1}, depth{64}, slot{0};
  KdaHostMetadata m;
  m.seq_begin = begin, m.state_in = none, m.state_out = none, m.ckpt_begin = ckpt, m.ckpt_depth = depth,
  m.ckpt_slot = slot, m.tokens = 64, m.ckpt_slots = 1;
  EXPECT_THAT(refusal([&] { validate(plan, m); }), HasSubstr("max_checkpoints = 0"));
  KdaExtendArgs a;
  int32_t dummy[2] = {};
  a.metadata.rows = 1, a.metadata.seq_begin = dummy, a.metadata.state_in = dummy, a.metadata.state_out = dummy,
  a.metadata.ckpt_begin = dummy;
  const device::Buffer workspace = device::Buffer::allocate(s.info(), plan.workspace_bytes());
  a.workspace = workspace.data();
  EXPECT_THAT(refusal([&] { run_kda(plan, a, s); }), HasSubstr("ckpt_begin"));
}

struct Host {
  std::vector<int64_t> begin{0, 70, 200};
  std::vector<int32_t> in{0, -1}, out{1, 2}, ckpt_begin{0, 1, 3}, depth{64, 64, 128}, slot{3, 4, -1};
  int64_t tokens = 200, slots = 8;
  bool same_pool = true;
  KdaHostMetadata view() const {
    KdaHostMetadata m;
    m.seq_begin = begin, m.state_in = in, m.state_out = out, m.ckpt_begin = ckpt_begin, m.ckpt_depth = depth,
    m.ckpt_slot = slot;
    m.tokens = tokens, m.state_in_slots = m.state_out_slots = m.ckpt_slots = slots, m.same_pool = same_pool;
    return m;
  }
};
std::string bad(const std::function<void(Host&)>& change) {
  Host h;
  change(h);
  const KdaPlan plan = plan_kda(small(), cpu());
  return refusal([&] { validate(plan, h.view()); });
}

TEST(Metadata, RefusesByRowAndField) {
  EXPECT_EQ(bad([](Host&) {}), "nothing was refused");
  EXPECT_THAT(bad([](Host& h) { h.begin = {0, 70, 60}; }), HasSubstr("row 1, seq_begin"));
  EXPECT_THAT(bad([](Host& h) { h.begin = {0, 70, 201}; }), HasSubstr("row 1, seq_begin"));
  EXPECT_THAT(bad([](Host& h) { h.begin = {1, 70, 200}; }), HasSubstr("row 0, seq_begin"));
  EXPECT_THAT(bad([](Host& h) { h.begin = {}; }), HasSubstr("seq_begin"));
  EXPECT_THAT(bad([](Host& h) { h.in = {0}; }), HasSubstr("state_in"));
  EXPECT_THAT(bad([](Host& h) { h.in[1] = 8; }), HasSubstr("row 1, state_in"));
  EXPECT_THAT(bad([](Host& h) { h.in[0] = -2; }), HasSubstr("row 0, state_in"));
  EXPECT_THAT(bad([](Host& h) { h.out[1] = 1 << 30; }), HasSubstr("row 1, state_out"));
  EXPECT_THAT(bad([](Host& h) { h.depth[0] = 63; }),
              HasSubstr("row 0, ckpt_depth: wanted a positive multiple of 64, got 63"));
  EXPECT_THAT(bad([](Host& h) { h.depth[0] = 0; }), HasSubstr("row 0, ckpt_depth"));
  EXPECT_THAT(bad([](Host& h) { h.depth[0] = 128; }), HasSubstr("at most the row's length 70"));
  EXPECT_THAT(bad([](Host& h) { h.depth[2] = 64; }),
              HasSubstr("row 1, ckpt_depth: wanted more than the depth before it"));
  EXPECT_THAT(bad([](Host& h) { h.slot[1] = 8; }), HasSubstr("row 1, ckpt_slot"));
  EXPECT_THAT(bad([](Host& h) { h.ckpt_begin = {0, 1, 2}; }), HasSubstr("ckpt_begin"));
  EXPECT_THAT(bad([](Host& h) { h.tokens = 513; }), HasSubstr("max_tokens = 512"));
  EXPECT_THAT(bad([](Host& h) { h.out[1] = 1; }), HasSubstr("row 1, state_out"));  // two writers
  EXPECT_THAT(bad([](Host& h) { h.slot[1] = 2; }), HasSubstr("row 1"));            // checkpoint into a state_out
  EXPECT_THAT(bad([](Host& h) { h.in[1] = 1; }), HasSubstr("row 1, state_in"));    // reads what row 0 writes
  EXPECT_EQ(bad([](Host& h) { h.in[1] = 2; }), "nothing was refused");             // its own
  EXPECT_EQ(bad([](Host& h) { h.in[1] = 0; }), "nothing was refused");             // a shared one that nobody writes
  EXPECT_EQ(bad([](Host& h) { h.in[1] = 1, h.same_pool = false; }), "nothing was refused");
  EXPECT_EQ(bad([](Host& h) {
              h.begin = {0, 64, 200}, h.depth[0] = 64;
            }),
            "nothing was refused");  // the final boundary
  EXPECT_THAT(
      bad([](Host& h) {
        h.begin = {0, 1, 2, 3, 4, 5}, h.in = h.out = {-1, -1, -1, -1, -1}, h.ckpt_begin = {}, h.depth = {}, h.slot = {};
      }),
      HasSubstr("max_rows = 4"));
}

TEST(Metadata, ViewDependsOnBufferAndBoundsOnly) {
  device::Stream s = device::Stream::cpu(1);
  for (bool wide : {false, true}) {
    KdaProblem p = small();
    p.seq_int64 = wide;
    const KdaPlan plan = plan_kda(p, s.info());
    const device::Buffer buffer = poisoned_buffer(s, plan.metadata_bytes() + 64);
    const Host two;
    Host one;
    one.begin = {0, 5}, one.in = {-1}, one.out = {3}, one.ckpt_begin = {}, one.depth = {}, one.slot = {};
    const KdaMetadata a = upload(plan, two.view(), buffer.data(), s);
    EXPECT_EQ(*a.rows_device, 2);
    EXPECT_EQ(a.ckpt_begin[2], 3);
    EXPECT_EQ(a.ckpt_depth[2], 128);
    const KdaMetadata b = upload(plan, one.view(), buffer.data(), s);
    EXPECT_EQ(a.seq_begin, b.seq_begin);
    EXPECT_EQ(a.ckpt_slot, b.ckpt_slot);
    EXPECT_EQ(a.rows, b.rows);
    EXPECT_EQ(*b.rows_device, 1);
    // Rows up to the bound are empty and without slots.
    for (int i = 1; i <= 4; ++i)
      EXPECT_EQ(wide ? static_cast<const int64_t*>(b.seq_begin)[i] : static_cast<const int32_t*>(b.seq_begin)[i], 5);
    for (int i = 1; i < 4; ++i) EXPECT_EQ(b.state_out[i], -1);
    EXPECT_EQ(b.ckpt_begin[4], 0);
    // Nothing is written past metadata_bytes.
    for (size_t i = plan.metadata_bytes(); i < buffer.size(); ++i) EXPECT_EQ(buffer.as<unsigned char>()[i], 0xff);
  }
}

TEST(Run, RefusesBadArguments) {
  device::Stream s = device::Stream::cpu(1);
  KdaProblem p = small();
  p.bounds.max_checkpoints = 0;
  const KdaPlan plan = plan_kda(p, s.info());
  alignas(256) static float memory[64 * 64];
  static int32_t ints[2] = {0, 4};
  const device::Buffer workspace = device::Buffer::allocate(s.info(), plan.workspace_bytes());
  const auto attempt = [&](const std::function<void(KdaExtendArgs&)>& change) {
    KdaExtendArgs a;
    a.q = {memory, 16}, a.k = {memory, 16}, a.v = {memory, 16}, a.decay = {memory, 16}, a.beta = {memory, 1};
    a.out = {memory + 512, 16}, a.A_log = memory, a.tokens = 4, a.workspace = workspace.data();
    a.metadata.rows = 1, a.metadata.seq_begin = ints;
    static int32_t none[1] = {-1};
    a.metadata.state_in = a.metadata.state_out = none;
    change(a);
    return refusal([&] { run_kda(plan, a, s); });
  };
  EXPECT_EQ(attempt([](KdaExtendArgs&) {}), "nothing was refused");
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.q.data = nullptr; }), HasSubstr("q"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.k.data = memory + 1; }), HasSubstr("aligned to 16 bytes"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.v.pitch = 15; }), HasSubstr("v pitch"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.v.pitch = 17; }), HasSubstr("multiple of 16 bytes"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.out.data = memory; }), HasSubstr("out"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.A_log = nullptr; }), HasSubstr("A_log"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.workspace = nullptr; }), HasSubstr("workspace"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.workspace = static_cast<char*>(a.workspace) + 16; }),
              HasSubstr("aligned to 256"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.tokens = 513; }), HasSubstr("tokens"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.metadata.rows = 5; }), HasSubstr("rows"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) { a.metadata.seq_begin = nullptr; }), HasSubstr("seq_begin"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) {
                a.state_in = {memory, DType::kBF16, 1, 256};
              }),
              HasSubstr("state_in dtype"));
  EXPECT_THAT(attempt([](KdaExtendArgs& a) {
                a.state_out = {memory, DType::kF32, 2, 255};
              }),
              HasSubstr("state_out slot_pitch"));
  device::Stream more = device::Stream::cpu(3);
  KdaExtendArgs a;
  a.workspace = workspace.data();
  EXPECT_THAT(refusal([&] { run_kda(plan, a, more); }), HasSubstr("threads"));
}

}  // namespace
}  // namespace kadence::ops::testing
