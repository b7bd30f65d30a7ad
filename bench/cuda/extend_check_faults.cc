// What extend does with metadata on the device that the host never saw, and that a call never waits for the device.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "bench/cuda/extend_check.h"
#include "ops/testing/guarded.h"

namespace kadence::ops::testing {
namespace {

constexpr int64_t kTokens = 600, kWidth = 2 * 128, kState = 2 * 128 * 128, kSlots = 24;

struct Metadata {
  std::vector<int32_t> begin{0, 100, 300, 300, 517};
  std::vector<int32_t> in{0, 1, 2, -1}, out{0, 5, 6, 7};
  std::vector<int32_t> ckpt_begin{0, 1, 3, 3, 6}, depth{64, 64, 192, 64, 128, 192}, slot{8, 9, 10, 11, 12, 13};
};
struct Outcome {
  std::vector<uint16_t> out;
  std::vector<float> pool;
  std::vector<int32_t> status;
};

class Bench {
 public:
  explicit Bench(device::Stream& stream) : stream_(stream) {
    KdaProblem p;
    p.phase = KdaPhase::kExtend;
    p.H = p.HV = 2, p.K = p.V = 128, p.io = p.decay = p.beta = DType::kBF16;
    p.bounds = {4, kTokens, 6};
    KdaOptions options;
    options.backend = backend;
    plan_ = plan_kda(p, stream.info(), options);
    base::Rng rng(7);
    const auto random = [&](int64_t n) {
      std::vector<uint16_t> v(static_cast<size_t>(n));
      for (uint16_t& x : v) x = base::f32_to_bf16(static_cast<float>(rng.normal()));
      return DeviceArray<uint16_t>(stream, v);
    };
    q_ = random(kTokens * kWidth), k_ = random(kTokens * kWidth), v_ = random(kTokens * kWidth),
    g_ = random(kTokens * kWidth), beta_ = random(kTokens * 2);
    for (int64_t i = 0; i < kSlots * kState; ++i) first_.push_back(static_cast<float>(rng.normal()));
    a_log_ = DeviceArray<float>(stream, {0.1f, -0.2f});
    workspace_ = device::Buffer::allocate(stream.info(), plan_.workspace_bytes());
  }
  // The pool and the output lie between guards of one slot and 64 tokens that nobody may touch.
  Outcome run(const Metadata& m, bool expect_return_at_once = false) {
    const DeviceArray<float> pool(stream_, guarded(first_, kState));
    const DeviceArray<uint16_t> out(
        stream_, guarded(std::vector<uint16_t>(static_cast<size_t>(kTokens * kWidth), 0x7fff), 64 * kWidth));
    const DeviceArray<int32_t> begin(stream_, m.begin), in(stream_, m.in), to(stream_, m.out),
        ckpt_begin(stream_, m.ckpt_begin), depth(stream_, m.depth), slot(stream_, m.slot), status(stream_, {-1, 0});
    KdaExtendArgs a;
    a.q = {q_.data(), kWidth}, a.k = {k_.data(), kWidth}, a.v = {v_.data(), kWidth}, a.decay = {g_.data(), kWidth},
    a.beta = {beta_.data(), 2}, a.A_log = a_log_.data(), a.out = {out.data() + 64 * kWidth, kWidth}, a.tokens = kTokens,
    a.workspace = workspace_.data();
    a.state_in = a.state_out = a.checkpoints = {pool.data() + kState, DType::kF32, kSlots, kState, 1, 0};
    a.metadata.seq_begin = begin.data(), a.metadata.state_in = in.data(), a.metadata.state_out = to.data();
    a.metadata.ckpt_begin = ckpt_begin.data(), a.metadata.ckpt_depth = depth.data(), a.metadata.ckpt_slot = slot.data();
    a.metadata.rows = 4, a.metadata.status = status.data();
    if (expect_return_at_once) {
      std::atomic<bool> go{false};
      const auto native = static_cast<cudaStream_t>(stream_.native());
      cudaLaunchHostFunc(
          native,
          [](void* flag) {
            while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
          },
          &go);
      const auto start = std::chrono::steady_clock::now();
      run_kda(plan_, a, stream_);
      returned_after_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      was_blocked_ = cudaStreamQuery(native) == cudaErrorNotReady;
      go = true;
    } else {
      run_kda(plan_, a, stream_);
    }
    Outcome o{out.download(stream_), pool.download(stream_), status.download(stream_)};
    return o;
  }
  double returned_after() const { return returned_after_; }
  bool was_blocked() const { return was_blocked_; }
  const std::vector<float>& first() const { return first_; }

