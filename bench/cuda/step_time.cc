// Times step, fused step, verify and commit in CUDA graphs beside a device copy of the same bytes, in one run.
// `step_time [out.jsonl] [sweep]`; with `sweep` every launch shape is timed, else the plan's choice;
// `profile` launches a few kernels without graphs, for ncu.
//
// Each graph holds launches over enough distinct sets of slots that no state is still in the L2 when its turn comes
// round; the figure is the median over replays of the time per launch. The copy moves a set's states to another set's
// place, so that it reads and writes as much as a step does.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/conv1d.h"
#include "ops/cuda/common/check.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/verify_commit/config.h"
#include "ops/kda.h"

namespace {

using namespace kadence;       // NOLINT
using namespace kadence::ops;  // NOLINT
using ops::cuda::check;
namespace sm90 = ops::cuda::sm90;

constexpr int K = 128;

struct Bench {
  device::Stream stream = device::Stream::cuda(0);
  FILE* json = nullptr;
  bool profile = false;  // plain launches instead of graphs, for ncu
  cudaStream_t native() { return static_cast<cudaStream_t>(stream.native()); }

  // Median microseconds per launch of a graph of `launches` calls of f(i).
  double time(int launches, const std::function<void(int)>& f, int replays = 15) {
    if (profile) {
      for (int i = 0; i < 3; ++i) f(i);
      stream.synchronize();
      return 1;
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; ++i) f(i);
    check(cudaStreamEndCapture(native(), &graph), "end capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    std::vector<float> ms;
    for (int r = 0; r < replays + 2; ++r) {
      cudaEventRecord(a, native());
      check(cudaGraphLaunch(exec, native()), "replay");
      cudaEventRecord(b, native());
      check(cudaEventSynchronize(b), "replay");
      float t;
      cudaEventElapsedTime(&t, a, b);
      if (r >= 2) ms.push_back(t);
    }
    cudaEventDestroy(a), cudaEventDestroy(b), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
    return 1e3 * ms[ms.size() / 2] / launches;
  }
};

struct Memory {
  std::vector<device::Buffer> all;
  device::Stream& stream;
  explicit Memory(device::Stream& s) : stream(s) {}
  // Small normal-looking values: bytes of a repeated pattern of floats in (-1, 1) of the type.
  void* fill(size_t count, DType t) {
    all.push_back(device::Buffer::allocate(stream.info(), count * base::size_of(t) + 256));
    static std::vector<char> pattern;
    const size_t chunk = 1 << 20;
    std::vector<char> bytes(chunk * base::size_of(t));
    uint64_t x = 88172645463325252ull + all.size();
    for (size_t i = 0; i < chunk; ++i) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      base::store_f32(bytes.data(), static_cast<int64_t>(i), t,
                      static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) * 0x1p-23f);
    }
    const size_t total = count * base::size_of(t);
    // Doubles what is there until it is full.
    size_t done = std::min(total, bytes.size());
    device::copy_async(all.back().data(), bytes.data(), done, stream);
    stream.synchronize();
    while (done < total) {
      const size_t n = std::min(done, total - done);
      device::copy_async(all.back().as<char>() + done, all.back().data(), n, stream);
      done += n;
    }
    stream.synchronize();
    return all.back().data();
  }
  int32_t* ints(const std::vector<int32_t>& v) {
    all.push_back(device::Buffer::allocate(stream.info(), v.size() * 4 + 256));
    device::copy_async(all.back().data(), v.data(), v.size() * 4, stream);
    stream.synchronize();
    return all.back().as<int32_t>();
  }
};

struct Shape {
  int N, H;
  double fla_us;  // fused_recurrent_kda on an H200, 0 = not measured
};

