#include "ops/testing/kda_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"
#include "ops/cpu/kda_kernels.h"

namespace kadence::ops::testing {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Device memory filled with numbers around zero, cheap to make.
class Filled {
 public:
  Filled(device::Stream& stream, int64_t elements, DType dtype, float scale = 1.0f, float offset = 0.0f)
      : buffer_(device::Buffer::allocate(stream.info(), static_cast<size_t>(elements) * base::size_of(dtype))) {
    constexpr int64_t kPeriod = 1 << 18;
    std::vector<char> host(static_cast<size_t>(std::min(elements, kPeriod)) * base::size_of(dtype));
    base::Rng rng(static_cast<uint64_t>(elements) + 11);
    for (int64_t i = 0; i < std::min(elements, kPeriod); ++i)
      base::store_f32(host.data(), i, dtype, offset + scale * static_cast<float>(rng.normal()));
    for (int64_t at = 0; at < elements; at += kPeriod)
      device::copy_async(buffer_.as<char>() + static_cast<size_t>(at) * base::size_of(dtype), host.data(),
                         static_cast<size_t>(std::min(kPeriod, elements - at)) * base::size_of(dtype), stream);
    stream.synchronize();
  }
  void* data() const { return buffer_.data(); }

 private:
  device::Buffer buffer_;
};

template <class T>
struct Uploaded {
  device::Buffer buffer;
  Uploaded(device::Stream& stream, const std::vector<T>& v)
      : buffer(device::Buffer::allocate(stream.info(), v.size() * sizeof(T) + 16)) {
    device::copy_async(buffer.data(), v.data(), v.size() * sizeof(T), stream);
    stream.synchronize();
  }
  T* data() const { return buffer.as<T>(); }
};

struct Times {
  int calls;
  double median, low, high;
};

// `calls` functions are timed in turn, so that a busy moment of the machine hits them alike.
std::vector<Times> time_interleaved(device::Stream& stream, int repeats, double seconds,
                                    const std::vector<std::function<void()>>& calls) {
  std::vector<std::vector<double>> us(calls.size());
  const auto once = [&] {
    for (size_t i = 0; i < calls.size(); ++i) {
      const double begin = now_us();
      calls[i]();
      stream.synchronize();
      us[i].push_back(now_us() - begin);
    }
  };
  const double start = now_us();
  once();  // warms up
  for (auto& v : us) v.clear();
  for (int r = 0; r < repeats && (r == 0 || now_us() - start < seconds * 1e6); ++r) once();
  std::vector<Times> times;
  for (auto& v : us) {
    std::sort(v.begin(), v.end());
    times.push_back({static_cast<int>(v.size()), v[v.size() / 2], v[v.size() / 10], v[v.size() - 1 - v.size() / 10]});
  }
  return times;
}

// A copy of `bytes`, spread over the workers on the CPU.
std::function<void()> copy_call(device::Stream& stream, void* dst, const void* src, size_t bytes) {
  return [&stream, dst, src, bytes] {
    if (stream.info().kind != device::DeviceKind::kCpu) return device::copy_async(dst, src, bytes, stream);
    const size_t piece = size_t{1} << 20;
    stream.parallel_for(static_cast<int64_t>((bytes + piece - 1) / piece), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i) * piece;
      std::memcpy(static_cast<char*>(dst) + at, static_cast<const char*>(src) + at, std::min(piece, bytes - at));
    });
  };
}

struct Bench {
  device::Stream& stream;
  const KdaBenchOptions& o;
  std::vector<KdaBenchRow> rows;
  bool planning = true;  // nothing is allocated or timed

