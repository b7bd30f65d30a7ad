// `kadence bench ops`: the operators at given shapes, median and spread, time over floor.
#include <fmt/core.h>

#include <fstream>
#include <iostream>
#include <memory>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/numbers.h"
#include "apps/progress.h"
#include "apps/table.h"
#include "base/error.h"
#include "ops/testing/kda_bench.h"

namespace kadence::apps {
namespace {

struct Options {
  std::string what = "ops";
  DeviceFlags device;
  ops::testing::KdaBenchOptions bench;
  std::string lengths = "2048", step_rows = "1,8", io = "float32", state = "float32", step_pool = "1GiB";
  bool json = false;
};

base::DType dtype_of(const std::string& flag, const std::string& name) {
  try {
    return base::parse_float_dtype(name);
  } catch (const base::Error&) {
    throw UsageError(fmt::format("{}: wanted float32, bfloat16 or float16, got '{}'", flag, name));
  }
}

// Bytes that a benchmark may take: most of what is free now.
int64_t free_memory(const device::DeviceInfo& device) {
  std::ifstream file("/proc/meminfo");
  int64_t kib = 0;
  for (std::string word; device.kind == device::DeviceKind::kCpu && file >> word;) {
    if (word == "MemAvailable:" && file >> kib) return kib * 1024 / 10 * 8;
  }
  return static_cast<int64_t>(static_cast<double>(device.total_memory) * 0.5);
}

int run_bench(Options o) {
  const auto at_most = [](const char* flag, int64_t value, int64_t most) {
    if (value > most) throw UsageError(fmt::format("{}: wanted at most {}, got {}", flag, most, value));
  };
  o.bench.lengths = parse_list("--lengths", o.lengths);
  for (const int64_t length : o.bench.lengths) at_most("--lengths", length, 1 << 24);
  o.bench.step_rows.clear();
  for (const int64_t rows : parse_list("--step-rows", o.step_rows)) {
    at_most("--step-rows", rows, 1 << 20);
    o.bench.step_rows.push_back(static_cast<int32_t>(rows));
  }
  o.bench.io = dtype_of("--io-dtype", o.io);
  o.bench.state = dtype_of("--mamba-ssm-dtype", o.state);
  o.bench.step_pool_bytes = o.step_pool == "0" ? 0 : parse_bytes("--step-pool", o.step_pool);
  if (o.bench.HV % o.bench.H != 0)
    throw UsageError(fmt::format("--value-heads: wanted a multiple of --heads {}, got {}", o.bench.H, o.bench.HV));
  std::string known = "auto";
  bool is_known = o.bench.backend == "auto";
  for (const ops::KdaBackendInfo& backend : ops::kda_backends()) {
    is_known |= o.bench.backend == backend.name;
    known += std::string(", ") + backend.name;
  }
  if (!is_known) throw UsageError(fmt::format("--backend: wanted one of {}, got '{}'", known, o.bench.backend));
  device::Stream stream = open_stream(o.device);
  o.bench.memory_bytes = free_memory(stream.info());
  Progress progress;
  progress.show("timing the operators");
  const auto rows = ops::testing::bench_kda(stream, o.bench);
  progress.clear();
  Table table(
      fmt::format("KDA operators, {} threads, {} repeats at most (median of a call; low and high: 10 % and 90 %)",
                  stream.info().threads, o.bench.repeats),
      {{"op", "operator"},
       {"shape", "shape"},
       {"backend", "backend"},
       {"calls", "calls", Format::kInteger},
       {"median_us", "median us", Format::kNumber},
       {"low_us", "low us", Format::kNumber},
       {"high_us", "high us", Format::kNumber},
       {"per_unit_us", "us a unit", Format::kNumber},
       {"unit", "unit"},
       {"floor_us", "floor us", Format::kNumber},
       {"floor", "floor is"},
       {"over_floor", "time over floor", Format::kNumber}});
  for (const auto& r : rows) {
    table.add({r.op, r.shape, r.backend, r.calls, r.median_us, r.low_us, r.high_us, r.per_unit_us, r.unit, r.floor_us,
               r.floor, r.floor_us > 0 ? Json(r.over_floor()) : Json()});
  }
  if (o.json) {
    Json out = Json::object();
    out["threads"] = stream.info().threads;
    out["isa"] = device::to_string(stream.info().isa);
    out["rows"] = table.json();
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << table.text();
  }
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand("bench",
                                     "Operator timings: median, spread, and time over the floor of this machine "
                                     "(memory copy or multiply-adds, same run).\n"
                                     "Shapes are planned before anything is timed; what needs more than 80 % of the "
                                     "free memory is refused.");
  auto o = std::make_shared<Options>();
  CLI::App* serve = add_bench_serve(*sub, action);
  CLI::Option* what = sub->add_option("what", o->what, "ops, or the subcommand serve")->check(CLI::IsMember({"ops"}));
  auto& b = o->bench;
  sub->add_option("--heads", b.H, "Query and key heads H")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--value-heads", b.HV, "Value heads HV, a multiple of H")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--key-dim", b.K, "Key channels K")
      ->check(CLI::Range(16, 512))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--value-dim", b.V, "Value channels V")
      ->check(CLI::Range(16, 512))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--lengths", o->lengths, "Prompt lengths of extend's rows, apart by commas")
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--step-rows", o->step_rows, "Batch sizes of step, apart by commas")
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--step-pool", o->step_pool, "One step over so many bytes of states, e.g. 1GiB; 0 = none")
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--draft-tokens", b.draft_tokens, "Tokens of verify's rows, 0 = none")
      ->check(CLI::Range(0, 64))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--io-dtype", o->io, "Inputs and outputs: float32, bfloat16 or float16")
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--mamba-ssm-dtype", o->state, "States: float32, bfloat16 or float16")
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--checkpoint-every", b.checkpoint_every, "Tokens between extend's checkpoints, 0 = none")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group("Shape");
  sub->add_option("--backend", b.backend, "auto or a name of kadence info")
      ->capture_default_str()
      ->group("Measurement");
  sub->add_option("--repeats", b.repeats, "Repeats of each measurement at most")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str()
      ->group("Measurement");
  sub->add_option(
         "--seconds", b.seconds,
         "A row of the table ends after so many seconds, but not within a call: one warms up, one at least is timed")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str()
      ->group("Measurement");
  sub->add_flag("--json", o->json, "One JSON document");
  add_device_flags(*sub, &o->device);
  sub->callback([=] {
    if (sub->got_subcommand(serve)) return;  // has set its own action
    if (what->count() == 0) throw CLI::RequiredError("what: ops or serve");
    *action = [=] { return run_bench(*o); };
  });
}

}  // namespace kadence::apps
