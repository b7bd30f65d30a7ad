// Correctness of extend on a CUDA device: the conformance table against float64, then what must hold to the bit.
//   extend_check [all | quick | bits | graph | faults | repeat N] [--backend NAME]
#include "bench/cuda/extend_check.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>

#include "base/error.h"
#include "base/rng.h"
#include "ops/testing/compare.h"
#include "ops/testing/kda_conformance.h"
#include "ops/testing/kda_oracle.h"

namespace kadence::ops::testing {
namespace {

int failures = 0;

}  // namespace

void report(const std::string& name, const std::vector<std::string>& faults) {
  if (faults.empty()) return;
  ++failures;
  std::printf("FAIL %s: %zu faults\n", name.c_str(), faults.size());
  for (size_t i = 0; i < faults.size() && i < 3; ++i) std::printf("     %s\n", faults[i].c_str());
}

namespace {

void conformance(device::Stream& stream, const char* title, const std::vector<KdaCase>& cases, bool verbose) {
  const KdaLimits limits = limits_of(backend);
  Measured worst;
  const int before = failures;
  const auto start = std::chrono::steady_clock::now();
  for (const KdaCase& c : cases) {
    Measured m;
    report(c.name, check_case(stream, backend, c, limits, &m));
    if (verbose)
      std::printf("%-44s out %.2e state %.2e checkpoint %.2e\n", c.name.c_str(), m.out, m.state, m.checkpoint);
    worst.out = std::fmax(worst.out, m.out), worst.state = std::fmax(worst.state, m.state),
    worst.checkpoint = std::fmax(worst.checkpoint, m.checkpoint);
  }
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s: %zu cases, %d failed, worst out %.2e state %.2e checkpoint %.2e, %.1f s\n", title, cases.size(),
              failures - before, worst.out, worst.state, worst.checkpoint, s);
  std::fflush(stdout);
}

// A row alone, in batches, at several block sizes and split on the grid: the same bits. Checkpoints are prefix states.
void bits(device::Stream& stream) {
  const int before = failures;
  for (KdaGate gate : {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kGivenLogDecay}) {
    for (GateFamily family : {GateFamily::kNormal, GateFamily::kExtreme}) {
      KdaProblem p;
      p.H = p.HV = 3, p.K = p.V = 128, p.io = p.decay = DType::kBF16, p.gate = gate;
      const KdaWeights w = make_weights(p, 11);
      KdaFamilies f;
      f.gate = family;
      std::vector<KdaRowData> data;
      for (int64_t n : {777, 1, 64, 0, 320, 1500, 33}) data.push_back(make_row(p, f, n, 40 + data.size()));
      for (KdaRowData& r : data)
        for (int32_t d = 64; d <= r.len; d += 64) r.checkpoints.push_back(d);
      BatchLayout layout;
      layout.options.backend = backend;
      std::vector<const KdaRowData*> all;
      for (const KdaRowData& r : data) all.push_back(&r);
      const BatchResult batch = run_extend(stream, p, w, all, layout);
      report("batch", batch.faults);
      const std::string tag = std::to_string(static_cast<int>(gate)) + "/" + to_string(family);
      for (size_t i = 0; i < data.size(); ++i) {
        const BatchResult alone = run_extend(stream, p, w, {&data[i]}, layout);
        report("alone", alone.faults);
        if (!(alone.rows[0] == batch.rows[i])) report("bits: row alone " + tag, {"row " + std::to_string(i)});
      }
      std::vector<const KdaRowData*> many;
      for (int k = 0; k < 30; ++k) many.push_back(&data[(k * 5) % data.size()]);
      for (int block : {64, 256}) {
        BatchLayout l = layout;
        l.options.extend_block_tokens = block;
        const BatchResult got = run_extend(stream, p, w, many, l);
        report("many", got.faults);
        for (int k = 0; k < 30; ++k)
          if (!(got.rows[k] == batch.rows[(k * 5) % data.size()]))
            report("bits: batch of 30 " + tag, {"row " + std::to_string(k) + " block " + std::to_string(block)});
      }
      const KdaRowData& row = data[0];
      for (int64_t cut : {64, 320, 704, 768}) {
        KdaRowData head = slice_row(p, row, 0, cut, row.state);
        const BatchResult a = run_extend(stream, p, w, {&head}, layout);
        if (a.rows[0].state != batch.rows[0].checkpoints[cut / 64 - 1])
          report("bits: checkpoint is the prefix state " + tag, {"cut " + std::to_string(cut)});
        KdaRowData tail = slice_row(p, row, cut, row.len, a.rows[0].state);
        const BatchResult b = run_extend(stream, p, w, {&tail}, layout);
        if (b.rows[0].state != batch.rows[0].state) report("bits: split state " + tag, {"cut " + std::to_string(cut)});
        const std::vector<float> want(batch.rows[0].out.begin() + cut * p.HV * p.V, batch.rows[0].out.end());
        if (b.rows[0].out != want) report("bits: split out " + tag, {"cut " + std::to_string(cut)});
      }
    }
  }
  std::printf("bits: %d failed\n", failures - before);
}

// One batch again and again: one hash.
void repeat(device::Stream& stream, int times) {
  KdaProblem p;
  p.H = p.HV = 64, p.K = p.V = 128, p.io = p.decay = DType::kBF16;
  const KdaWeights w = make_weights(p, 11);
  std::vector<KdaRowData> data;
  for (int64_t n : {200, 65, 130}) data.push_back(make_row(p, {}, n, 40 + data.size()));
  std::vector<const KdaRowData*> all;
  for (const KdaRowData& r : data) all.push_back(&r);
  BatchLayout layout;
  layout.options.backend = backend;
  const BatchResult first = run_extend(stream, p, w, all, layout);
  int different = 0;
  for (int i = 0; i < times; ++i) different += !(run_extend(stream, p, w, all, layout).rows == first.rows);
  std::printf("repeat: %d of %d runs differ\n", different, times);
  failures += different != 0;
}

// A captured call replays with other offsets, slots and checkpoints, and a call never synchronises (capture would
// fail).
void graph(device::Stream& stream) {
  KdaProblem p;
  p.phase = KdaPhase::kExtend;
  p.H = p.HV = 2, p.K = p.V = 128, p.io = p.decay = p.beta = DType::kBF16;
  const int64_t tokens = 600, width = p.HV * 128, state = p.HV * 128 * 128, slots = 24;
  p.bounds = {5, tokens, 16};
  KdaOptions options;
  options.backend = backend;
  const KdaPlan plan = plan_kda(p, stream.info(), options);
  base::Rng rng(5);
  const auto random = [&](int64_t n, float scale) {
    std::vector<uint16_t> v(static_cast<size_t>(n));
    for (uint16_t& x : v) x = base::f32_to_bf16(scale * static_cast<float>(rng.normal()));
    return DeviceArray<uint16_t>(stream, v);
  };
  const auto q = random(tokens * width, 1), k = random(tokens * width, 1), v = random(tokens * width, 1),
             g = random(tokens * width, 1), beta = random(tokens * p.HV, 1);
  std::vector<float> first(static_cast<size_t>(slots * state));
  for (float& x : first) x = static_cast<float>(rng.normal());
  const DeviceArray<float> a_log(stream, {0.1f, -0.2f});
  struct Set {
    std::vector<int64_t> begin;
    std::vector<int32_t> in, out, ckpt_begin, depth, slot;
  };
  const Set sets[] = {
      {{0, 100, 300, 300, 517},
       {0, 1, 2, -1},
       {0, 5, 6, 7},
       {0, 1, 3, 3, 6},
       {64, 64, 192, 64, 128, 192},
       {8, 9, 10, 11, 12, 13}},
      {{0, 600}, {3}, {14}, {0, 2}, {320, 576}, {15, -1}},
      {{0, 1, 65, 97, 161, 162}, {0, 1, 2, 3, -1}, {0, 1, 2, 3, -1}, {0, 0, 1, 1, 2, 2}, {64, 64}, {20, 21}},
      {{0, 0}, {4}, {5}, {0, 0}, {}, {}}};
  device::Buffer metadata = poisoned_buffer(stream, plan.metadata_bytes()),
                 workspace = poisoned_buffer(stream, plan.workspace_bytes());
  device::Buffer out = poisoned_buffer(stream, static_cast<size_t>(tokens * width) * 2),
                 pool = poisoned_buffer(stream, first.size() * 4);
  KdaExtendArgs a;
  a.q = {q.data(), width}, a.k = {k.data(), width}, a.v = {v.data(), width}, a.decay = {g.data(), width},
  a.beta = {beta.data(), p.HV};
  a.A_log = a_log.data(), a.out = {out.data(), width}, a.tokens = tokens, a.workspace = workspace.data();
  a.state_in = a.state_out = a.checkpoints = {pool.data(), DType::kF32, slots, state, 1, 0};
  const auto put = [&](const Set& s) {
    KdaHostMetadata m;
    m.seq_begin = s.begin, m.state_in = s.in, m.state_out = s.out, m.ckpt_begin = s.ckpt_begin, m.ckpt_depth = s.depth,
    m.ckpt_slot = s.slot;
    m.tokens = tokens, m.state_in_slots = m.state_out_slots = m.ckpt_slots = slots;
    a.metadata = upload(plan, m, metadata.data(), stream);
    device::copy_async(pool.data(), first.data(), first.size() * 4, stream);
    device::fill_async(out.data(), 0xff, out.size(), stream);
  };
  const auto result = [&] {
    std::vector<char> r(out.size() + pool.size());
    device::copy_async(r.data(), out.data(), out.size(), stream);
    device::copy_async(r.data() + out.size(), pool.data(), pool.size(), stream);
    stream.synchronize();
    return r;
  };
  const auto native = static_cast<cudaStream_t>(stream.native());
  const auto ok = [](cudaError_t e) {
    if (e != cudaSuccess) base::throw_error(base::ErrorCode::kDevice, cudaGetErrorString(e));
  };
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  put(sets[0]);
  ok(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  run_kda(plan, a, stream);
  ok(cudaStreamEndCapture(native, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  const int before = failures;
  for (size_t i = 0; i < 2 * std::size(sets); ++i) {
    const Set& s = sets[i % std::size(sets)];
    put(s);
    run_kda(plan, a, stream);
    const std::vector<char> want = result();
    put(s);
    ok(cudaGraphLaunch(exec, native));
    if (result() != want) report("graph replay", {"set " + std::to_string(i)});
    const uint16_t* o = reinterpret_cast<const uint16_t*>(want.data());
    for (int64_t t = s.begin.back() * width; t < tokens * width; ++t)
      if (o[t] != 0) {
        report("graph tail", {"set " + std::to_string(i)});
        break;
      }
  }
  ok(cudaGraphExecDestroy(exec));
  ok(cudaGraphDestroy(graph));
  std::printf("graph: %d failed\n", failures - before);
}

int run(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i)
    if (!std::strcmp(argv[i], "--backend")) backend = argv[i + 1], argc = i;
  const std::string mode = argc > 1 ? argv[1] : "all";
  device::Stream stream = device::Stream::cuda(0);
  KdaLimits limits = limits_of(backend);
  if (backend != "sm90") limits.io.push_back(DType::kF16);
  if (mode == "quick") {
    std::vector<KdaCase> some;
    const std::vector<KdaCase> all = family_cases(limits);
    for (size_t i = 0; i < all.size(); i += 9) some.push_back(all[i]);
    conformance(stream, "quick", some, true);
  }
  if (mode == "all") {
    conformance(stream, "families", family_cases(limits), true);
    conformance(stream, "lengths", length_cases(limits), false);
    conformance(stream, "pairwise", pairwise_cases(limits), false);
  }
  if (mode == "all" || mode == "bits") bits(stream);
  if (mode == "all" || mode == "graph") graph(stream);
  if (mode == "all" || mode == "faults") metadata_faults(stream), returns_at_once(stream);
  if (mode == "repeat") repeat(stream, argc > 2 ? std::atoi(argv[2]) : 100);
  std::printf(failures ? "extend_check: %d FAILED\n" : "extend_check: all passed\n", failures);
  return failures != 0;
}

}  // namespace
}  // namespace kadence::ops::testing

int main(int argc, char** argv) {
  try {
    return kadence::ops::testing::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("extend_check: %s\n", e.what());
    return 2;
  }
}