 private:
  template <class T>
  static std::vector<T> guarded(std::vector<T> v, int64_t guard) {
    v.insert(v.begin(), static_cast<size_t>(guard), T(77));
    v.insert(v.end(), static_cast<size_t>(guard), T(77));
    return v;
  }
  device::Stream& stream_;
  KdaPlan plan_;
  DeviceArray<uint16_t> q_, k_, v_, g_, beta_;
  DeviceArray<float> a_log_;
  std::vector<float> first_;
  device::Buffer workspace_;
  double returned_after_ = 0;
  bool was_blocked_ = false;
};

// Rows in `bad` must have left nothing but zeros and a reason; the others must have the bits of a run without faults.
std::vector<std::string> judge(Bench& bench, const Metadata& m, const Outcome& good, const std::set<int>& bad,
                               KdaRowStatus reason) {
  std::vector<std::string> faults;
  const Metadata normal;
  const Outcome got = bench.run(m);
  if (!bad.count(got.status[0]) || got.status[1] != static_cast<int32_t>(reason))
    faults.push_back("status " + std::to_string(got.status[0]) + ", " + std::to_string(got.status[1]));
  std::vector<uint16_t> out(static_cast<size_t>((kTokens + 128) * kWidth), 77);
  std::fill(out.begin() + 64 * kWidth, out.end() - 64 * kWidth, uint16_t{0});
  std::vector<float> pool(static_cast<size_t>((kSlots + 2) * kState), 77.0f);
  std::copy(bench.first().begin(), bench.first().end(), pool.begin() + kState);
  const auto keep = [&](int slot) {
    if (slot >= 0) std::copy_n(good.pool.begin() + (slot + 1) * kState, kState, pool.begin() + (slot + 1) * kState);
  };
  for (int i = 0; i < 4; ++i) {
    if (bad.count(i)) continue;
    std::copy(good.out.begin() + (64 + normal.begin[i]) * kWidth,
              good.out.begin() + (64 + normal.begin[i + 1]) * kWidth, out.begin() + (64 + normal.begin[i]) * kWidth);
    keep(normal.out[i]);
    for (int c = normal.ckpt_begin[i]; c < normal.ckpt_begin[i + 1]; ++c) keep(normal.slot[c]);
  }
  if (got.out != out) faults.push_back("output");
  if (got.pool != pool) faults.push_back("states");
  return faults;
}

}  // namespace

void metadata_faults(device::Stream& stream) {
  Bench bench(stream);
  const Outcome good = bench.run({});
  if (good.status[0] != -1) report("faults: a good call", {"status " + std::to_string(good.status[0])});
  const auto expect = [&](const char* name, const std::set<int>& bad, KdaRowStatus reason, auto change) {
    Metadata m;
    change(m);
    report(std::string("faults: ") + name, judge(bench, m, good, bad, reason));
  };
  using S = KdaRowStatus;
  expect("an offset that steps back", {1, 2}, S::kBadOffsets, [](Metadata& m) { m.begin[2] = 50; });
  expect("a negative offset", {0}, S::kBadOffsets, [](Metadata& m) { m.begin[0] = -5; });
  expect("an offset past the tensors", {3}, S::kBadOffsets, [](Metadata& m) { m.begin[4] = 601; });
  expect("an offset far past the tensors", {3}, S::kBadOffsets, [](Metadata& m) { m.begin[4] = 0x7fffffff; });
  expect("a state_in past the pool", {1}, S::kBadStateIn, [](Metadata& m) { m.in[1] = 24; });
  expect("a state_in below -1", {1}, S::kBadStateIn, [](Metadata& m) { m.in[1] = -2; });
  expect("a state_out past the pool", {0}, S::kBadStateOut, [](Metadata& m) { m.out[0] = 1 << 30; });
  expect("a checkpoint off the grid", {1}, S::kBadCheckpoint, [](Metadata& m) { m.depth[1] = 70; });
  expect("a checkpoint past the row", {0}, S::kBadCheckpoint, [](Metadata& m) { m.depth[0] = 128; });
  expect("a checkpoint at 0", {3}, S::kBadCheckpoint, [](Metadata& m) { m.depth[3] = 0; });
  expect("checkpoints that descend", {3}, S::kBadCheckpoint, [](Metadata& m) { m.depth[4] = 64; });
  expect("a checkpoint slot past the pool", {3}, S::kBadCheckpoint, [](Metadata& m) { m.slot[5] = 24; });
  // Row 2 then has checkpoints, and no tokens.
  expect("a checkpoint list that steps back", {1, 2}, S::kBadCheckpoint, [](Metadata& m) { m.ckpt_begin[2] = 0; });
  expect("a checkpoint list past its end", {3}, S::kBadCheckpoint, [](Metadata& m) { m.ckpt_begin[4] = 1000; });
  std::printf("faults: done\n");
}

void returns_at_once(device::Stream& stream) {
  Bench bench(stream);
  const Outcome good = bench.run({});
  const Outcome got = bench.run({}, true);
  std::vector<std::string> faults;
  if (!bench.was_blocked()) faults.push_back("the stream was not blocked");
  if (bench.returned_after() > 0.01)
    faults.push_back("returned after " + std::to_string(bench.returned_after()) + " s");
  if (got.out != good.out || got.pool != good.pool) faults.push_back("another result");
  report("a call on a blocked stream", faults);
  std::printf("blocked stream: the call returned after %.1f us\n", bench.returned_after() * 1e6);
}

}  // namespace kadence::ops::testing