void run_shape(Bench& b, const Shape& s, DType state, bool sweep, std::vector<std::string>& table) {
  const int heads = s.N * s.H;
  const size_t head_bytes = K * K * base::size_of(state), set_bytes = head_bytes * static_cast<size_t>(heads);
  const int sets =
      static_cast<int>(std::max<size_t>(2, std::min<size_t>(512, ((size_t{400} << 20) + set_bytes - 1) / set_bytes)));
  const int launches = std::max(sets, 6);
  const int64_t n = int64_t{s.H} * K * K;
  const int channels = 3 * s.H * K, D = 8;
  Memory m(b.stream);
  char* pool =
      static_cast<char*>(m.fill(static_cast<size_t>(sets) * static_cast<size_t>(s.N) * static_cast<size_t>(n), state));
  std::vector<int32_t> slots;
  for (int i = 0; i < sets * s.N; ++i)
    slots.push_back(static_cast<int32_t>(static_cast<int64_t>(i % s.N) * sets + i / s.N));  // a set's slots lie apart
  const int32_t* d_slots = m.ints(slots);
  const int64_t T = int64_t{s.N} * D;
  const DType io = DType::kBF16;
  KdaStepArgs a;
  a.q = {m.fill(static_cast<size_t>(T * s.H * K), io), s.H * K},
  a.k = {m.fill(static_cast<size_t>(T * s.H * K), io), s.H * K};
  a.v = {m.fill(static_cast<size_t>(T * s.H * K), io), s.H * K},
  a.decay = {m.fill(static_cast<size_t>(T * s.H * K), io), s.H * K};
  a.beta = {m.fill(static_cast<size_t>(T * s.H), DType::kBF16), s.H};
  a.out = {m.fill(static_cast<size_t>(T * s.H * K), io), s.H * K};
  a.A_log = static_cast<float*>(m.fill(static_cast<size_t>(s.H), DType::kF32)),
  a.dt_bias = static_cast<float*>(m.fill(static_cast<size_t>(s.H * K), DType::kF32));
  a.rows = s.N;
  StateView view;
  view.base = pool, view.dtype = state, view.slots = int64_t{sets} * s.N, view.slot_pitch = n;
  a.state_in = a.state_out = view;
  WindowView windows;
  windows.dtype = io, windows.slots = view.slots, windows.slot_pitch = 3 * channels;
  windows.base = m.fill(static_cast<size_t>(view.slots) * 3 * channels, io);
  a.fused.x = {m.fill(static_cast<size_t>(T) * channels, io), channels}, a.fused.z = a.v;
  a.fused.conv_weight = static_cast<float*>(m.fill(static_cast<size_t>(4 * channels), DType::kF32)),
  a.fused.windows = windows;
  a.fused.norm_weight = static_cast<float*>(m.fill(K, DType::kF32));

  KdaProblem p;
  p.phase = KdaPhase::kStep;
  p.H = p.HV = s.H, p.K = p.V = K, p.io = p.decay = io, p.beta = DType::kBF16, p.state_in = p.state_out = state,
  p.conv = io;
  p.bounds = {s.N, s.N, 0};

  // A set's bytes to another set's place: as many bytes read and written as by a step.
  const double copy = b.time(launches, [&](int i) {
    const size_t at = static_cast<size_t>(i % sets) * set_bytes,
                 next = static_cast<size_t>((i + sets / 2) % sets) * set_bytes;
    check(cudaMemcpyAsync(pool + next, pool + at, set_bytes, cudaMemcpyDeviceToDevice, b.native()), "copy");
  });
  auto line = [&](const std::string& what, double us, double relative_to) {
    if (b.json)
      std::fprintf(b.json,
                   "{\"op\":\"%s\",\"state\":\"%s\",\"N\":%d,\"H\":%d,\"us\":%.3f,\"copy_us\":%.3f,\"fla_us\":%.1f,"
                   "\"relative\":%.3f}\n",
                   what.c_str(), base::to_string(state), s.N, s.H, us, copy, s.fla_us, us / relative_to);
  };
  char text[400];
  auto step_with = [&](const KdaProblem& problem, int32_t variant, device::Buffer& workspace) {
    KdaPlan plan = plan_kda(problem, b.stream.info(), {});
    if (variant) {
      plan.variant_ = variant;
      plan.workspace_bytes_ = static_cast<size_t>(s.N) * channels * 8 + 1024;
    }
    workspace = device::Buffer::allocate(b.stream.info(), plan.workspace_bytes_ + 256);
    return b.time(launches, [&](int i) {
      a.slot_in = a.slot_out = d_slots + static_cast<int64_t>(i % sets) * s.N;
      a.workspace = workspace.data();
      run_kda(plan, a, b.stream);
    });
  };
  device::Buffer workspace;
  const double step = step_with(p, 0, workspace);
  line("step", step, copy);
  KdaProblem pf = p;
  pf.fused_step = true;
  const double fused = step_with(pf, 0, workspace);
  line("fused", fused, copy);
  std::string shapes;
  if (sweep) {
    for (int its : {1, 2, 4}) {
      const double t = step_with(p, sm90::encode({its, 4, sm90::StepFusion::kNone}), workspace);
      line("step x" + std::to_string(its), t, copy);
      const double f = step_with(pf, sm90::encode({its, 4, sm90::StepFusion::kOneLaunch}), workspace);
      line("fused x" + std::to_string(its), f, copy);
      std::snprintf(text, sizeof text, " | x%d %6.1f f %6.1f", its, t, f);
      shapes += text;
    }
    const double wide = step_with(pf, sm90::encode({4, 8, sm90::StepFusion::kOneLaunch}), workspace);
    line("fused x4 wide", wide, copy);
    std::snprintf(text, sizeof text, " | wide %6.1f", wide);
    shapes += text;
    const double three = step_with(pf, sm90::encode({4, 4, sm90::StepFusion::kThreeLaunches}), workspace);
    line("fused three launches", three, copy);
    std::snprintf(text, sizeof text, " | three %6.1f", three);
    shapes += text;
  }

  // Verify: chains of 8 drafts. Commit of one layer: nodes 7, 3 and 0.
  KdaProblem pv = p;
  pv.phase = KdaPhase::kVerify, pv.D = D;
  pv.bounds = {s.N, T, 0};
  KdaPlan plan = plan_kda(pv, b.stream.info(), {});
  device::Buffer scratch = device::Buffer::allocate(b.stream.info(), plan.scratch_bytes());
  std::vector<int32_t> parent, nd(static_cast<size_t>(s.N), D);
  for (int i = 0; i < s.N; ++i)
    for (int d = 0; d < D; ++d) parent.push_back(d - 1);
  const int32_t *d_parent = m.ints(parent), *d_nd = m.ints(nd);
  KdaVerifyArgs v;
  v.q = a.q, v.k = a.k, v.v = a.v, v.decay = a.decay, v.beta = a.beta, v.A_log = a.A_log, v.dt_bias = a.dt_bias,
  v.out = a.out;
  v.rows = s.N, v.n_draft = d_nd, v.parent = d_parent, v.state_in = view, v.scratch = scratch.data();
  auto verify_with = [&](int32_t variant) {
    KdaPlan vp = plan;
    if (variant) vp.variant_ = variant;
    return b.time(launches, [&](int i) {
      v.slot_in = d_slots + static_cast<int64_t>(i % sets) * s.N;
      run_kda(vp, v, b.stream);
    });
  };
  const double verify = verify_with(0);
  line("verify 8", verify, step);
  KdaOptions loose;
  loose.verify_matches_step = false;
  const double gram = verify_with(plan_kda(pv, b.stream.info(), loose).variant_);
  line("verify 8 without step's bits", gram, step);
  std::string more;
  if (sweep)
    for (int its : {1, 2, 4}) {
      const double t = verify_with(sm90::encode(sm90::VerifyChoice{its, 4, 4, true}));
      line("verify 8 x" + std::to_string(its), t, step);
      std::snprintf(text, sizeof text, " | v x%d %6.1f", its, t);
      more += text;
    }
  if (sweep) {
    const double t = verify_with(sm90::encode(sm90::VerifyChoice{4, 8, 4, true}));
    line("verify 8 x4 wide", t, step);
    std::snprintf(text, sizeof text, " | v wide %6.1f", t);
    more += text;
  }
  KdaCommitArgs c;
  c.rows = s.N, c.n_draft = d_nd, c.parent = d_parent, c.scratch = scratch.data(),
  c.scratch_layer_bytes = plan.scratch_bytes(), c.states = view;
  auto commit_with = [&](int node, int32_t variant) {
    KdaPlan vp = plan;
    if (variant) vp.variant_ = variant;
    std::vector<int32_t> nodes(static_cast<size_t>(s.N), node);
    c.node = m.ints(nodes);
    return b.time(launches, [&](int i) {
      c.slot_in = c.slot_out = d_slots + static_cast<int64_t>(i % sets) * s.N;
      run_kda_commit(vp, c, b.stream);
    });
  };
  const double commit7 = commit_with(7, 0), commit3 = commit_with(3, 0), commit0 = commit_with(0, 0);
  line("commit node 7", commit7, step), line("commit node 3", commit3, step), line("commit node 0", commit0, step);
  if (sweep)
    for (int its : {1, 2}) {
      const double t = commit_with(7, sm90::encode(sm90::VerifyChoice{4, 4, its, true}));
      line("commit node 7 x" + std::to_string(its), t, step);
      std::snprintf(text, sizeof text, " | c x%d %6.1f", its, t);
      more += text;
    }
  std::snprintf(text, sizeof text,
                "%-4s H%-3d N%-4d copy %7.2f step %7.2f (%3.0f%%) fused %7.2f fla %6.1f (%4.1fx) verify8 %7.2f (%.2fx) "
                "loose %7.2f "
                "commit7 %7.2f (%.2fx) 3 %7.2f 0 %7.2f",
                state == DType::kF32 ? "f32" : "bf16", s.H, s.N, copy, step, 100 * copy / step, fused, s.fla_us,
                s.fla_us / step, verify, verify / step, gram, commit7, commit7 / step, commit3, commit0);
  table.push_back(text);
  if (sweep) table.push_back("      " + shapes + more);
}