  // The planner's errors name the engine's flags, but what decides here is --backend.
  KdaPlan plan_of(const KdaProblem& p) const {
    try {
      return plan_kda(p, stream.info(), {.backend = o.backend});
    } catch (const base::Error& e) {
      std::string why = e.what();
      for (const std::string option :
           {"--linear-attn-prefill-backend", "--linear-attn-decode-backend", "--linear-attn-verify-backend"})
        if (const size_t at = why.find(option); at != std::string::npos) why.replace(at, option.size(), "--backend");
      throw base::Error(e.code(), why);
    }
  }
  // True if the row is to be timed.
  bool fits(const std::string& what, double bytes) const {
    if (o.memory_bytes > 0 && bytes > static_cast<double>(o.memory_bytes))
      base::throw_error(base::ErrorCode::kOutOfRange,
                        shape(what) + " needs " + std::to_string(static_cast<int64_t>(bytes) >> 20) +
                            " MiB: wanted at most the " + std::to_string(o.memory_bytes >> 20) +
                            " MiB that are free; ask for fewer heads, rows or tokens");
    return !planning;
  }
  double state_bytes(double states) const {
    return states * o.HV * o.V * o.K * static_cast<double>(base::size_of(o.state));
  }
  double input_bytes(double tokens) const {
    return tokens * static_cast<double>(base::size_of(o.io)) * (2.0 * o.H * o.K + 1.0 * o.HV * (o.K + 2.0 * o.V + 2));
  }

  KdaProblem problem(KdaPhase phase, KdaGate gate) const {
    KdaProblem p;
    p.phase = phase, p.gate = gate;
    p.H = o.H, p.HV = o.HV, p.K = o.K, p.V = o.V;
    p.io = p.decay = o.io, p.state_in = p.state_out = p.checkpoints = o.state;
    return p;
  }
  std::string shape(const std::string& what) const {
    std::ostringstream s;
    s << "H=" << o.HV << " K=" << o.K << " V=" << o.V << " " << base::to_string(o.io) << ", states "
      << base::to_string(o.state) << ", " << what;
    return s.str();
  }
  std::string backend(const KdaPlan& plan) const {
    return plan.backend() +
           (stream.info().kind == device::DeviceKind::kCpu
                ? std::string(" ") + device::to_string(plan.isa()) + " x" + std::to_string(stream.info().threads)
                : "");
  }
  void add(const std::string& op, const std::string& what, const KdaPlan& plan, Times t, double floor,
           const std::string& limit, double units, const std::string& unit) {
    rows.push_back(
        {op, shape(what), backend(plan), t.calls, t.median, t.low, t.high, floor, limit, t.median / units, unit});
  }

  template <class Args>
  struct Inputs {
    Filled q, k, v, decay, beta, A_log, bias, out;
    Inputs(device::Stream& s, const KdaProblem& p, int64_t T)
        : q(s, T * p.H * p.K, p.io),
          k(s, T * p.H * p.K, p.io),
          v(s, T * p.HV * p.V, p.io),
          decay(s, T * p.HV * p.K, p.decay),
          beta(s, T * p.HV, p.beta),
          A_log(s, p.HV, DType::kF32, 0.3f),
          bias(s, int64_t{p.HV} * p.K, DType::kF32, 0.3f),
          out(s, T * p.HV * p.V, p.io) {}
    void fill(const KdaProblem& p, Args& a) const {
      a.q = {q.data(), int64_t{p.H} * p.K}, a.k = {k.data(), int64_t{p.H} * p.K}, a.v = {v.data(), int64_t{p.HV} * p.V};
      a.decay = {decay.data(), int64_t{p.HV} * p.K}, a.beta = {beta.data(), p.HV},
      a.out = {out.data(), int64_t{p.HV} * p.V};
      if (p.gate != KdaGate::kGivenLogDecay)
        a.A_log = static_cast<const float*>(A_log.data()), a.dt_bias = static_cast<const float*>(bias.data());
    }
  };
  StateView view(const Filled& pool, int64_t slots) const {
    return {pool.data(), o.state, slots, int64_t{o.HV} * o.V * o.K};
  }

