// `kadence plan`: the pools that flags mean for a model, without loading its weights.
#include <fmt/core.h>

#include <cmath>
#include <iostream>
#include <memory>

#include "apps/cli.h"
#include "apps/flags.h"
#include "apps/session.h"
#include "apps/table.h"
#include "base/error.h"

namespace kadence::apps {
namespace {

Json plan_json(const engine::MemoryPlan& p) {
  Json out = Json::object();
  out["weight_bytes"] = p.weight_bytes;
  out["workspace_bytes"] = p.workspace_bytes;
  out["bytes_per_slot"] = p.bytes_per_slot;
  out["state_slots"] = p.state_slots;
  out["state_bytes"] = p.state_bytes;
  out["bytes_per_kv_token"] = p.bytes_per_kv_token;
  out["kv_tokens"] = p.kv_tokens;
  out["kv_bytes"] = p.kv_bytes;
  out["total_bytes"] = p.total_bytes;
  out["slots_per_request"] = p.slots_per_request;
  out["effective_running_requests"] = p.effective_running_requests;
  out["context_length"] = p.context_length;
  out["tree_page"] = p.grids.tree_page;
  out["checkpoint_grid"] = p.grids.checkpoint;
  out["track_grid"] = p.grids.track;
  out["shortest_hit"] = p.shortest_hit;
  out["notes"] = p.notes;
  return out;
}

Table plan_table(const engine::MemoryPlan& p, int32_t asked) {
  Table t("", {{"what", "what"},
               {"value", "value", Format::kInteger},
               {"bytes", "bytes", Format::kBytes},
               {"detail", "detail"}});
  t.add({"weights", nullptr, p.weight_bytes, "as kept in memory"});
  t.add({"workspace", nullptr, p.workspace_bytes, "of one step, whatever the prompt's length"});
  t.add({"state slots", p.state_slots, p.state_bytes,
         fmt::format("{} a slot (states and conv windows of all layers)",
                     format_bytes(static_cast<double>(p.bytes_per_slot)))});
  t.add({"KV tokens", p.kv_tokens, p.kv_bytes,
         fmt::format("{} a token", format_bytes(static_cast<double>(p.bytes_per_kv_token)))});
  t.add({"total", nullptr, p.total_bytes, ""});
  t.add({"running requests", p.effective_running_requests, nullptr,
         fmt::format("asked for {}; {} slots each at most", with_commas(asked), p.slots_per_request)});
  t.add({"context length", p.context_length, nullptr, "longest prompt plus output"});
  t.add({"checkpoint grid", p.grids.checkpoint, nullptr,
         fmt::format("tree page {}, track grid {}", p.grids.tree_page, p.grids.track)});
  t.add({"shortest hit", p.shortest_hit, nullptr, "shorter prompts never hit the cache"});
  return t;
}

// Builds the engine and compares what it took with the plan.
bool measure(const EngineFlags& flags, const engine::MemoryPlan& plan, Table* table) {
  Progress progress;
  Session session = open_session(flags, progress);
  const engine::EngineStats stats = session.engine->stats();
  const engine::MemoryPlan& real = session.engine->memory_plan();
  bool ok = true;
  auto row = [&](const char* what, double planned, double allocated) {
    const double off = planned > 0 ? allocated / planned - 1 : (allocated > 0 ? 1 : 0);
    const bool holds = std::fabs(off) <= 0.01;
    ok &= holds;
    table->add({what, planned, allocated, fmt::format("{:+.2f} %", off * 100), holds});
  };
  const auto weights = static_cast<double>(session.engine->model().weight_bytes());
  const auto workspace = static_cast<double>(session.engine->model().workspace_bytes());
  const double slots = static_cast<double>(stats.slots.capacity) * static_cast<double>(real.bytes_per_slot);
  const double kv = static_cast<double>(stats.pages.capacity) * static_cast<double>(flags.options.page_size) *
                    static_cast<double>(real.bytes_per_kv_token);
  row("weights", static_cast<double>(plan.weight_bytes), weights);
  row("workspace", static_cast<double>(plan.workspace_bytes), workspace);
  row("state slots", static_cast<double>(plan.state_bytes), slots);
  row("KV pages", static_cast<double>(plan.kv_bytes), kv);
  row("total", static_cast<double>(plan.total_bytes), weights + workspace + slots + kv);
  return ok;
}

struct Options {
  EngineFlags engine;
  bool json = false, measure = false;
};

int run_plan(const Options& o) {
  const engine::EngineOptions options = engine_options(o.engine);  // wrong flags before a wrong model
  const model::ModelConfig config = model::load_config(o.engine.model);
  const engine::MemoryPlan plan = engine::plan_memory(o.engine.model, config, options, device_info(o.engine.device));
  Table measured("Planned and allocated", {{"what", "what"},
                                           {"planned", "planned", Format::kBytes},
                                           {"allocated", "allocated", Format::kBytes},
                                           {"off", "off"},
                                           {"ok", "within 1 %", Format::kYesNo}});
  const bool ok = !o.measure || measure(o.engine, plan, &measured);
  if (o.json) {
    Json out = plan_json(plan);
    out["model"] = o.engine.model;
    out["max_running_requests"] = o.engine.options.max_running_requests;
    if (o.measure) out["measured"] = measured.json();
    std::cout << out.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << plan_table(plan, o.engine.options.max_running_requests).text();
    for (const std::string& note : plan.notes) std::cout << "  note: " << note << "\n";
    if (o.measure) std::cout << "\n" << measured.text();
  }
  return ok ? kOk : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Action* action) {
  CLI::App* sub = app.add_subcommand(
      "plan", "Pool sizes, bytes and concurrency that flags mean for a model, without loading its weights");
  auto o = std::make_shared<Options>();
  add_engine_flags(*sub, &o->engine, FlagSet::kServing);
  sub->add_flag("--measure", o->measure,
                "Also load the model, build the engine and compare (status 1 if off by more than 1 %)");
  sub->add_flag("--json", o->json, "One JSON document");
  sub->callback([=] { *action = [=] { return run_plan(*o); }; });
}

}  // namespace kadence::apps