// Convolution of prompts and copies of slots, as bytes per second beside the device's own copy.
void run_streams(Bench& b, std::vector<std::string>& table) {
  char text[300];
  for (int channels : {4608, 24576}) {
    for (int64_t tokens : {512, 8192}) {
      Memory m(b.stream);
      const DType io = DType::kBF16;
      const size_t count = static_cast<size_t>(tokens) * static_cast<size_t>(channels);
      const int sets = static_cast<int>(std::max<size_t>(2, (size_t{400} << 20) / (count * 4)));
      char* x = static_cast<char*>(m.fill(count * static_cast<size_t>(sets), io));
      char* y = static_cast<char*>(m.fill(count * static_cast<size_t>(sets), io));
      KdaPlan plan;
      plan.problem_.phase = KdaPhase::kExtend;
      plan.problem_.bounds = {1, tokens, 0};
      plan.device_ = b.stream.info();
      Conv1dExtendArgs a;
      a.conv.dtype = io, a.conv.channels = channels;
      a.conv.weight = static_cast<float*>(m.fill(static_cast<size_t>(4 * channels), DType::kF32));
      a.tokens = tokens;
      a.metadata.seq_begin = m.ints({0, static_cast<int32_t>(tokens)});
      a.metadata.state_in = m.ints({0}), a.metadata.state_out = m.ints({0}), a.metadata.rows = 1;
      a.window_in.base = m.fill(static_cast<size_t>(3 * channels), io), a.window_in.dtype = io, a.window_in.slots = 1,
      a.window_in.slot_pitch = 3 * channels;
      a.window_out = a.window_in;
      const double us = b.time(sets, [&](int i) {
        const size_t at = static_cast<size_t>(i % sets) * count * 2;
        a.conv.x = {x + at, channels}, a.conv.y = {y + at, channels};
        run_conv1d(plan, a, b.stream);
      });
      const double copy = b.time(sets, [&](int i) {
        const size_t at = static_cast<size_t>(i % sets) * count * 2;
        check(cudaMemcpyAsync(y + at, x + at, count * 2, cudaMemcpyDeviceToDevice, b.native()), "copy");
      });
      std::snprintf(text, sizeof text, "conv extend T %5d C %5d: %7.2f us, copy %7.2f (%3.0f%%)",
                    static_cast<int>(tokens), channels, us, copy, 100 * copy / us);
      table.push_back(text);
      if (b.json)
        std::fprintf(b.json, "{\"op\":\"conv extend\",\"T\":%d,\"C\":%d,\"us\":%.3f,\"copy_us\":%.3f}\n",
                     static_cast<int>(tokens), channels, us, copy);
    }
  }
  // 16 slots of 12 heads in 8 layers.
  Memory m(b.stream);
  StateCopyArgs c;
  c.HV = 12, c.V = c.K = K, c.copies = 16;
  const int64_t n = int64_t{c.HV} * K * K;
  c.states.layers = 8, c.states.slots = 64, c.states.slot_pitch = n, c.states.layer_pitch = 64 * n;
  char* pool = static_cast<char*>(m.fill(static_cast<size_t>(8 * 64 * n), DType::kF32));
  c.states.base = pool;
  std::vector<int32_t> src, dst;
  for (int i = 0; i < 16; ++i) src.push_back(i), dst.push_back(32 + i);
  c.src = m.ints(src), c.dst = m.ints(dst);
  const double us = b.time(8, [&](int) { run_state_copy(c, b.stream); });
  const size_t half = static_cast<size_t>(8 * 16 * n) * 4;
  const double copy = b.time(
      8, [&](int) { check(cudaMemcpyAsync(pool + half, pool, half, cudaMemcpyDeviceToDevice, b.native()), "copy"); });
  std::snprintf(text, sizeof text, "state copy 16 slots x 8 layers: %7.2f us, copy %7.2f (%3.0f%%)", us, copy,
                100 * copy / us);
  table.push_back(text);
  if (b.json) std::fprintf(b.json, "{\"op\":\"state copy\",\"us\":%.3f,\"copy_us\":%.3f}\n", us, copy);
}

}  // namespace