  void extend(KdaGate gate, const std::string& name) {
    KdaProblem p = problem(KdaPhase::kExtend, gate);
    const int64_t T = std::accumulate(o.lengths.begin(), o.lengths.end(), int64_t{0});
    const int32_t N = static_cast<int32_t>(o.lengths.size());
    std::vector<int64_t> begin{0};
    std::vector<int32_t> in(o.lengths.size(), -1), out, ckpt_begin{0}, depth, slot;
    for (size_t i = 0; i < o.lengths.size(); ++i) {
      begin.push_back(begin.back() + o.lengths[i]);
      out.push_back(static_cast<int32_t>(i));
      for (int64_t d = o.checkpoint_every; o.checkpoint_every > 0 && d <= o.lengths[i]; d += o.checkpoint_every) {
        slot.push_back(N + static_cast<int32_t>(slot.size()));
        depth.push_back(static_cast<int32_t>(d));
      }
      ckpt_begin.push_back(static_cast<int32_t>(slot.size()));
    }
    p.bounds = {N, T, static_cast<int32_t>(slot.size())};
    const KdaPlan plan = plan_of(p);
    const int64_t slots = N + static_cast<int64_t>(slot.size());
    const std::string what = std::to_string(N) + (N == 1 ? " row of " : " rows, tokens ") + std::to_string(T);
    // Twice: the floor copies as many bytes between buffers of its own.
    if (!fits("extend, " + what, 2 * (input_bytes(static_cast<double>(T)) + state_bytes(static_cast<double>(slots))) +
                                     static_cast<double>(plan.workspace_bytes())))
      return;
    const Inputs<KdaExtendArgs> inputs(stream, p, T);
    const Filled pool(stream, slots * o.HV * o.V * o.K, o.state);
    device::Buffer workspace = device::Buffer::allocate(stream.info(), plan.workspace_bytes()),
                   metadata = device::Buffer::allocate(stream.info(), plan.metadata_bytes());
    KdaExtendArgs a;
    inputs.fill(p, a);
    a.tokens = T, a.state_in = a.state_out = a.checkpoints = view(pool, slots), a.workspace = workspace.data();
    KdaHostMetadata m;
    m.seq_begin = begin, m.state_in = in, m.state_out = out;
    if (!slot.empty()) m.ckpt_begin = ckpt_begin, m.ckpt_depth = depth, m.ckpt_slot = slot;
    m.tokens = T, m.state_in_slots = m.state_out_slots = m.ckpt_slots = slots;
    a.metadata = upload(plan, m, metadata.data(), stream);

    const double units = static_cast<double>(T) * o.HV;
    // Compulsory bytes: inputs, outputs, states and checkpoints once.
    const double bytes = units * (static_cast<double>(base::size_of(o.io)) * (3.0 * o.K + 2.0 * o.V) + 4) +
                         static_cast<double>(slots) * o.HV * o.V * o.K * static_cast<double>(base::size_of(o.state));
    // Multiply-adds of the chunk form per token: S Kd, S Qd and the update are 3 K V, the triangle 16 V, the pairs 16
    // K.
    const double madds = units * (3.0 * o.K * o.V + 16.0 * o.V + 16.0 * o.K);
    const bool cpu = stream.info().kind == device::DeviceKind::kCpu;
    const Filled to(stream, static_cast<int64_t>(bytes / 8), DType::kF32),
        from(stream, static_cast<int64_t>(bytes / 8), DType::kF32);
    const int64_t burst = 1 << 22;
    const auto peak = [&] {
      if (cpu)
        stream.parallel_for(stream.info().threads,
                            [&](int64_t, int) { cpu::kda_kernels(plan.isa()).multiply_add_burst(burst); });
    };
    const std::vector<Times> t =
        time_interleaved(stream, o.repeats, o.seconds,
                         {[&] { run_kda(plan, a, stream); },
                          copy_call(stream, to.data(), from.data(), static_cast<size_t>(bytes / 2)), peak});
    double floor = t[1].low;
    std::string limit = "memory";
    if (cpu) {
      const double arithmetic = madds / (static_cast<double>(burst) * stream.info().threads / t[2].low);
      if (arithmetic > floor) floor = arithmetic, limit = "arithmetic";
    }
    add("extend " + name, what, plan, t[0], floor, limit, units, "token and head");
  }

  void step(int32_t N) {
    KdaProblem p = problem(KdaPhase::kStep, KdaGate::kBounded);
    p.bounds = {N, N, 0};
    const KdaPlan plan = plan_of(p);
    const std::string what = std::to_string(N) + (N == 1 ? " row" : " rows");
    if (!fits("step, " + what, input_bytes(N) + 2 * state_bytes(N))) return;
    const Inputs<KdaStepArgs> inputs(stream, p, N);
    const int64_t elements = int64_t{N} * o.HV * o.V * o.K;
    const Filled pool(stream, elements, o.state), to(stream, elements, o.state);
    std::vector<int32_t> slots(static_cast<size_t>(N));
    std::iota(slots.begin(), slots.end(), 0);
    const Uploaded<int32_t> slot(stream, slots);
    device::Buffer workspace = device::Buffer::allocate(stream.info(), plan.workspace_bytes());
    KdaStepArgs a;
    inputs.fill(p, a);
    a.rows = N, a.slot_in = a.slot_out = slot.data(), a.state_in = a.state_out = view(pool, N),
    a.workspace = workspace.data();
    const size_t bytes = static_cast<size_t>(elements) * base::size_of(o.state);
    const std::vector<Times> t =
        time_interleaved(stream, o.repeats, o.seconds,
                         {[&] { run_kda(plan, a, stream); }, copy_call(stream, to.data(), pool.data(), bytes)});
    add("step", what, plan, t[0], t[1].median, "memory", static_cast<double>(N) * o.HV, "state");
  }

