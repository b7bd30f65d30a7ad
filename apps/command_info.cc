// `kadence info`: what this machine and this build can run and, for everything that cannot run, why.
#include <fmt/core.h>

#include <iostream>
#include <memory>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/table.h"
#include "base/error.h"
#include "ops/kda.h"

namespace kadence::apps {
namespace {

Table isa_table() {
  Table table("CPU instruction sets", {{"name", "name"},
                                       {"runs", "runs", Format::kYesNo},
                                       {"chosen", "by --isa auto", Format::kMark},
                                       {"reason", "reason"}});
  const device::Isa best = device::resolve_isa(device::Isa::kAuto);
  for (const device::Isa isa : {device::Isa::kBaseline, device::Isa::kAvx2, device::Isa::kAvx512}) {
    std::string reason;
    try {
      device::resolve_isa(isa);
    } catch (const base::Error& e) {
      reason = e.what();
    }
    table.add({device::to_string(isa), reason.empty(), isa == best, reason});
  }
  return table;
}

std::vector<device::DeviceInfo> devices(const DeviceFlags& flags, std::string* no_cuda) {
  std::vector<device::DeviceInfo> out{device_info(flags)};
  const int n = device::cuda_device_count(no_cuda);
  for (int i = 0; i < n; ++i) out.push_back(device::cuda_info(i));
  return out;
}

Table device_table(const std::vector<device::DeviceInfo>& found, const std::string& no_cuda) {
  Table table("Devices",
              {{"device", "device"}, {"name", "name"}, {"memory", "memory", Format::kBytes}, {"detail", "detail"}});
  for (const auto& d : found) {
    if (d.kind == device::DeviceKind::kCpu)
      table.add({"cpu", d.name, d.total_memory, fmt::format("{} threads, {}", d.threads, device::to_string(d.isa))});
    else
      table.add({fmt::format("cuda:{}", d.ordinal), d.name, d.total_memory,
                 fmt::format("sm_{}{}, {} SMs", d.sm_major, d.sm_minor, d.sm_count)});
  }
  if (!no_cuda.empty()) table.add({"cuda", nullptr, nullptr, "none: " + no_cuda});
  return table;
}

// Each backend on the devices of its kind, for one problem of the published models' shape per phase.
Table backend_table(const std::vector<device::DeviceInfo>& found, const std::string& no_cuda) {
  Table table("KDA backends (32 heads x 128, float32, decay without a lower bound)", {{"backend", "backend"},
                                                                                      {"device", "device"},
                                                                                      {"phase", "phase"},
                                                                                      {"runs", "runs", Format::kYesNo},
                                                                                      {"reason", "reason"}});
  static constexpr struct {
    ops::KdaPhase phase;
    const char* name;
  } kPhases[] = {
      {ops::KdaPhase::kExtend, "prefill"}, {ops::KdaPhase::kStep, "decode"}, {ops::KdaPhase::kVerify, "verify"}};
  for (const ops::KdaBackendInfo& backend : ops::kda_backends()) {
    bool any = false;
    for (const auto& d : found) {
      if (d.kind != backend.kind) continue;
      any = true;
      for (const auto& phase : kPhases) {
        ops::KdaProblem p;
        p.phase = phase.phase;
        p.H = p.HV = 32;
        p.K = p.V = 128;
        p.gate = ops::KdaGate::kSoftplus;
        p.D = phase.phase == ops::KdaPhase::kVerify ? 4 : 0;
        p.bounds = {16, 8192, phase.phase == ops::KdaPhase::kExtend ? 64 : 0};
        std::string reason;
        for (const std::string& miss : ops::kda_backend_misses(backend.name, p, d))
          reason += (reason.empty() ? "" : "; ") + miss;
        table.add({backend.name, d.kind == device::DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", d.ordinal),
                   phase.name, reason.empty(), reason});
      }
    }
    if (!any) table.add({backend.name, "cuda", "all", false, no_cuda.empty() ? "no CUDA device" : no_cuda});
  }
  bool has_cuda_backend = false;
  for (const auto& b : ops::kda_backends()) has_cuda_backend |= b.kind == device::DeviceKind::kCuda;
  if (!has_cuda_backend) {
    for (const char* name : {"sm80", "sm80-recurrent", "sm90"})
      table.add({name, "cuda", "all", false, "not in this build: configure with -DKADENCE_CUDA=ON (preset cuda)"});
  }
  return table;
}

}  // namespace

void add_info(CLI::App& app, Action* action) {
  CLI::App* sub =
      app.add_subcommand("info", "Instruction sets, devices, backends and, for each that cannot run, the reason");
  auto flags = std::make_shared<DeviceFlags>();
  auto json = std::make_shared<bool>(false);
  add_device_flags(*sub, flags.get());
  sub->add_flag("--json", *json, "One JSON document");
  sub->callback([=] {
    *action = [=] {
      std::string no_cuda;
      const auto found = devices(*flags, &no_cuda);
      const Table isas = isa_table(), devices = device_table(found, no_cuda), backends = backend_table(found, no_cuda);
      if (*json) {
        Json out = Json::object();
        out["version"] = KADENCE_VERSION;
        out["instruction_sets"] = isas.json();
        out["devices"] = devices.json();
        out["backends"] = backends.json();
        std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
      } else {
        std::cout << "kadence " << KADENCE_VERSION << "\n\n"
                  << isas.text() << "\n"
                  << devices.text() << "\n"
                  << backends.text();
      }
      return kOk;
    };
  });
}

}  // namespace kadence::apps
