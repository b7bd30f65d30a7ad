#include "engine/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "ops/kda.h"

namespace kadence::engine {

namespace {

constexpr int32_t kMostRunningRequests = 65536;  // rows of a batch

std::string text(int64_t v) { return std::to_string(v); }
std::string mib(size_t bytes) { return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB"; }

void require_positive(const char* flag, int64_t value) {
  if (value < 1) base::throw_invalid(flag, "at least 1", text(value));
}
void require_given_or_zero(const char* flag, int64_t value) {
  if (value < 0) base::throw_invalid(flag, "0 (derived) or more", text(value));
}

void require_backend(const char* flag, const std::string& name) {
  std::string known = "auto";
  for (const ops::KdaBackendInfo& backend : ops::kda_backends()) {
    if (name == backend.name) return;
    known += std::string(", ") + backend.name;
  }
  if (name != "auto") base::throw_invalid(flag, "one of " + known, name.empty() ? "an empty name" : name);
}

// Bytes for weights, workspace and pools together.
size_t memory_budget(const EngineOptions& o, const device::DeviceInfo& device, MemoryPlan& plan) {
  if (o.memory_bytes > 0) return static_cast<size_t>(o.memory_bytes);
  if (device.total_memory <= 0) return std::numeric_limits<size_t>::max() / 4;
  // A GPU is ours; a host is shared with everything else that runs there.
  const bool host = device.kind == device::DeviceKind::kCpu;
  const auto share = static_cast<size_t>(static_cast<double>(device.total_memory) * (host ? 0.5 : 0.9));
  plan.notes.push_back("no --memory given: planned with " + mib(share) + ", " + (host ? "half" : "nine tenths") +
                       " of the device's");
  return share;
}

// Slots for requests and a cached share as large again, within half of the pools' memory; more than half only where the
// running requests need it.
int64_t derive_slots(int64_t asked, int64_t per_request, bool cache, size_t slot_bytes, size_t pool_bytes) {
  const int64_t want = cache ? 2 * asked * per_request : asked;
  if (slot_bytes == 0) return want;
  const int64_t least = std::min(want, asked + (cache ? kCheckpointsPerGrant : 0));
  const auto half = static_cast<int64_t>(pool_bytes / 2 / slot_bytes);
  const auto most = static_cast<int64_t>(pool_bytes / 10 * 9 / slot_bytes);
  return std::min(want, std::max(half, std::min(least, most)));
}

}  // namespace

void check_options(const EngineOptions& o) {
  require_positive("--max-running-requests", o.max_running_requests);
  if (o.max_running_requests > kMostRunningRequests) {
    base::throw_invalid("--max-running-requests", "at most " + text(kMostRunningRequests),
                        text(o.max_running_requests));
  }
  require_positive("--page-size", o.page_size);
  require_positive("--mamba-track-interval", o.track_interval);
  require_given_or_zero("--state-slots", o.state_slots);
  require_given_or_zero("--kv-tokens", o.kv_tokens);
  require_given_or_zero("--context-length", o.context_length);
  require_given_or_zero("--memory", o.memory_bytes);
  require_given_or_zero("--kda-extend-block-tokens", o.extend_block_tokens);
  if (o.state_dtype != base::DType::kF32 && o.state_dtype != base::DType::kBF16 && o.state_dtype != base::DType::kF16) {
    base::throw_invalid("--mamba-ssm-dtype", "float32, bfloat16 or float16", base::to_string(o.state_dtype));
  }
  if (o.kv_tokens > 0 && o.kv_tokens < o.page_size) {
    base::throw_invalid("--kv-tokens", "at least one page, " + text(o.page_size), text(o.kv_tokens));
  }
  if (o.extend_block_tokens % ops::kChunkTokens != 0) {
    base::throw_invalid("--kda-extend-block-tokens", "0 or a multiple of " + text(ops::kChunkTokens),
                        text(o.extend_block_tokens));
  }
  require_backend("--linear-attn-prefill-backend", o.prefill_backend);
  require_backend("--linear-attn-decode-backend", o.decode_backend);
  require_backend("--linear-attn-verify-backend", o.verify_backend);
  scheduler_limits(o, state::make_grids(o.page_size, o.track_interval), o.max_running_requests);
}

model::ForwardOptions forward_options(const EngineOptions& o) {
  model::ForwardOptions f;
  f.prefill_backend = o.prefill_backend, f.decode_backend = o.decode_backend, f.verify_backend = o.verify_backend;
  f.extend_block_tokens = o.extend_block_tokens;
  f.state_dtype = o.state_dtype;
  f.limits.max_rows = o.max_running_requests;
  f.limits.max_tokens = std::max<int64_t>(o.max_prefill_tokens, o.max_running_requests);
  f.limits.max_checkpoints = o.max_running_requests * kCheckpointsPerGrant;
  f.limits.max_logit_rows =
      static_cast<int32_t>(std::min<int64_t>(f.limits.max_tokens, std::numeric_limits<int32_t>::max()));
  return f;
}

SchedulerLimits scheduler_limits(const EngineOptions& o, const state::Grids& grids, int32_t running_requests) {
  SchedulerLimits limits;
  limits.grid = grids.checkpoint;
  limits.chunk_tokens = o.chunked_prefill_size;
  limits.max_prefill_tokens = o.max_prefill_tokens;
  limits.max_running = running_requests;
  validate(limits);
  return limits;
}

state::StateShape state_shape(const model::CacheShape& c, const EngineOptions& o) {
  return {c.kda_layers, c.HV, c.V, c.K, o.state_dtype, c.conv_channels, base::DType::kF32};
}

state::KvShape kv_shape(const model::CacheShape& c, const EngineOptions& o) {
  return {c.attention_layers, c.latent_width, o.page_size, base::DType::kF32};
}

MemoryPlan size_pools(const ModelSizes& sizes, const EngineOptions& o, const device::DeviceInfo& device) {
  check_options(o);
  MemoryPlan p;
  p.grids = state::make_grids(o.page_size, o.track_interval);
  p.weight_bytes = sizes.weight_bytes, p.workspace_bytes = sizes.workspace_bytes;
  p.context_length = o.context_length > 0 ? o.context_length : sizes.max_context;
  require_positive("--context-length (the config has none)", p.context_length);
  if (sizes.max_context > 0 && p.context_length > sizes.max_context) {
    p.notes.push_back("--context-length " + text(p.context_length) + " is beyond the " + text(sizes.max_context) +
                      " that the model's config names");
  }

  const bool cache = o.radix_cache;
  const int64_t asked = o.max_running_requests;
  p.slots_per_request = cache ? 1 + kCheckpointsPerGrant : 1;
  p.bytes_per_slot = state::bytes_per_slot(state_shape(sizes.cache, o));
  const size_t page_bytes = state::bytes_per_page(kv_shape(sizes.cache, o));
  p.bytes_per_kv_token = base::ceil_div(page_bytes, static_cast<size_t>(o.page_size));

  const size_t fixed = p.weight_bytes + p.workspace_bytes;
  const bool derived = o.state_slots == 0 || o.kv_tokens == 0;
  const size_t budget = derived || o.memory_bytes > 0 ? memory_budget(o, device, p) : 0;
  const auto got = [&] { return mib(budget) + (o.memory_bytes > 0 ? "" : ", what is taken of the device without it"); };
  const size_t least = fixed + p.bytes_per_slot + page_bytes;
  if ((derived || o.memory_bytes > 0) && budget < least) {
    base::throw_invalid("--memory",
                        "at least " + mib(least) + " (weights " + mib(p.weight_bytes) + ", workspace " +
                            mib(p.workspace_bytes) + ", one state slot, one page)",
                        got());
  }
  const size_t pools = derived || o.memory_bytes > 0 ? budget - fixed : 0;

  // Explicit sizes are taken first, what is left is shared out.
  const auto asked_pages = static_cast<size_t>(o.kv_tokens / o.page_size);
  const auto given =
      o.state_slots > 0 ? static_cast<size_t>(o.state_slots) * p.bytes_per_slot : asked_pages * page_bytes;
  const size_t rest = pools > given ? pools - given : 0;
  const int64_t slots = o.state_slots > 0 ? o.state_slots
                        : o.kv_tokens > 0
                            ? std::min<int64_t>(cache ? 2 * asked * p.slots_per_request : asked,
                                                p.bytes_per_slot ? static_cast<int64_t>(rest / p.bytes_per_slot)
                                                                 : std::numeric_limits<int32_t>::max())
                            : derive_slots(asked, p.slots_per_request, cache, p.bytes_per_slot, pools);
  const auto too_small = [&](const char* flag, int64_t value, const char* lacking) {
    base::throw_invalid("--memory",
                        std::string("room for ") + lacking + " beside " + flag + " " + text(value) + " and " +
                            mib(fixed) + " of weights and workspace",
                        got());
  };
  if (slots < 1) too_small("--kv-tokens", o.kv_tokens, "a state slot");
  p.state_slots = static_cast<int32_t>(std::clamp<int64_t>(slots, 1, std::numeric_limits<int32_t>::max()));
  p.state_bytes = static_cast<size_t>(p.state_slots) * p.bytes_per_slot;

  int64_t pages = static_cast<int64_t>(asked_pages);
  if (o.kv_tokens == 0) {
    const int64_t all = base::ceil_div(p.context_length, int64_t{o.page_size}) * asked;
    const size_t left = pools > p.state_bytes ? pools - p.state_bytes : 0;
    pages = page_bytes ? std::min<int64_t>(all, static_cast<int64_t>(left / page_bytes)) : all;
  } else if (o.kv_tokens % o.page_size != 0) {
    p.notes.push_back("--kv-tokens " + text(o.kv_tokens) + " is rounded down to " + text(pages * o.page_size) +
                      ", a multiple of the page size " + text(o.page_size));
  }
  if (pages < 1) too_small("--state-slots", p.state_slots, "a page");
  pages = std::clamp<int64_t>(pages, 1, std::numeric_limits<int32_t>::max());
  p.kv_tokens = pages * o.page_size;
  p.kv_bytes = static_cast<size_t>(pages) * page_bytes;
  p.total_bytes = fixed + p.state_bytes + p.kv_bytes;
  if (o.memory_bytes > 0 && p.total_bytes > budget) {
    base::throw_invalid("--memory",
                        "at least " + mib(p.total_bytes) + " for --state-slots " + text(p.state_slots) +
                            " and --kv-tokens " + text(p.kv_tokens),
                        mib(budget));
  }

  // Running requests keep a few slots for checkpoints between them, or nothing would ever be cached.
  const int64_t spare = cache ? kCheckpointsPerGrant : 0;
  p.effective_running_requests = static_cast<int32_t>(std::clamp<int64_t>(p.state_slots - spare, 1, asked));
  if (p.effective_running_requests < asked) {
    p.notes.push_back("--max-running-requests " + text(asked) + ": the " + text(p.state_slots) + " state slots allow " +
                      text(p.effective_running_requests) + "; for " + text(asked) + " use --state-slots " +
                      text(asked + spare) + " (" + mib(static_cast<size_t>(asked + spare) * p.bytes_per_slot) + ")");
  }
  if (p.kv_tokens < p.context_length) {
    p.notes.push_back("a context of " + text(p.context_length) + " tokens does not fit the " + text(p.kv_tokens) +
                      " tokens of pages: longer prompts are refused");
  }
  if (cache) {
    p.shortest_hit = p.grids.checkpoint + 1;
    if (p.state_slots == 1) p.notes.push_back("one state slot: nothing can be cached; use --state-slots 5 or more");
    if (o.cache_generated == CacheGenerated::kStep) {
      p.notes.push_back(
          "--cache-generated step: what decoding computed is cached; resumed runs need not give a cold run's bits");
    }
    if (o.state_dtype != base::DType::kF32) {
      p.notes.push_back(std::string("states are kept in ") + base::to_string(o.state_dtype) +
                        ": resumed runs need not give a cold run's bits");
    }
  }
  return p;
}

MemoryPlan plan_memory(const std::filesystem::path& model_dir, const model::ModelConfig& config,
                       const EngineOptions& options, const device::DeviceInfo& device) {
  check_options(options);
  const model::MemoryEstimate estimate = model::estimate_memory(model_dir, config, forward_options(options), device);
  return size_pools({model::cache_shape(config), config.max_context, estimate.weights, estimate.workspace}, options,
                    device);
}

}  // namespace kadence::engine
