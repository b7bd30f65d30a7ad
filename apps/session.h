// A model with its engine, tokenizer and chat template, opened from flags.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/flags.h"
#include "apps/progress.h"
#include "apps/table.h"
#include "base/log.h"
#include "engine/engine.h"
#include "model/chat.h"
#include "model/tokenizer.h"

namespace kadence::apps {

struct Session {
  model::ModelConfig config;
  std::unique_ptr<model::Tokenizer> tokenizer;  // null: ids only
  std::unique_ptr<engine::Engine> engine;
  double load_seconds = 0;
};

// Loads and builds everything; throws base::Error or UsageError. Logs the engine's description.
Session open_session(const EngineFlags& flags, Progress& progress);
// The same with options already made (checks). `note_level`: of the memory plan's notes (clamps and the like).
Session open_session(const std::string& model, const DeviceFlags& device, const engine::EngineOptions& options,
                     Progress& progress, base::LogLevel note_level = base::LogLevel::kInfo);

// Submits one request and steps until it and its replay are done. Throws base::Error with the engine's words if it is
// refused or fails.
engine::RequestOutput run_request(engine::Engine& engine, engine::RequestSpec spec);

// What an engine was built with, for --json.
Json engine_json(const engine::Engine& engine);

}  // namespace kadence::apps
