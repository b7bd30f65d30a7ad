// Flags that several subcommands share, under the names that SGLang's users know, and what they mean to the engine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "device/device.h"
#include "engine/engine.h"

namespace kadence::apps {

struct DeviceFlags {
  std::string device = "cpu";
  std::string isa = "auto";
  int threads = 0;  // 0 = all cores
};
void add_device_flags(CLI::App& app, DeviceFlags* flags);
// The chosen device as a planner sees it. Throws UsageError for contradictions, base::Error when it cannot be had.
device::DeviceInfo device_info(const DeviceFlags& flags);
// A stream on it; caps oneDNN's instruction set too, so it comes before the first model. The engine runs on the CPU
// only: a CUDA device is refused with the reason.
device::Stream open_stream(const DeviceFlags& flags);

struct EngineFlags {
  std::string model;
  std::string dtype = "float32";
  std::string state_dtype = "float32";
  std::string cache_generated = "replay";
  bool disable_radix_cache = false;
  std::string memory;
  engine::EngineOptions options;  // the numbers, straight from their flags
  DeviceFlags device;
  // Whether these were given at all: an empty value is a mistake, not a default.
  const CLI::Option* cache_generated_option = nullptr;
  const CLI::Option* memory_option = nullptr;
};
enum class FlagSet {
  kServing,  // everything
  kChecks,   // without what a check decides itself
};
// Of --seed: integers from 0; CLI11 alone would wrap negative ones around.
CLI::Validator unsigned_integer();
void add_model_flag(CLI::App& app, std::string* model);
void add_engine_flags(CLI::App& app, EngineFlags* flags, FlagSet set);
// Throws UsageError for values that are wrong whatever the model, and for contradictory flags, naming both.
engine::EngineOptions engine_options(const EngineFlags& flags);

}  // namespace kadence::apps
