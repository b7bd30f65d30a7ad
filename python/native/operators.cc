// The run_* functions: arrays in, one call of the operator library. kadence/operators.py has the public signatures.
#include <nanobind/stl/string.h>

#include "base/error.h"
#include "runtime.h"

namespace kadence::python {
namespace {

using base::throw_invalid;
using ops::KdaPlan;

// Runs `work` with the stream locked and without the interpreter lock.
template <class Work>
void enqueue(Stream& stream, const Work& work) {
  const nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(stream.lock);
  work();
}

// q, k, v, decay, beta, A_log, dt_bias and out of any phase.
template <class Args>
int64_t fill_inputs(const ops::KdaProblem& p, const device::DeviceInfo& at, nb::handle q, nb::handle k, nb::handle v,
                    nb::handle decay, nb::handle beta, nb::handle A_log, nb::handle dt_bias, nb::handle out, Args* a) {
  int64_t tokens = -1;
  if (!q.is_none()) {
    const Array first(q, "q", Access::kRead, at);
    a->q = token_tensor(first, -1, p.H, p.K, p.io);
    tokens = first.shape(0);
    a->k = token_tensor(Array(k, "k", Access::kRead, at), tokens, p.H, p.K, p.io);
    a->v = token_tensor(Array(v, "v", Access::kRead, at), tokens, p.HV, p.V, p.io);
  }
  const Array gate(decay, "decay", Access::kRead, at);
  a->decay = token_tensor(gate, tokens, p.HV, p.K, p.decay);
  tokens = gate.shape(0);
  a->beta = row_tensor(Array(beta, "beta", Access::kRead, at), tokens, p.HV, p.beta);
  a->out = writable(token_tensor(Array(out, "out", Access::kWrite, at), tokens, p.HV, p.V, p.io));
  a->A_log = parameters(A_log, "A_log", p.HV, at);
  a->dt_bias = parameters(dt_bias, "dt_bias", int64_t{p.HV} * p.K, at);
  return tokens;
}

void want_slots(const char* name, int64_t slots, int64_t validated) {
  if (slots < validated)
    throw_invalid(std::string(name) + " slots", "the " + std::to_string(validated) + " that the metadata was made for",
                  std::to_string(slots));
}

bool overlap(const void* a, const void* b) { return a && a == b; }

void run_extend(const KdaPlan& plan, Stream& stream, nb::object q, nb::object k, nb::object v, nb::object decay,
                nb::object beta, nb::object A_log, nb::object dt_bias, nb::object out, const Metadata& metadata,
                nb::object states_in, nb::object states_out, nb::object checkpoints, nb::object workspace) {
  const ops::KdaProblem& p = plan.problem();
  const device::DeviceInfo& at = stream.stream.info();
  ops::KdaExtendArgs a;
  a.tokens = fill_inputs(p, at, q, k, v, decay, beta, A_log, dt_bias, out, &a);
  if (metadata.tokens >= 0 && metadata.tokens != a.tokens)
    throw_invalid("q tokens", "the " + std::to_string(metadata.tokens) + " that the metadata was made for",
                  std::to_string(a.tokens));
  if (metadata.seq_int64 != p.seq_int64)
    throw_invalid("metadata", p.seq_int64 ? "int64 offsets (Problem.seq_int64)" : "int32 offsets (Problem.seq_int64)",
                  "the other width");
  a.metadata = metadata.view;
  if (!states_in.is_none()) a.state_in = state_view(Array(states_in, "states_in", Access::kRead, at), p, p.state_in);
  if (!states_out.is_none())
    a.state_out = state_view(Array(states_out, "states_out", Access::kWrite, at), p, p.state_out);
  if (!checkpoints.is_none())
    a.checkpoints = state_view(Array(checkpoints, "checkpoints", Access::kWrite, at), p, p.checkpoints);
  want_slots("states_in", a.state_in.slots, metadata.state_in_slots);
  want_slots("states_out", a.state_out.slots, metadata.state_out_slots);
  want_slots("checkpoints", a.checkpoints.slots, metadata.checkpoint_slots);
  if (!metadata.states_shared && overlap(a.state_in.base, a.state_out.base))
    throw_invalid("states_in and states_out", "two arrays (the metadata was made with shared='none')", "one");
  if (!metadata.checkpoints_shared &&
      (overlap(a.state_in.base, a.checkpoints.base) || overlap(a.state_out.base, a.checkpoints.base)))
    throw_invalid("checkpoints", "an array of their own (the metadata was made without shared='all')",
                  "that of the states");
  a.workspace = workspace_of(workspace, plan.workspace_bytes(), stream);
  enqueue(stream, [&] { ops::run_kda(plan, a, stream.stream); });
}

void run_step(const KdaPlan& plan, Stream& stream, nb::object q, nb::object k, nb::object v, nb::object decay,
              nb::object beta, nb::object A_log, nb::object dt_bias, nb::object out, nb::object slot_in,
              nb::object slot_out, nb::object states_in, nb::object states_out, nb::object fused, nb::object status,
              nb::object workspace) {
  const ops::KdaProblem& p = plan.problem();
  const device::DeviceInfo& at = stream.stream.info();
  ops::KdaStepArgs a;
  const int64_t rows = fill_inputs(p, at, q, k, v, decay, beta, A_log, dt_bias, out, &a);
  a.rows = static_cast<int32_t>(rows);
  a.slot_in = ints(slot_in, "slot_in", {rows}, at);
  a.slot_out = ints(slot_out, "slot_out", {rows}, at);
  a.state_in = state_view(Array(states_in, "states_in", Access::kRead, at), p, p.state_in);
  a.state_out = state_view(Array(states_out, "states_out", Access::kWrite, at), p, p.state_out);
  if (p.fused_step) {
    if (fused.is_none()) throw_invalid("fused", "the tensors of a fused step (Problem.fused_step)", "None");
    const int64_t channels = int64_t{2} * p.H * p.K + int64_t{p.HV} * p.V;
    const auto field = [&](const char* name) { return nb::object(fused[name]); };
    a.fused.x = row_tensor(Array(field("x"), "x", Access::kRead, at), rows, channels, p.conv);
    a.fused.conv_weight = parameters(field("conv_weight"), "conv_weight", channels * ops::kConvWidth, at);
    a.fused.conv_bias = parameters(field("conv_bias"), "conv_bias", channels, at);
    a.fused.windows = window_view(Array(field("windows"), "windows", Access::kWrite, at), channels, p.conv);
    a.fused.z = token_tensor(Array(field("z"), "z", Access::kRead, at), rows, p.HV, p.V, p.io);
    a.fused.norm_weight = parameters(field("norm_weight"), "norm_weight", p.V, at);
    a.fused.eps = nb::cast<float>(field("eps"));
    want_slots("windows", a.fused.windows.slots, a.state_out.slots);
  } else if (q.is_none()) {
    throw_invalid("q", "an array [rows, H, K]", "None");
  }
  if (!status.is_none()) a.status = const_cast<int32_t*>(ints(status, "status", {2}, at, Access::kWrite));
  a.workspace = workspace_of(workspace, plan.workspace_bytes(), stream);
  enqueue(stream, [&] { ops::run_kda(plan, a, stream.stream); });
}

void run_verify(const KdaPlan& plan, Stream& stream, nb::object q, nb::object k, nb::object v, nb::object decay,
                nb::object beta, nb::object A_log, nb::object dt_bias, nb::object out, nb::object n_draft,
                nb::object parent, nb::object slot_in, nb::object states, nb::object scratch, nb::object status,
                nb::object workspace) {
  const ops::KdaProblem& p = plan.problem();
  const device::DeviceInfo& at = stream.stream.info();
  ops::KdaVerifyArgs a;
  const int64_t tokens = fill_inputs(p, at, q, k, v, decay, beta, A_log, dt_bias, out, &a);
  if (p.D < 1 || tokens % p.D != 0)
    throw_invalid("q shape", "a multiple of D = " + std::to_string(p.D) + " tokens", std::to_string(tokens));
  const int64_t rows = tokens / p.D;
  a.rows = static_cast<int32_t>(rows);
  a.n_draft = ints(n_draft, "n_draft", {rows}, at);
  a.parent = ints(parent, "parent", {rows, p.D}, at);
  a.slot_in = ints(slot_in, "slot_in", {rows}, at);
  a.state_in = state_view(Array(states, "states", Access::kRead, at), p, p.state_in);
  const Array area(scratch, "scratch", Access::kWrite, at);
  area.want_dtype(DType::kU8);
  area.want_dense(0);
  if (area.size() < static_cast<int64_t>(plan.scratch_bytes()))
    throw_invalid("scratch", std::to_string(plan.scratch_bytes()) + " bytes (Plan.scratch_bytes)", area.describe());
  a.scratch = area.data();
  if (!status.is_none()) a.status = const_cast<int32_t*>(ints(status, "status", {2}, at, Access::kWrite));
  a.workspace = workspace_of(workspace, plan.workspace_bytes(), stream);
  enqueue(stream, [&] { ops::run_kda(plan, a, stream.stream); });
}

void run_commit(const KdaPlan& plan, Stream& stream, nb::object n_draft, nb::object parent, nb::object slot_in,
                nb::object node, nb::object slot_out, nb::object track_node, nb::object track_slot, nb::object scratch,
                nb::object states, nb::object conv_x, nb::object windows, nb::object status) {
  const ops::KdaProblem& p = plan.problem();
  const device::DeviceInfo& at = stream.stream.info();
  ops::KdaCommitArgs a;
  const Array count(n_draft, "n_draft", Access::kRead, at);
  count.want_shape({-1});
  const int64_t rows = count.shape(0);
  a.rows = static_cast<int32_t>(rows);
  a.n_draft = ints(n_draft, "n_draft", {rows}, at);
  a.parent = ints(parent, "parent", {rows, p.D}, at);
  a.slot_in = ints(slot_in, "slot_in", {rows}, at);
  a.node = ints(node, "node", {rows}, at);
  a.slot_out = ints(slot_out, "slot_out", {rows}, at);
  if (track_node.is_none() != track_slot.is_none())
    throw_invalid("track_node and track_slot", "both or neither", "one of them");
  if (!track_node.is_none()) {
    a.track_node = ints(track_node, "track_node", {rows}, at);
    a.track_slot = ints(track_slot, "track_slot", {rows}, at);
  }
  const Array pool(states, "states", Access::kWrite, at);
  const bool layered = pool.ndim() == 5;
  a.states = state_view(pool, p, p.state_in, layered);
  const Array area(scratch, "scratch", Access::kRead, at);
  area.want_dtype(DType::kU8);
  if (layered)
    area.want_shape({a.states.layers, -1});
  else
    area.want_shape({-1});
  area.want_dense(layered ? 1 : 0);
  const int64_t bytes = area.shape(area.ndim() - 1);
  if (bytes < static_cast<int64_t>(plan.scratch_bytes()))
    throw_invalid("scratch", std::to_string(plan.scratch_bytes()) + " bytes a layer (Plan.scratch_bytes)",
                  area.describe());
  a.scratch = area.data();
  a.scratch_layer_bytes = static_cast<size_t>(layered && area.shape(0) > 1 ? area.stride(0) : bytes);
  if (conv_x.is_none() != windows.is_none()) throw_invalid("conv_x and windows", "both or neither", "one of them");
  if (!conv_x.is_none()) {
    const Array x(conv_x, "conv_x", Access::kRead, at);
    const DType dtype = x.float_dtype();
    const int64_t channels = x.ndim() ? x.shape(x.ndim() - 1) : 0;
    const size_t lead = layered ? 1 : 0;
    if (layered)
      x.want_shape({a.states.layers, rows * p.D, -1});
    else
      x.want_shape({rows * p.D, -1});
    x.want_dense(lead + 1);
    a.conv_x = {x.data(), x.shape(lead) > 1 ? x.stride(lead) : channels};
    a.conv_x_layer_pitch = layered && x.shape(0) > 1 ? x.stride(0) : 0;
    a.conv_channels = static_cast<int32_t>(channels);
    a.windows = window_view(Array(windows, "windows", Access::kWrite, at), channels, dtype, layered);
  }
  if (!status.is_none()) a.status = const_cast<int32_t*>(ints(status, "status", {2}, at, Access::kWrite));
  enqueue(stream, [&] { ops::run_kda_commit(plan, a, stream.stream); });
}

// ---------------------------------------------------------------------------------------------------------------------
// Convolution

ops::Conv1dArgs conv_args(nb::handle x, nb::handle weight, nb::handle bias, nb::handle out, DType dtype,
                          const device::DeviceInfo& at, int64_t* tokens) {
  ops::Conv1dArgs c;
  const Array in(x, "x", Access::kRead, at);
  in.want_shape({-1, -1});
  c.dtype = dtype;
  c.channels = static_cast<int32_t>(in.shape(1));
  c.x = row_tensor(in, -1, c.channels, dtype);
  *tokens = in.shape(0);
  c.y = writable(row_tensor(Array(out, "out", Access::kWrite, at), *tokens, c.channels, dtype));
  const Array taps(weight, "weight", Access::kRead, at);
  taps.want_shape({c.channels, ops::kConvWidth});
  c.weight = parameters(weight, "weight", int64_t{c.channels} * ops::kConvWidth, at);
  c.bias = parameters(bias, "bias", c.channels, at);
  return c;
}

void run_conv1d_extend(const KdaPlan& plan, Stream& stream, nb::object x, nb::object weight, nb::object bias,
                       nb::object out, const std::string& dtype, const Metadata& metadata, nb::object windows_in,
                       nb::object windows_out, nb::object checkpoints) {
  const device::DeviceInfo& at = stream.stream.info();
  const DType type = base::parse_float_dtype(dtype);
  ops::Conv1dExtendArgs a;
  a.conv = conv_args(x, weight, bias, out, type, at, &a.tokens);
  if (metadata.tokens >= 0 && metadata.tokens != a.tokens)
    throw_invalid("x tokens", "the " + std::to_string(metadata.tokens) + " that the metadata was made for",
                  std::to_string(a.tokens));
  a.metadata = metadata.view;
  const auto view = [&](nb::handle object, const char* name, Access access, int64_t validated) {
    const ops::WindowView v =
        object.is_none() ? ops::WindowView{} : window_view(Array(object, name, access, at), a.conv.channels, type);
    want_slots(name, v.slots, validated);
    return v;
  };
  a.window_in = view(windows_in, "windows_in", Access::kRead, metadata.state_in_slots);
  a.window_out = view(windows_out, "windows_out", Access::kWrite, metadata.state_out_slots);
  a.checkpoints = view(checkpoints, "checkpoints", Access::kWrite, metadata.checkpoint_slots);
  enqueue(stream, [&] { ops::run_conv1d(plan, a, stream.stream); });
}

void run_conv1d_step(Stream& stream, nb::object x, nb::object weight, nb::object bias, nb::object out,
                     const std::string& dtype, nb::object slot_in, nb::object slot_out, nb::object windows_in,
                     nb::object windows_out) {
  const device::DeviceInfo& at = stream.stream.info();
  const DType type = base::parse_float_dtype(dtype);
  ops::Conv1dStepArgs a;
  int64_t rows = 0;
  a.conv = conv_args(x, weight, bias, out, type, at, &rows);
  a.rows = static_cast<int32_t>(rows);
  a.slot_in = ints(slot_in, "slot_in", {rows}, at);
  a.slot_out = ints(slot_out, "slot_out", {rows}, at);
  a.window_in = window_view(Array(windows_in, "windows_in", Access::kRead, at), a.conv.channels, type);
  a.window_out = window_view(Array(windows_out, "windows_out", Access::kWrite, at), a.conv.channels, type);
  enqueue(stream, [&] { ops::run_conv1d(a, stream.stream); });
}

void run_conv1d_verify(Stream& stream, nb::object x, nb::object weight, nb::object bias, nb::object out,
                       const std::string& dtype, nb::object n_draft, nb::object parent, nb::object slot_in,
                       nb::object windows) {
  const device::DeviceInfo& at = stream.stream.info();
  const DType type = base::parse_float_dtype(dtype);
  ops::Conv1dVerifyArgs a;
  int64_t tokens = 0;
  a.conv = conv_args(x, weight, bias, out, type, at, &tokens);
  const Array tree(parent, "parent", Access::kRead, at);
  tree.want_shape({-1, -1});
  const int64_t rows = tree.shape(0);
  a.rows = static_cast<int32_t>(rows);
  a.D = static_cast<int32_t>(tree.shape(1));
  if (rows * a.D != tokens)
    throw_invalid("x tokens", "rows * D of parent, " + std::to_string(rows * a.D), std::to_string(tokens));
  a.n_draft = ints(n_draft, "n_draft", {rows}, at);
  a.parent = ints(parent, "parent", {rows, a.D}, at);
  a.slot_in = ints(slot_in, "slot_in", {rows}, at);
  a.window_in = window_view(Array(windows, "windows", Access::kRead, at), a.conv.channels, type);
  enqueue(stream, [&] { ops::run_conv1d(a, stream.stream); });
}

void run_state_copy(Stream& stream, nb::object states, const std::string& dtype, nb::object src, nb::object dst,
                    nb::object clear) {
  const device::DeviceInfo& at = stream.stream.info();
  ops::StateCopyArgs a;
  const Array pool(states, "states", Access::kWrite, at);
  const bool layered = pool.ndim() == 5;
  if (pool.ndim() != 4 && !layered)
    throw_invalid("states", "[slots, HV, V, K] or [layers, slots, HV, V, K]", pool.describe());
  const size_t d = pool.ndim();
  ops::KdaProblem p;
  p.HV = static_cast<int32_t>(pool.shape(d - 3));
  p.V = static_cast<int32_t>(pool.shape(d - 2));
  p.K = static_cast<int32_t>(pool.shape(d - 1));
  a.states = state_view(pool, p, base::parse_float_dtype(dtype), layered);
  a.HV = p.HV, a.V = p.V, a.K = p.K;
  const auto list = [&](nb::handle object, const char* name, int32_t* count) -> const int32_t* {
    if (object.is_none()) return nullptr;
    const Array items(object, name, Access::kRead, at);
    items.want_shape({-1});
    *count = static_cast<int32_t>(items.shape(0));
    return ints(object, name, {items.shape(0)}, at);
  };
  int32_t destinations = 0;
  a.src = list(src, "src", &a.copies);
  a.dst = list(dst, "dst", &destinations);
  if (destinations != a.copies)
    throw_invalid("dst", "as many slots as src, " + std::to_string(a.copies), std::to_string(destinations));
  a.clear = list(clear, "clear", &a.clears);
  enqueue(stream, [&] { ops::run_state_copy(a, stream.stream); });
}

}  // namespace

void bind_operators(nb::module_& m) {
  using namespace nb::literals;
  // Arrays may be None here: what is missing is refused by name in Array.
  const char* doc = "Called by kadence.operators, which has the documentation.";
  m.def("run_extend", &run_extend, doc, "plan"_a, "stream"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        "decay"_a.none(), "beta"_a.none(), "A_log"_a.none(), "dt_bias"_a.none(), "out"_a.none(), "metadata"_a,
        "states_in"_a.none(), "states_out"_a.none(), "checkpoints"_a.none(), "workspace"_a.none());
  m.def("run_step", &run_step, doc, "plan"_a, "stream"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(), "decay"_a.none(),
        "beta"_a.none(), "A_log"_a.none(), "dt_bias"_a.none(), "out"_a.none(), "slot_in"_a.none(), "slot_out"_a.none(),
        "states_in"_a.none(), "states_out"_a.none(), "fused"_a.none(), "status"_a.none(), "workspace"_a.none());
  m.def("run_verify", &run_verify, doc, "plan"_a, "stream"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        "decay"_a.none(), "beta"_a.none(), "A_log"_a.none(), "dt_bias"_a.none(), "out"_a.none(), "n_draft"_a.none(),
        "parent"_a.none(), "slot_in"_a.none(), "states"_a.none(), "scratch"_a.none(), "status"_a.none(),
        "workspace"_a.none());
  m.def("run_commit", &run_commit, doc, "plan"_a, "stream"_a, "n_draft"_a.none(), "parent"_a.none(), "slot_in"_a.none(),
        "node"_a.none(), "slot_out"_a.none(), "track_node"_a.none(), "track_slot"_a.none(), "scratch"_a.none(),
        "states"_a.none(), "conv_x"_a.none(), "windows"_a.none(), "status"_a.none());
  m.def("run_conv1d_extend", &run_conv1d_extend, doc, "plan"_a, "stream"_a, "x"_a.none(), "weight"_a.none(),
        "bias"_a.none(), "out"_a.none(), "dtype"_a, "metadata"_a, "windows_in"_a.none(), "windows_out"_a.none(),
        "checkpoints"_a.none());
  m.def("run_conv1d_step", &run_conv1d_step, doc, "stream"_a, "x"_a.none(), "weight"_a.none(), "bias"_a.none(),
        "out"_a.none(), "dtype"_a, "slot_in"_a.none(), "slot_out"_a.none(), "windows_in"_a.none(),
        "windows_out"_a.none());
  m.def("run_conv1d_verify", &run_conv1d_verify, doc, "stream"_a, "x"_a.none(), "weight"_a.none(), "bias"_a.none(),
        "out"_a.none(), "dtype"_a, "n_draft"_a.none(), "parent"_a.none(), "slot_in"_a.none(), "windows"_a.none());
  m.def("run_state_copy", &run_state_copy, doc, "stream"_a, "states"_a.none(), "dtype"_a, "src"_a.none(),
        "dst"_a.none(), "clear"_a.none());
}

}  // namespace kadence::python