  void verify(int32_t N) {
    KdaProblem p = problem(KdaPhase::kVerify, KdaGate::kBounded);
    p.D = o.draft_tokens;
    p.bounds = {N, int64_t{N} * p.D, 0};
    const KdaPlan plan = plan_of(p);
    const std::string what = std::to_string(N) + " rows, " + std::to_string(p.D) + " drafts";
    if (!fits("verify, " + what, input_bytes(double{1} * N * p.D) + 2 * state_bytes(N) +
                                     static_cast<double>(plan.scratch_bytes() + plan.workspace_bytes())))
      return;
    const Inputs<KdaVerifyArgs> inputs(stream, p, int64_t{N} * p.D);
    const int64_t elements = int64_t{N} * o.HV * o.V * o.K;
    const Filled pool(stream, elements, o.state), to(stream, elements, o.state);
    std::vector<int32_t> slots(static_cast<size_t>(N)), drafts(static_cast<size_t>(N), p.D),
        node(static_cast<size_t>(N), p.D - 1), parent;
    std::iota(slots.begin(), slots.end(), 0);
    for (int32_t i = 0; i < N; ++i)
      for (int32_t d = 0; d < p.D; ++d) parent.push_back(d - 1);
    const Uploaded<int32_t> slot(stream, slots), n_draft(stream, drafts), nodes(stream, node), parents(stream, parent);
    device::Buffer workspace = device::Buffer::allocate(stream.info(), plan.workspace_bytes()),
                   scratch = device::Buffer::allocate(stream.info(), plan.scratch_bytes());
    KdaVerifyArgs a;
    inputs.fill(p, a);
    a.rows = N, a.n_draft = n_draft.data(), a.parent = parents.data(), a.slot_in = slot.data(),
    a.state_in = view(pool, N);
    a.scratch = scratch.data(), a.workspace = workspace.data();
    KdaCommitArgs c;
    c.rows = N, c.n_draft = n_draft.data(), c.parent = parents.data(), c.slot_in = c.slot_out = slot.data(),
    c.node = nodes.data();
    c.scratch = scratch.data(), c.scratch_layer_bytes = plan.scratch_bytes(), c.states = view(pool, N);
    const size_t bytes = static_cast<size_t>(elements) * base::size_of(o.state);
    const std::vector<Times> t =
        time_interleaved(stream, o.repeats, o.seconds,
                         {[&] { run_kda(plan, a, stream); }, [&] { run_kda_commit(plan, c, stream); },
                          copy_call(stream, to.data(), pool.data(), bytes)});
    const double units = static_cast<double>(N) * o.HV;
    add("verify", what, plan, t[0], t[2].median / 2, "memory", units, "state");
    add("commit", what, plan, t[1], t[2].median, "memory", units, "state");
  }
};

}  // namespace

std::vector<KdaBenchRow> bench_kda(device::Stream& stream, const KdaBenchOptions& options) {
  Bench bench{stream, options, {}};
  for (const bool planning : {true, false}) {
    bench.planning = planning;
    if (!options.lengths.empty()) {
      bench.extend(KdaGate::kBounded, "bounded gate");
      bench.extend(KdaGate::kSoftplus, "softplus gate");
      bench.extend(KdaGate::kGivenLogDecay, "given decay");
    }
    for (int32_t n : options.step_rows) bench.step(n);
    if (options.step_pool_bytes > 0) {
      const int64_t row_bytes = static_cast<int64_t>(bench.state_bytes(1));
      bench.step(static_cast<int32_t>((options.step_pool_bytes + row_bytes - 1) / row_bytes));
    }
    if (options.draft_tokens > 0) bench.verify(32);
  }
  return bench.rows;
}

}  // namespace kadence::ops::testing
