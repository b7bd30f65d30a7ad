#include "apps/session.h"

#include <fmt/core.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace kadence::apps {

Session open_session(const EngineFlags& flags, Progress& progress) {
  return open_session(flags.model, flags.device, engine_options(flags), progress, base::LogLevel::kWarning);
}

Session open_session(const std::string& dir, const DeviceFlags& device, const engine::EngineOptions& options,
                     Progress& progress, base::LogLevel note_level) {
  const base::SteadyClock clock;
  const double begin = clock.now();
  Session session;
  session.config = model::load_config(dir);
  device::Stream stream = open_stream(device);
  const engine::MemoryPlan plan = engine::plan_memory(dir, session.config, options, stream.info());
  // Clamps are worth a warning; that nobody gave --memory is the usual case.
  for (const std::string& note : plan.notes) {
    base::log(note.rfind("no --memory given", 0) == 0 ? base::LogLevel::kInfo : note_level, note);
  }
  session.tokenizer = model::load_tokenizer(dir);
  model::LoadOptions load;
  load.progress = [&](int64_t done, int64_t total) {
    progress.show(fmt::format("loading {} ({})", dir, format_bytes(static_cast<double>(total))),
                  total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
  };
  auto model = model::load_model(dir, load, stream);
  session.engine = std::make_unique<engine::Engine>(std::move(model), options, plan, std::move(stream));
  progress.clear();
  for (const std::string& line : session.engine->describe()) base::log(base::LogLevel::kInfo, line);
  session.load_seconds = clock.now() - begin;
  return session;
}

engine::RequestOutput run_request(engine::Engine& engine, engine::RequestSpec spec) {
  const auto id = engine.submit(std::move(spec));
  if (!id) throw base::Error(base::ErrorCode::kInvalidArgument, id.reason());
  engine.run_until_idle();
  std::optional<engine::RequestOutput> out = engine.take_output(id.value());
  KADENCE_CHECK(out.has_value());
  if (out->reason == engine::FinishReason::kError) throw base::Error(base::ErrorCode::kInternal, out->error);
  return std::move(*out);
}

Json engine_json(const engine::Engine& engine) {
  Json out = Json::object();
  out["describe"] = engine.describe();
  const engine::MemoryPlan& plan = engine.memory_plan();
  out["state_slots"] = plan.state_slots;
  out["kv_tokens"] = plan.kv_tokens;
  out["context_length"] = plan.context_length;
  out["checkpoint_grid"] = plan.grids.checkpoint;
  return out;
}

}  // namespace kadence::apps
