// Module _core: devices, streams, plans, metadata. The operators are in operators.cc.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <exception>

#include "base/error.h"
#include "ops/kda_layout.h"
#include "runtime.h"

#ifdef KADENCE_CUDA
#include <cuda_runtime.h>
#endif

namespace kadence::python {

void* Stream::workspace(size_t bytes) {
  if (bytes > buffer.size()) {
    buffer = device::Buffer();  // the old one goes first: they need not fit together
    buffer = device::Buffer::allocate(stream.info(), bytes);
  }
  return buffer.data();
}

void* workspace_of(nb::handle object, size_t bytes, Stream& stream) {
  if (object.is_none()) {
    const std::lock_guard<std::mutex> lock(stream.lock);
    return stream.workspace(bytes);
  }
  const Array a(object, "workspace", Access::kWrite, stream.stream.info());
  a.want_dtype(DType::kU8);
  a.want_dense(0);
  if (a.size() < static_cast<int64_t>(bytes))
    base::throw_invalid("workspace", std::to_string(bytes) + " bytes (Plan.workspace_bytes)", a.describe());
  return a.data();
}

namespace {

using base::throw_invalid;
using device::DeviceInfo;
using device::DeviceKind;

// Whether a CUDA graph is being captured from the stream.
bool capturing([[maybe_unused]] const Stream& s) {
#ifdef KADENCE_CUDA
  if (s.stream.info().kind == DeviceKind::kCuda) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t e = cudaStreamIsCapturing(static_cast<cudaStream_t>(s.stream.native()), &status);
    if (e != cudaSuccess) cudaGetLastError();  // said once, here
    return status != cudaStreamCaptureStatusNone || e == cudaErrorStreamCaptureImplicit;
  }
#endif
  return false;
}

template <class Enum>
Enum choice(nb::handle object, const char* field, std::initializer_list<std::pair<const char*, Enum>> names) {
  const std::string got = nb::cast<std::string>(nb::str(object.attr(field)));
  std::string wanted;
  for (const auto& [name, value] : names) {
    if (got == name) return value;
    wanted += (wanted.empty() ? "" : ", ") + std::string(name);
  }
  throw_invalid(field, wanted, got);
}

ops::KdaProblem to_problem(nb::handle o) {
  const auto integer = [&](const char* name) { return nb::cast<int64_t>(o.attr(name)); };
  const auto narrow = [&](const char* name) {
    const int64_t n = integer(name);
    if (n < INT32_MIN || n > INT32_MAX) throw_invalid(name, "a number of 32 bits", std::to_string(n));
    return static_cast<int32_t>(n);
  };
  const auto real = [&](const char* name) { return nb::cast<float>(o.attr(name)); };
  const auto flag = [&](const char* name) { return nb::cast<bool>(o.attr(name)); };
  const auto dtype = [&](const char* name) {
    return base::parse_float_dtype(nb::cast<std::string>(nb::str(o.attr(name))));
  };
  ops::KdaProblem p;
  p.phase = choice<ops::KdaPhase>(
      o, "phase",
      {{"extend", ops::KdaPhase::kExtend}, {"step", ops::KdaPhase::kStep}, {"verify", ops::KdaPhase::kVerify}});
  p.H = narrow("H"), p.HV = narrow("HV"), p.K = narrow("K"), p.V = narrow("V");
  p.io = dtype("io"), p.decay = dtype("decay"), p.beta = dtype("beta");
  p.state_in = dtype("state_in"), p.state_out = dtype("state_out"), p.checkpoints = dtype("checkpoints");
  p.gate = choice<ops::KdaGate>(o, "gate",
                                {{"bounded", ops::KdaGate::kBounded},
                                 {"softplus", ops::KdaGate::kSoftplus},
                                 {"given_log_decay", ops::KdaGate::kGivenLogDecay}});
  p.lower_bound = real("lower_bound");
  p.beta_mode =
      choice<ops::KdaBeta>(o, "beta_mode", {{"logits", ops::KdaBeta::kLogits}, {"given", ops::KdaBeta::kGiven}});
  p.beta_doubled = flag("beta_doubled"), p.l2norm = flag("l2norm");
  p.scale = real("scale");
  p.seq_int64 = flag("seq_int64");
  p.D = narrow("D");
  p.fused_step = flag("fused_step");
  p.conv = dtype("conv");
  p.bounds.max_rows = narrow("max_rows");
  p.bounds.max_tokens = integer("max_tokens");
  p.bounds.max_checkpoints = narrow("max_checkpoints");
  return p;
}

ops::KdaOptions to_options(nb::handle o) {
  ops::KdaOptions options;
  options.backend = nb::cast<std::string>(o.attr("backend"));
  options.extend_block_tokens = nb::cast<int32_t>(o.attr("extend_block_tokens"));
  options.mode = choice<ops::KdaMode>(o, "mode", {{"exact", ops::KdaMode::kExact}, {"fast", ops::KdaMode::kFast}});
  options.verify_matches_step = nb::cast<bool>(o.attr("verify_matches_step"));
  return options;
}

std::unique_ptr<Metadata> upload_metadata(const ops::KdaPlan& plan, Stream& stream, int64_t tokens,
                                          const std::vector<int64_t>& seq_begin, const std::vector<int32_t>& state_in,
                                          const std::vector<int32_t>& state_out, const std::vector<int32_t>& ckpt_begin,
                                          const std::vector<int32_t>& ckpt_depth, const std::vector<int32_t>& ckpt_slot,
                                          int64_t state_in_slots, int64_t state_out_slots, int64_t checkpoint_slots,
                                          const std::string& shared, nb::object buffer) {
  // A graph would keep the address of the staging memory and copy whatever lies there when it is replayed.
  if (capturing(stream))
    throw_invalid("metadata", "an upload before the capture of a CUDA graph (or kadence.device_metadata in it)",
                  "a stream that is being captured");
  ops::KdaHostMetadata host;
  host.seq_begin = seq_begin, host.state_in = state_in, host.state_out = state_out;
  host.ckpt_begin = ckpt_begin, host.ckpt_depth = ckpt_depth, host.ckpt_slot = ckpt_slot;
  host.tokens = tokens;
  host.state_in_slots = state_in_slots, host.state_out_slots = state_out_slots, host.ckpt_slots = checkpoint_slots;
  if (shared != "all" && shared != "states" && shared != "none") throw_invalid("shared", "all, states or none", shared);
  host.same_pool = shared == "all";
  ops::validate(plan, host);
  if (shared == "states") {  // a second time for what the rows do to the states alone
    ops::KdaHostMetadata states = host;
    states.ckpt_begin = {}, states.ckpt_depth = {}, states.ckpt_slot = {};
    states.same_pool = true;
    ops::validate(plan, states);
  }
  auto m = std::make_unique<Metadata>();
  void* memory = nullptr;
  if (buffer.is_none()) {
    m->buffer = device::Buffer::allocate(stream.stream.info(), plan.metadata_bytes());
    memory = m->buffer.data();
  } else {
    const Array given(buffer, "buffer", Access::kWrite, stream.stream.info());
    given.want_dtype(DType::kU8);
    given.want_dense(0);
    if (given.size() < static_cast<int64_t>(plan.metadata_bytes()))
      throw_invalid("buffer", std::to_string(plan.metadata_bytes()) + " bytes (Plan.metadata_bytes)", given.describe());
    m->keep = {buffer};
    memory = given.data();
  }
  {
    const std::lock_guard<std::mutex> lock(stream.lock);
    m->view = ops::upload(plan, host, memory, stream.stream);
  }
  m->tokens = tokens;
  m->state_in_slots = state_in_slots, m->state_out_slots = state_out_slots, m->checkpoint_slots = checkpoint_slots;
  m->states_shared = shared != "none", m->checkpoints_shared = shared == "all";
  m->seq_int64 = plan.problem().seq_int64;
  return m;
}

std::unique_ptr<Metadata> device_metadata(const ops::KdaPlan& plan, const DeviceInfo& at, nb::object seq_begin,
                                          nb::object state_in, nb::object state_out, nb::object ckpt_begin,
                                          nb::object ckpt_depth, nb::object ckpt_slot, nb::object status) {
  auto m = std::make_unique<Metadata>();
  m->keep = {seq_begin, state_in, state_out, ckpt_begin, ckpt_depth, ckpt_slot, status};
  const Array offsets(seq_begin, "seq_begin", Access::kRead, at);
  m->seq_int64 = plan.problem().seq_int64;
  offsets.want_dtype(m->seq_int64 ? DType::kI64 : DType::kI32);
  offsets.want_shape({-1});
  offsets.want_dense(0);
  const int64_t rows = offsets.shape(0) - 1;
  if (rows < 0) throw_invalid("seq_begin", "rows + 1 entries", "none");
  m->view.seq_begin = offsets.data();
  m->view.rows = static_cast<int32_t>(rows);
  m->view.state_in = ints(state_in, "state_in", {rows}, at);
  m->view.state_out = ints(state_out, "state_out", {rows}, at);
  if (!ckpt_begin.is_none()) {
    const Array depths(ckpt_depth, "ckpt_depth", Access::kRead, at);
    depths.want_shape({-1});
    const int64_t count = depths.shape(0);
    if (count > plan.problem().bounds.max_checkpoints)
      throw_invalid("ckpt_depth",
                    "at most max_checkpoints = " + std::to_string(plan.problem().bounds.max_checkpoints) + " entries",
                    std::to_string(count));
    if (count > 0) {  // an empty array may have no address
      m->view.ckpt_begin = ints(ckpt_begin, "ckpt_begin", {rows + 1}, at);
      m->view.ckpt_depth = ints(ckpt_depth, "ckpt_depth", {count}, at);
      m->view.ckpt_slot = ints(ckpt_slot, "ckpt_slot", {count}, at);
    }
  }
  if (!status.is_none()) m->view.status = const_cast<int32_t*>(ints(status, "status", {2}, at, Access::kWrite));
  return m;
}

void bind_device(nb::module_& m) {
  nb::class_<DeviceInfo>(m, "Device", "Facts of a device; made by kadence.cpu and kadence.cuda.")
      .def_prop_ro("kind", [](const DeviceInfo& d) { return std::string(d.kind == DeviceKind::kCpu ? "cpu" : "cuda"); })
      .def_ro("ordinal", &DeviceInfo::ordinal)
      .def_ro("name", &DeviceInfo::name)
      .def_ro("threads", &DeviceInfo::threads)
      .def_prop_ro("isa", [](const DeviceInfo& d) { return std::string(device::to_string(d.isa)); })
      .def_prop_ro("compute_capability", [](const DeviceInfo& d) { return std::make_tuple(d.sm_major, d.sm_minor); })
      .def_ro("sm_count", &DeviceInfo::sm_count)
      .def_ro("total_memory", &DeviceInfo::total_memory)
      .def("__repr__", [](const DeviceInfo& d) { return "<kadence.Device " + d.name + ">"; });
  m.def("cpu_device",
        [](int threads, const std::string& isa) { return device::cpu_info(threads, device::parse_isa(isa)); });
  m.def("cuda_device", [](int ordinal) { return device::cuda_info(ordinal); });
  m.def(
      "cuda_device_count",
      [] {
        std::string why;
        const int n = device::cuda_device_count(&why);
        return std::make_tuple(n, why);
      },
      "Devices, and why there are none.");

  nb::class_<Stream>(m, "Stream", "An ordered queue of work; made by kadence.stream.")
      .def_prop_ro("device", [](const Stream& s) { return s.stream.info(); })
      .def(
          "synchronize",
          [](Stream& s) {
            const nb::gil_scoped_release unlocked;
            s.stream.synchronize();
          },
          "Waits for everything enqueued so far.")
      .def("__repr__", [](const Stream& s) { return "<kadence.Stream of " + s.stream.info().name + ">"; });
  m.def("cpu_stream", [](int threads, const std::string& isa) {
    return std::make_unique<Stream>(device::Stream::cpu(threads, device::parse_isa(isa)));
  });
  m.def("cuda_stream", [](int ordinal, uintptr_t handle) {
    return std::make_unique<Stream>(device::Stream::wrap_cuda(ordinal, reinterpret_cast<void*>(handle)));
  });
}

void bind_plan(nb::module_& m) {
  using namespace nb::literals;
  using ops::KdaPlan;
  nb::class_<KdaPlan>(m, "Plan", "What plan_kda chose: holds no address and no metadata value.")
      .def_prop_ro("backend", &KdaPlan::backend)
      .def_prop_ro("isa", [](const KdaPlan& p) { return std::string(device::to_string(p.isa())); })
      .def_prop_ro("device", [](const KdaPlan& p) { return p.device_; })
      .def_prop_ro("workspace_bytes", &KdaPlan::workspace_bytes)
      .def_prop_ro("metadata_bytes", &KdaPlan::metadata_bytes)
      .def_prop_ro("scratch_bytes", &KdaPlan::scratch_bytes)
      .def_prop_ro("block_tokens", &KdaPlan::block_tokens)
      .def_prop_ro("scale", &KdaPlan::scale)
      .def("__repr__", [](const KdaPlan& p) { return "<kadence.Plan " + p.backend() + " on " + p.device_.name + ">"; });
  m.def("make_plan", [](nb::object problem, const DeviceInfo& at, nb::object options) {
    return ops::plan_kda(to_problem(problem), at, to_options(options));
  });
  m.def("backend_misses", [](const std::string& backend, nb::object problem, const DeviceInfo& at) {
    return ops::kda_backend_misses(backend, to_problem(problem), at);
  });
  m.def("backend_table", [] {
    nb::list rows;
    for (const ops::KdaBackendInfo& b : ops::kda_backends()) {
      nb::dict row;
      row["name"] = b.name;
      row["device"] = b.kind == DeviceKind::kCpu ? "cpu" : "cuda";
      row["extend"] = b.extend, row["step"] = b.step, row["verify"] = b.verify, row["checkpoints"] = b.checkpoints;
      row["summary"] = b.summary;
      rows.append(row);
    }
    return rows;
  });
  nb::class_<Metadata>(m, "Metadata", "Rows, slots and checkpoints of extend, on the device.")
      .def_prop_ro(
          "rows", [](const Metadata& d) { return d.view.rows; }, "Launch bound of the rows.")
      .def_ro("tokens", &Metadata::tokens, "Tokens it was validated for; -1 when its values are unseen.");
  m.def("upload_metadata", &upload_metadata, "plan"_a, "stream"_a, "tokens"_a, "seq_begin"_a, "state_in"_a,
        "state_out"_a, "ckpt_begin"_a, "ckpt_depth"_a, "ckpt_slot"_a, "state_in_slots"_a, "state_out_slots"_a,
        "checkpoint_slots"_a, "shared"_a, "buffer"_a.none());
  m.def("device_metadata", &device_metadata, "plan"_a, "device"_a, "seq_begin"_a.none(), "state_in"_a.none(),
        "state_out"_a.none(), "ckpt_begin"_a.none(), "ckpt_depth"_a.none(), "ckpt_slot"_a.none(), "status"_a.none());
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Native part of kadence; use the functions of the package.";
  nb::set_leak_warnings(false);  // caches of devices, streams and plans live until the interpreter is gone
  // Bad arguments are ValueError, what no backend does is NotImplementedError, the rest RuntimeError.
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const base::Error& e) {
      const bool argument = e.code() == base::ErrorCode::kInvalidArgument || e.code() == base::ErrorCode::kOutOfRange;
      PyErr_SetString(argument                                    ? PyExc_ValueError
                      : e.code() == base::ErrorCode::kUnsupported ? PyExc_NotImplementedError
                                                                  : PyExc_RuntimeError,
                      e.what());
    }
  });
  m.attr("__version__") = KADENCE_VERSION;
  m.attr("chunk_tokens") = ops::kChunkTokens;
#ifdef KADENCE_CUDA
  m.attr("built_with_cuda") = true;
#else
  m.attr("built_with_cuda") = false;
#endif
  bind_device(m);
  bind_plan(m);
  bind_operators(m);
}

}  // namespace kadence::python
