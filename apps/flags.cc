#include "apps/flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "apps/cli.h"
#include "apps/numbers.h"
#include "base/dtype.h"
#include "base/error.h"
#include "engine/memory_plan.h"
#include "ops/gemm.h"
#include "ops/kda.h"

namespace kadence::apps {
namespace {

// "cuda" or "cuda:N" -> N; -1 for "cpu".
int cuda_ordinal(const std::string& device) {
  if (device == "cpu") return -1;
  if (device == "cuda") return 0;
  if (device.rfind("cuda:", 0) == 0 && device.size() > 5 && device.size() < 9 &&
      device.find_first_not_of("0123456789", 5) == std::string::npos)
    return std::stoi(device.substr(5));
  throw UsageError(fmt::format("--device: wanted cpu, cuda or cuda:N, got '{}'", device));
}

int resolve_threads(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void refuse_cpu_flags(const DeviceFlags& flags) {
  if (flags.isa != "auto")
    throw UsageError(fmt::format("--device {} and --isa {} contradict each other: --isa chooses CPU instructions",
                                 flags.device, flags.isa));
  if (flags.threads != 0)
    throw UsageError(fmt::format("--device {} and --threads {} contradict each other: --threads counts CPU workers",
                                 flags.device, flags.threads));
}

std::string backend_names() {
  std::string names = "auto";
  for (const auto& b : ops::kda_backends()) names += std::string(", ") + b.name;
  return names;
}

}  // namespace

void add_device_flags(CLI::App& app, DeviceFlags* flags) {
  app.add_option("--device", flags->device, "cpu, cuda or cuda:N")->capture_default_str()->group("Device");
  app.add_option("--isa", flags->isa, "CPU instruction set: auto, baseline, avx2 or avx512 (oneDNN is capped alike)")
      ->check(CLI::IsMember({"auto", "baseline", "avx2", "avx512"}))
      ->capture_default_str()
      ->group("Device");
  app.add_option("--threads", flags->threads, "CPU workers, 0 = one a core; results do not depend on it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Device");
}

device::DeviceInfo device_info(const DeviceFlags& flags) {
  const int ordinal = cuda_ordinal(flags.device);
  if (ordinal < 0) return device::cpu_info(resolve_threads(flags.threads), device::parse_isa(flags.isa));
  refuse_cpu_flags(flags);
  std::string why;
  if (device::cuda_device_count(&why) <= ordinal)
    throw base::Error(base::ErrorCode::kUnsupported,
                      fmt::format("--device {}: {}", flags.device, why.empty() ? "there are fewer CUDA devices" : why));
  return device::cuda_info(ordinal);
}

device::Stream open_stream(const DeviceFlags& flags) {
  if (cuda_ordinal(flags.device) >= 0) {
    device_info(flags);  // says so if there is no such device
    throw base::Error(base::ErrorCode::kUnsupported,
                      fmt::format("--device {}: the engine runs models on the CPU only so far, though the operators "
                                  "run on CUDA; use --device cpu",
                                  flags.device));
  }
  const device::Isa isa = device::parse_isa(flags.isa);
  device::resolve_isa(isa);  // refuses what the machine lacks before anything is capped
  if (isa != device::Isa::kAuto) ops::set_gemm_isa(isa);
  return device::Stream::cpu(resolve_threads(flags.threads), isa);
}

CLI::Validator unsigned_integer() {
  return CLI::Validator(
      [](std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits ? std::string() : fmt::format("wanted an integer from 0 to 2^64 - 1, got '{}'", text);
      },
      "UINT64");
}

void add_model_flag(CLI::App& app, std::string* model) {
  app.add_option("--model", *model, "Folder with config.json, *.safetensors and, for text, a tokenizer")->required();
}

void add_engine_flags(CLI::App& app, EngineFlags* f, FlagSet set) {
  engine::EngineOptions& o = f->options;
  add_model_flag(app, &f->model);
  add_device_flags(app, &f->device);
  const std::string backends = "backend of KDA, one of: " + backend_names();
  app.add_option("--linear-attn-prefill-backend", o.prefill_backend, "Prefill " + backends)
      ->capture_default_str()
      ->group("Operators");
  app.add_option("--linear-attn-decode-backend", o.decode_backend, "Decode " + backends)
      ->capture_default_str()
      ->group("Operators");
  app.add_option("--linear-attn-verify-backend", o.verify_backend, "Verify " + backends)
      ->capture_default_str()
      ->group("Operators");
  app.add_option("--kda-extend-block-tokens", o.extend_block_tokens,
                 "Tokens of extend's workspace window, a multiple of 64; 0 = the plan's own, never unbounded")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group("Operators");
  app.add_option("--page-size", o.page_size, "Tokens of a KV page")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Cache");
  app.add_option("--mamba-track-interval", o.track_interval,
                 "Tokens between states tracked while decoding (--cache-generated step)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->group("Cache");
  if (set == FlagSet::kChecks) return;
  app.add_option("--dtype", f->dtype, "Activations: float32 (the CPU engine has no other)")
      ->capture_default_str()
      ->group("Operators");
  app.add_option("--mamba-ssm-dtype", f->state_dtype,
                 "Stored recurrent states: float32, bfloat16 or float16; only float32 makes cached runs bit-equal")
      ->capture_default_str()
      ->group("Cache");
  app.add_flag("--disable-radix-cache", f->disable_radix_cache, "No prefix cache")->group("Cache");
  f->cache_generated_option = app.add_option("--cache-generated", f->cache_generated,
                                             "Generated tokens in the cache: replay (extended again when idle, exact), "
                                             "step (decode states, not bit-exact) or off")
                                  ->check(CLI::IsMember({"replay", "step", "off"}))
                                  ->capture_default_str()
                                  ->group("Cache");
  app.add_option("--state-slots", o.state_slots, "Slots of the state pool, 0 = derived")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group("Memory");
  app.add_option("--kv-tokens", o.kv_tokens, "Tokens of the KV pool, 0 = derived")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group("Memory");
  f->memory_option = app.add_option("--memory", f->memory,
                                    "Memory for weights, pools and workspace, e.g. 80GiB; sizes what is derived")
                         ->group("Memory");
  app.add_option(
         "--context-length", o.context_length,
         "Longest prompt plus output, 0 = the config's. A prompt that is longer, or leaves no room for one token to "
         "generate, is refused; a generation that reaches it, or the end of --kv-tokens, ends there with finish "
         "reason length")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group("Scheduling");
  app.add_option("--max-running-requests", o.max_running_requests, "Requests that run at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Scheduling");
  app.add_option("--chunked-prefill-size", o.chunked_prefill_size,
                 "Prompt tokens of one request in one step, at least the checkpoint grid")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str()
      ->group("Scheduling");
  app.add_option("--max-prefill-tokens", o.max_prefill_tokens, "Prompt tokens of one step, all requests")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str()
      ->group("Scheduling");
}

engine::EngineOptions engine_options(const EngineFlags& f) {
  engine::EngineOptions o = f.options;
  if (f.disable_radix_cache) {
    const bool asked = f.cache_generated_option != nullptr && f.cache_generated_option->count() > 0;
    if (asked && f.cache_generated != "off")
      throw UsageError(
          fmt::format("--disable-radix-cache and --cache-generated {} contradict each other: without a cache nothing "
                      "generated can be cached",
                      f.cache_generated));
    o.radix_cache = false;
  }
  o.cache_generated = f.disable_radix_cache || f.cache_generated == "off" ? engine::CacheGenerated::kOff
                      : f.cache_generated == "step"                       ? engine::CacheGenerated::kStep
                                                                          : engine::CacheGenerated::kReplay;
  try {
    o.state_dtype = base::parse_float_dtype(f.state_dtype);
  } catch (const base::Error&) {
    throw UsageError(fmt::format("--mamba-ssm-dtype: wanted float32, bfloat16 or float16, got '{}'", f.state_dtype));
  }
  try {
    if (base::parse_float_dtype(f.dtype) != base::DType::kF32)
      throw UsageError(fmt::format(
          "--dtype {}: the CPU engine computes in float32 only (weights may be bfloat16 or float16 in the file)",
          f.dtype));
  } catch (const base::Error&) {
    throw UsageError(fmt::format("--dtype: wanted float32, got '{}'", f.dtype));
  }
  if (o.chunked_prefill_size > o.max_prefill_tokens)
    throw UsageError(
        fmt::format("--chunked-prefill-size {} and --max-prefill-tokens {} contradict each other: a chunk of one "
                    "request cannot exceed a step of all",
                    o.chunked_prefill_size, o.max_prefill_tokens));
  if (!f.memory.empty() || (f.memory_option != nullptr && f.memory_option->count() > 0)) {
    o.memory_bytes = parse_bytes("--memory", f.memory);
    if (o.state_slots > 0 && o.kv_tokens > 0)
      throw UsageError(
          fmt::format("--memory {} and --state-slots {} with --kv-tokens {} contradict each other: nothing is left for "
                      "--memory to decide",
                      f.memory, o.state_slots, o.kv_tokens));
  }
  try {
    engine::check_options(o);
  } catch (const base::Error& e) {
    throw UsageError(e.what());
  }
  return o;
}

}  // namespace kadence::apps
