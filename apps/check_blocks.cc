// `kadence check blocks`: extend's workspace window changes no bit and its bytes do not depend on the prompt.
#include <fmt/core.h>

#include <cstring>
#include <limits>

#include "apps/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "base/rng.h"
#include "model/config.h"
#include "ops/kda.h"

namespace kadence::apps {
namespace {

constexpr int32_t kBlocks[] = {64, 128, 1024, 2048, 0};

// Packed rows with a fresh or a given first state each, checkpoints at every `every` tokens.
struct Layout {
  std::string name;
  std::vector<int64_t> lengths;
  int64_t every = 512;
};

// One shape and layout: random inputs, poisoned outputs.
class Case {
 public:
  Case(const model::KdaConfig& kda, const Layout& layout, const device::DeviceInfo& info) {
    p_.H = kda.H, p_.HV = kda.HV, p_.K = kda.K, p_.V = kda.V;
    p_.gate = kda.gate;
    p_.lower_bound = kda.gate == ops::KdaGate::kBounded ? kda.lower_bound : 0.0f;
    p_.beta_doubled = kda.beta_doubled;
    const auto rows = static_cast<int32_t>(layout.lengths.size());
    seq_begin_ = {0};
    ckpt_begin_ = {0};
    for (int32_t r = 0; r < rows; ++r) {
      const int64_t length = layout.lengths[static_cast<size_t>(r)];
      seq_begin_.push_back(seq_begin_.back() + length);
      for (int64_t d = layout.every; d <= length; d += layout.every) ckpt_depth_.push_back(static_cast<int32_t>(d));
      ckpt_begin_.push_back(static_cast<int32_t>(ckpt_depth_.size()));
      state_in_.push_back(r % 2 == 0 ? -1 : r);  // every second row resumes
      state_out_.push_back(rows + r);
    }
    for (size_t i = 0; i < ckpt_depth_.size(); ++i)
      ckpt_slot_.push_back(static_cast<int32_t>(2 * static_cast<size_t>(rows) + i));
    slots_ = 2 * rows + static_cast<int64_t>(ckpt_depth_.size());
    tokens_ = seq_begin_.back();
    p_.bounds = {rows, tokens_, static_cast<int32_t>(ckpt_depth_.size())};
    auto fill = [&, seed = uint64_t{1}](int64_t n, double scale, double shift) mutable {
      device::Buffer b = device::Buffer::allocate(info, static_cast<size_t>(n) * sizeof(float));
      base::Rng rng(seed++);
      for (int64_t i = 0; i < n; ++i) b.as<float>()[i] = static_cast<float>(shift + scale * rng.normal());
      return b;
    };
    q_ = fill(tokens_ * p_.H * p_.K, 1, 0);
    k_ = fill(tokens_ * p_.H * p_.K, 1, 0);
    v_ = fill(tokens_ * p_.HV * p_.V, 1, 0);
    decay_ = fill(tokens_ * p_.HV * p_.K, 1.5, -2);
    beta_ = fill(tokens_ * p_.HV, 1, 0);
    a_log_ = fill(p_.HV, 0.5, 0);
    dt_bias_ = fill(p_.HV * p_.K, 1, -2);
    first_ = fill(rows * state_size(), 0.5, 0);
  }

  int64_t state_size() const { return static_cast<int64_t>(p_.HV) * p_.V * p_.K; }
  const ops::KdaProblem& problem() const { return p_; }

  struct Result {
    std::vector<float> out, states;  // states: final ones, then checkpoints
    size_t workspace = 0;
    int32_t block = 0;
    double seconds = 0;
  };

  Result run(const ops::KdaOptions& options, device::Stream& stream) const {
    const ops::KdaPlan plan = ops::plan_kda(p_, stream.info(), options);
    const float poison = std::numeric_limits<float>::quiet_NaN();
    Result r;
    r.workspace = plan.workspace_bytes();
    r.block = plan.block_tokens();
    r.out.assign(static_cast<size_t>(tokens_ * p_.HV * p_.V), poison);
    std::vector<float> pool(static_cast<size_t>(slots_ * state_size()), poison);
    std::memcpy(pool.data(), first_.data(), first_.size());
    const device::Buffer workspace = device::Buffer::allocate(stream.info(), plan.workspace_bytes()),
                         metadata = device::Buffer::allocate(stream.info(), plan.metadata_bytes());
    std::memset(workspace.data(), 0xff, workspace.size());
    const ops::KdaHostMetadata host{seq_begin_, state_in_, state_out_, ckpt_begin_, ckpt_depth_, ckpt_slot_,
                                    tokens_,    slots_,    slots_,     slots_,      true};
    ops::KdaExtendArgs a;
    a.q = {q_.data(), int64_t{p_.H} * p_.K};
    a.k = {k_.data(), int64_t{p_.H} * p_.K};
    a.v = {v_.data(), int64_t{p_.HV} * p_.V};
    a.decay = {decay_.data(), int64_t{p_.HV} * p_.K};
    a.beta = {beta_.data(), p_.HV};
    a.A_log = a_log_.as<float>();
    a.dt_bias = dt_bias_.as<float>();
    a.out = {r.out.data(), int64_t{p_.HV} * p_.V};
    a.tokens = tokens_;
    a.metadata = ops::upload(plan, host, metadata.data(), stream);
    a.state_in = a.state_out = a.checkpoints = {pool.data(), base::DType::kF32, slots_, state_size(), 1, 0};
    a.workspace = workspace.data();
    const base::SteadyClock clock;
    const double begin = clock.now();
    ops::run_kda(plan, a, stream);
    stream.synchronize();
    r.seconds = clock.now() - begin;
    r.states.assign(pool.begin() + static_cast<ptrdiff_t>(state_out_.front() * state_size()), pool.end());
    return r;
  }