int main(int argc, char** argv) {
  Bench b;
  if (argc > 1) b.json = std::fopen(argv[1], "w");
  const bool sweep = argc > 2 && std::strcmp(argv[2], "sweep") == 0;
  std::printf("%s, %d SMs\n", b.stream.info().name.c_str(), b.stream.info().sm_count);
  std::vector<std::string> table;
  // FLA's fused_recurrent_kda as measured on an H200 in a CUDA graph (docs: bench/results).
  const std::vector<Shape> shapes = {{1, 12, 8.2},     {8, 12, 0},  {32, 12, 24.1},  {1, 32, 0},     {8, 32, 0},
                                     {32, 32, 50.9},   {1, 64, 0},  {8, 64, 0},      {32, 64, 96.7}, {128, 32, 0},
                                     {256, 12, 135.2}, {64, 64, 0}, {256, 64, 780.1}};
  try {
    if (argc > 2 && std::strcmp(argv[2], "profile") == 0) {
      b.profile = true;
      run_shape(b, {128, 32, 0}, DType::kF32, false, table);
      return 0;
    }
    for (const Shape& s : shapes) run_shape(b, s, DType::kF32, sweep, table);
    for (const Shape& s : {Shape{1, 12, 0}, Shape{32, 32, 0}, Shape{128, 32, 0}, Shape{256, 64, 0}})
      run_shape(b, s, DType::kBF16, sweep, table);
    run_streams(b, table);
  } catch (const std::exception& e) {
    std::printf("error: %s\n", e.what());
    for (const std::string& s : table) std::puts(s.c_str());
    return 1;
  }
  for (const std::string& s : table) std::puts(s.c_str());
  if (b.json) std::fclose(b.json);
  return 0;
}
