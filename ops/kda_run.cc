// The public run_* functions: what can be checked without reading device memory is checked here, then the backend runs.
#include <string>

#include "base/error.h"
#include "ops/conv1d.h"
#include "ops/kda_table.h"

namespace kadence::ops {
namespace {

using base::throw_invalid;

void want_pointer(const void* p, const char* name, size_t align) {
  if (!p) throw_invalid(name, "an address", "null");
  const uintptr_t rest = reinterpret_cast<uintptr_t>(p) % align;
  if (rest != 0)
    throw_invalid(name, "an address aligned to " + std::to_string(align) + " bytes",
                  "one that is off by " + std::to_string(rest));
}

// A [tokens, width] tensor with a free pitch. `align` is in bytes and holds for base and pitch.
void want_tokens(const ConstTokenTensor& t, const char* name, int64_t tokens, int64_t width, DType dtype,
                 size_t align = kTensorAlign) {
  if (tokens == 0) return;
  want_pointer(t.data, name, align);
  if (t.pitch < width)
    throw_invalid(std::string(name) + " pitch", "at least the " + std::to_string(width) + " elements of a token",
                  std::to_string(t.pitch));
  if (static_cast<size_t>(t.pitch) * base::size_of(dtype) % align != 0)
    throw_invalid(std::string(name) + " pitch", "a multiple of " + std::to_string(align) + " bytes",
                  std::to_string(t.pitch) + " elements");
}

void want_count(const char* name, int64_t got, int64_t most) {
  if (got < 0 || got > most)
    throw_invalid(name, "0 to " + std::to_string(most) + " (bounds of the plan)", std::to_string(got));
}

template <class View>
void want_view(const View& v, const char* name, DType dtype, int64_t slot_elements) {
  if (v.slots == 0 && !v.base) return;
  want_pointer(v.base, name, kTensorAlign);
  if (v.dtype != dtype) throw_invalid(std::string(name) + " dtype", base::to_string(dtype), base::to_string(v.dtype));
  if (v.slots < 0) throw_invalid(std::string(name) + " slots", "0 or more", std::to_string(v.slots));
  if (v.slots > 1 && v.slot_pitch < slot_elements)
    throw_invalid(std::string(name) + " slot_pitch", "at least " + std::to_string(slot_elements) + " elements",
                  std::to_string(v.slot_pitch));
  if (v.slots > 1 &&
      v.slot_pitch * static_cast<int64_t>(base::size_of(dtype)) % static_cast<int64_t>(kTensorAlign) != 0)
    throw_invalid(std::string(name) + " slot_pitch", "a multiple of 16 bytes",
                  std::to_string(v.slot_pitch) + " elements");
  if (v.layers < 1) throw_invalid(std::string(name) + " layers", "1 or more", std::to_string(v.layers));
}

// Two views of one memory must agree on what is in it.
template <class View>
void want_same_shape(const View& a, const View& b, const char* names) {
  if (a.base && a.base == b.base && (a.dtype != b.dtype || a.slot_pitch != b.slot_pitch))
    throw_invalid(names, "one dtype and slot pitch for one memory", "two");
}

void want_distinct(const void* out, const ConstTokenTensor& in, const char* name) {
  if (out && out == in.data) throw_invalid("out", std::string("memory other than ") + name, "the same address");
}

void want_plan(const KdaPlan& plan, KdaPhase phase, const device::Stream& stream) {
  if (plan.backend().empty()) throw_invalid("plan", "a plan made by plan_kda", "an empty one");
  if (plan.problem().phase != phase) throw_invalid("plan", "a plan of this phase", "a plan of another phase");
  const device::DeviceInfo& at = stream.info();
  if (at.kind != plan.device_.kind)
    throw_invalid("stream", "a stream of the plan's device " + plan.device_.name, at.name);
  if (at.kind == device::DeviceKind::kCpu && at.threads > plan.device_.threads)
    throw_invalid("stream", "at most the plan's " + std::to_string(plan.device_.threads) + " threads",
                  std::to_string(at.threads));
}
void want_workspace(const KdaPlan& plan, const void* workspace) {
  if (plan.workspace_bytes() > 0) want_pointer(workspace, "workspace", kWorkspaceAlign);
}

const KdaBackend& backend_of(const KdaPlan& plan) {
  const KdaBackend* backend = find_kda_backend(plan.backend());
  if (!backend) throw_invalid("plan", "a backend of this build", plan.backend());
  return *backend;
}

// Inputs that all three phases share.
template <class Args>
void want_inputs(const KdaProblem& p, const Args& a, int64_t tokens) {
  want_tokens(a.q, "q", tokens, int64_t{p.H} * p.K, p.io);
  want_tokens(a.k, "k", tokens, int64_t{p.H} * p.K, p.io);
  want_tokens(a.v, "v", tokens, int64_t{p.HV} * p.V, p.io);
  want_distinct(a.out.data, a.q, "q");
  want_distinct(a.out.data, a.k, "k");
  want_distinct(a.out.data, a.v, "v");
}
template <class Args>
void want_gates(const KdaProblem& p, const Args& a, int64_t tokens) {
  want_tokens(a.decay, "decay", tokens, int64_t{p.HV} * p.K, p.decay);
  want_tokens(a.beta, "beta", tokens, p.HV, p.beta, base::size_of(p.beta));
  want_tokens(a.out, "out", tokens, int64_t{p.HV} * p.V, p.io);
  want_distinct(a.out.data, a.decay, "decay");
  if (tokens > 0 && p.gate != KdaGate::kGivenLogDecay) want_pointer(a.A_log, "A_log", sizeof(float));
  if (p.gate == KdaGate::kGivenLogDecay && (a.A_log || a.dt_bias))
    throw_invalid("A_log and dt_bias", "null with a given log decay", "an address");
}

void want_metadata(const KdaMetadata& m, const KdaBounds& bounds) {
  want_count("metadata rows", m.rows, bounds.max_rows);
  if (m.rows == 0) return;
  want_pointer(m.seq_begin, "metadata seq_begin", sizeof(int32_t));
  want_pointer(m.state_in, "metadata state_in", sizeof(int32_t));
  want_pointer(m.state_out, "metadata state_out", sizeof(int32_t));
  if (m.ckpt_begin) {
    if (bounds.max_checkpoints == 0)
      throw_invalid("metadata ckpt_begin", "null: the plan has bounds.max_checkpoints = 0", "checkpoints");
    want_pointer(m.ckpt_depth, "metadata ckpt_depth", sizeof(int32_t));
    want_pointer(m.ckpt_slot, "metadata ckpt_slot", sizeof(int32_t));
  }
}

void want_conv(const Conv1dArgs& c, int64_t tokens) {
  if (c.channels <= 0) throw_invalid("channels", "1 or more", std::to_string(c.channels));
  if (c.dtype != DType::kF32 && c.dtype != DType::kBF16 && c.dtype != DType::kF16)
    throw_invalid("conv dtype", "float32, bfloat16 or float16", base::to_string(c.dtype));
  want_tokens(c.x, "conv x", tokens, c.channels, c.dtype);
  want_tokens(c.y, "conv y", tokens, c.channels, c.dtype);
  if (tokens > 0) {
    want_pointer(c.weight, "conv weight", kTensorAlign);
    if (c.y.data == c.x.data) throw_invalid("conv y", "memory other than x", "the same address");
  }
}

}  // namespace

void run_kda(const KdaPlan& plan, const KdaExtendArgs& a, device::Stream& stream) {
  want_plan(plan, KdaPhase::kExtend, stream);
  want_workspace(plan, a.workspace);
  const KdaProblem& p = plan.problem();
  want_count("tokens", a.tokens, p.bounds.max_tokens);
  want_inputs(p, a, a.tokens);
  want_gates(p, a, a.tokens);
  want_metadata(a.metadata, p.bounds);
  const int64_t slot = int64_t{p.HV} * p.V * p.K;
  want_view(a.state_in, "state_in", p.state_in, slot);
  want_view(a.state_out, "state_out", p.state_out, slot);
  want_view(a.checkpoints, "checkpoints", p.checkpoints, slot);
  want_same_shape(a.state_in, a.state_out, "state_in and state_out");
  want_same_shape(a.state_in, a.checkpoints, "state_in and checkpoints");
  want_same_shape(a.state_out, a.checkpoints, "state_out and checkpoints");
  backend_of(plan).extend(plan, a, stream);
}

void run_kda(const KdaPlan& plan, const KdaStepArgs& a, device::Stream& stream) {
  want_plan(plan, KdaPhase::kStep, stream);
  want_workspace(plan, a.workspace);
  const KdaProblem& p = plan.problem();
  want_count("rows", a.rows, p.bounds.max_rows);
  if (p.fused_step) {
    const int64_t channels = int64_t{2} * p.H * p.K + int64_t{p.HV} * p.V;
    want_tokens(a.fused.x, "fused x", a.rows, channels, p.conv);
    want_tokens(a.fused.z, "fused z", a.rows, int64_t{p.HV} * p.V, p.io);
    if (a.rows > 0) {
      want_pointer(a.fused.conv_weight, "fused conv_weight", kTensorAlign);
      want_pointer(a.fused.norm_weight, "fused norm_weight", sizeof(float));
    }
    want_view(a.fused.windows, "fused windows", p.conv, channels * kConvWindow);
  } else {
    want_inputs(p, a, a.rows);
  }
  want_gates(p, a, a.rows);
  if (a.rows > 0) {
    want_pointer(a.slot_in, "slot_in", sizeof(int32_t));
    want_pointer(a.slot_out, "slot_out", sizeof(int32_t));
  }
  const int64_t slot = int64_t{p.HV} * p.V * p.K;
  want_view(a.state_in, "state_in", p.state_in, slot);
  want_view(a.state_out, "state_out", p.state_out, slot);
  want_same_shape(a.state_in, a.state_out, "state_in and state_out");
  backend_of(plan).step(plan, a, stream);
}

void run_kda(const KdaPlan& plan, const KdaVerifyArgs& a, device::Stream& stream) {
  want_plan(plan, KdaPhase::kVerify, stream);
  want_workspace(plan, a.workspace);
  const KdaProblem& p = plan.problem();
  want_count("rows", a.rows, p.bounds.max_rows);
  const int64_t tokens = int64_t{a.rows} * p.D;
  want_inputs(p, a, tokens);
  want_gates(p, a, tokens);
  if (a.rows > 0) {
    want_pointer(a.n_draft, "n_draft", sizeof(int32_t));
    want_pointer(a.parent, "parent", sizeof(int32_t));
    want_pointer(a.slot_in, "slot_in", sizeof(int32_t));
    want_pointer(a.scratch, "scratch", kTensorAlign);
  }
  want_view(a.state_in, "state_in", p.state_in, int64_t{p.HV} * p.V * p.K);
  backend_of(plan).verify(plan, a, stream);
}

void run_kda_commit(const KdaPlan& plan, const KdaCommitArgs& a, device::Stream& stream) {
  want_plan(plan, KdaPhase::kVerify, stream);
  const KdaProblem& p = plan.problem();
  want_count("rows", a.rows, p.bounds.max_rows);
  if (a.rows == 0) return;
  want_pointer(a.n_draft, "n_draft", sizeof(int32_t));
  want_pointer(a.parent, "parent", sizeof(int32_t));
  want_pointer(a.slot_in, "slot_in", sizeof(int32_t));
  want_pointer(a.node, "node", sizeof(int32_t));
  want_pointer(a.slot_out, "slot_out", sizeof(int32_t));
  if (a.track_node) want_pointer(a.track_slot, "track_slot", sizeof(int32_t));
  want_pointer(a.scratch, "scratch", kTensorAlign);
  want_view(a.states, "states", p.state_in, int64_t{p.HV} * p.V * p.K);
  if (a.states.layers > 1 && a.scratch_layer_bytes < plan.scratch_bytes())
    throw_invalid("scratch_layer_bytes", "at least the plan's " + std::to_string(plan.scratch_bytes()),
                  std::to_string(a.scratch_layer_bytes));
  if (a.conv_x.data) {
    if (a.conv_channels <= 0) throw_invalid("conv_channels", "1 or more", std::to_string(a.conv_channels));
    want_tokens(a.conv_x, "conv_x", int64_t{a.rows} * p.D, a.conv_channels, a.windows.dtype);
    want_view(a.windows, "windows", a.windows.dtype, int64_t{a.conv_channels} * kConvWindow);
    if (a.windows.layers != a.states.layers)
      throw_invalid("windows layers", "those of the states, " + std::to_string(a.states.layers),
                    std::to_string(a.windows.layers));
    if (a.windows.slots != a.states.slots)
      throw_invalid("windows slots", "those of the states, " + std::to_string(a.states.slots),
                    std::to_string(a.windows.slots));
  }
  backend_of(plan).commit(plan, a, stream);
}

void run_conv1d(const KdaPlan& plan, const Conv1dExtendArgs& a, device::Stream& stream) {
  if (plan.problem().phase != KdaPhase::kExtend) throw_invalid("plan", "an extend plan", "a plan of another phase");
  if (stream.info().kind != plan.device_.kind)
    throw_invalid("stream", "a stream of the plan's device " + plan.device_.name, stream.info().name);
  want_count("tokens", a.tokens, plan.problem().bounds.max_tokens);
  want_conv(a.conv, a.tokens);
  want_metadata(a.metadata, plan.problem().bounds);
  const int64_t slot = int64_t{a.conv.channels} * kConvWindow;
  want_view(a.window_in, "window_in", a.conv.dtype, slot);
  want_view(a.window_out, "window_out", a.conv.dtype, slot);
  want_view(a.checkpoints, "checkpoints", a.conv.dtype, slot);
#ifdef KADENCE_CUDA
  if (stream.info().kind == device::DeviceKind::kCuda) return cuda::conv1d_extend(plan, a, stream);
#endif
  cpu::conv1d_extend(plan, a, stream);
}

void run_conv1d(const Conv1dStepArgs& a, device::Stream& stream) {
  want_conv(a.conv, a.rows);
  if (a.rows == 0) return;
  want_pointer(a.slot_in, "slot_in", sizeof(int32_t));
  want_pointer(a.slot_out, "slot_out", sizeof(int32_t));
  const int64_t slot = int64_t{a.conv.channels} * kConvWindow;
  want_view(a.window_in, "window_in", a.conv.dtype, slot);
  want_view(a.window_out, "window_out", a.conv.dtype, slot);
#ifdef KADENCE_CUDA
  if (stream.info().kind == device::DeviceKind::kCuda) return cuda::conv1d_step(a, stream);
#endif
  cpu::conv1d_step(a, stream);
}

void run_conv1d(const Conv1dVerifyArgs& a, device::Stream& stream) {
  if (a.D < 1 || a.D > kMaxDraftTokens)
    throw_invalid("D", "1 to " + std::to_string(kMaxDraftTokens), std::to_string(a.D));
  want_conv(a.conv, int64_t{a.rows} * a.D);
  if (a.rows == 0) return;
  want_pointer(a.n_draft, "n_draft", sizeof(int32_t));
  want_pointer(a.parent, "parent", sizeof(int32_t));
  want_pointer(a.slot_in, "slot_in", sizeof(int32_t));
  want_view(a.window_in, "window_in", a.conv.dtype, int64_t{a.conv.channels} * kConvWindow);
#ifdef KADENCE_CUDA
  if (stream.info().kind == device::DeviceKind::kCuda) return cuda::conv1d_verify(a, stream);
#endif
  cpu::conv1d_verify(a, stream);
}

void run_state_copy(const StateCopyArgs& a, device::Stream& stream) {
  if (a.copies < 0 || a.clears < 0)
    throw_invalid("copies and clears", "0 or more", std::to_string(std::min(a.copies, a.clears)));
  if (a.copies == 0 && a.clears == 0) return;
  if (a.copies > 0) {
    want_pointer(a.src, "src", sizeof(int32_t));
    want_pointer(a.dst, "dst", sizeof(int32_t));
  }
  if (a.clears > 0) want_pointer(a.clear, "clear", sizeof(int32_t));
  if (!a.states.base && !a.windows.base) throw_invalid("states and windows", "at least one of them", "neither");
  if (a.states.base) want_view(a.states, "states", a.states.dtype, int64_t{a.HV} * a.V * a.K);
  if (a.windows.base) want_view(a.windows, "windows", a.windows.dtype, int64_t{a.conv_channels} * kConvWindow);
#ifdef KADENCE_CUDA
  if (stream.info().kind == device::DeviceKind::kCuda) return cuda::state_copy(a, stream);
#endif
  cpu::state_copy(a, stream);
}

}  // namespace kadence::ops