 private:
  ops::KdaProblem p_;
  std::vector<int64_t> seq_begin_;
  std::vector<int32_t> state_in_, state_out_, ckpt_begin_, ckpt_depth_, ckpt_slot_;
  int64_t tokens_ = 0, slots_ = 0;
  device::Buffer q_, k_, v_, decay_, beta_, a_log_, dt_bias_, first_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool all_finite(const std::vector<float>& a) {
  for (const float x : a) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

size_t workspace_for(ops::KdaProblem problem, int64_t tokens, int32_t block, const ops::KdaOptions& base_options,
                     const device::DeviceInfo& info) {
  problem.bounds = {1, tokens, static_cast<int32_t>(tokens / 512)};
  ops::KdaOptions options = base_options;
  options.extend_block_tokens = block;
  return ops::plan_kda(problem, info, options).workspace_bytes();
}

}  // namespace

CheckReport check_blocks(const CheckOptions& options, Progress& progress) {
  const base::SteadyClock clock;
  const double begin = clock.now();
  CheckReport report;
  report.name = "blocks";
  const model::KdaConfig kda = model::load_config(options.model).kda;
  device::Stream stream = open_stream(options.engine.device);
  ops::KdaOptions base_options;
  base_options.backend = options.engine.options.prefill_backend;

  model::KdaConfig bounded = kda;  // the same shape under the other gate
  bounded.gate = kda.gate == ops::KdaGate::kBounded ? ops::KdaGate::kSoftplus : ops::KdaGate::kBounded;
  bounded.lower_bound = -5;
  const bool is_bounded = kda.gate == ops::KdaGate::kBounded;
  std::vector<Layout> layouts = {
      {"2,048", {2048}, 512}, {"ragged 2085+3+4097+100", {2085, 3, 4097, 100}, 64}, {"32,768", {32768}, 4096}};
  if (options.quick) layouts.back() = {"8,320", {8320}, 1024};

  Table bits(
      fmt::format("Blocks of extend, H={} HV={} K={} V={}: outputs, final states and checkpoints against block 64",
                  kda.H, kda.HV, kda.K, kda.V),
      {{"gate", "gate"},
       {"prompt", "prompt"},
       {"block", "block", Format::kInteger},
       {"tokens_per_window", "window", Format::kInteger},
       {"workspace_bytes", "workspace", Format::kBytes},
       {"seconds", "time", Format::kSeconds},
       {"outputs", "outputs", Format::kYesNo},
       {"states", "states", Format::kYesNo},
       {"finite", "finite", Format::kYesNo},
       {"ok", "ok", Format::kYesNo}});
  for (const auto& [gate_name, config] :
       {std::pair<std::string, const model::KdaConfig&>{is_bounded ? "bounded" : "softplus", kda},
        {is_bounded ? "softplus" : "bounded", bounded}}) {
    for (const Layout& layout : layouts) {
      progress.show(fmt::format("blocks: {} gate, prompts of {}", gate_name, layout.name));
      const Case test(config, layout, stream.info());
      Case::Result first;
      for (const int32_t block : kBlocks) {
        ops::KdaOptions o = base_options;
        o.extend_block_tokens = block;
        Case::Result r = test.run(o, stream);
        if (block == kBlocks[0]) first = r;
        const bool outputs = same_bits(r.out, first.out), states = same_bits(r.states, first.states),
                   finite = all_finite(r.out) && all_finite(r.states);
        const bool ok = outputs && states && finite;
        report.ok &= ok;
        bits.add({gate_name, layout.name, block, r.block, r.workspace, r.seconds, outputs, states, finite, ok});
      }
    }
  }
  report.tables.push_back(std::move(bits));

  Table bytes("Workspace of one extend call", {{"block", "block", Format::kInteger},
                                               {"bytes_2048", "2,048 tokens", Format::kBytes},
                                               {"bytes_32768", "32,768 tokens", Format::kBytes},
                                               {"ok", "equal", Format::kYesNo}});
  const Case shape(kda, layouts[0], stream.info());
  for (const int32_t block : kBlocks) {
    const size_t small = workspace_for(shape.problem(), 2048, block, base_options, stream.info()),
                 large = workspace_for(shape.problem(), 32768, block, base_options, stream.info());
    report.ok &= small == large;
    bytes.add({block, small, large, small == large});
  }
  report.tables.push_back(std::move(bytes));
  report.notes.push_back("block 0 = the plan's own window, never unbounded");
  progress.clear();
  report.seconds = clock.now() - begin;
  return report;
}

}  // namespace kadence::apps
