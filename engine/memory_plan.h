// How pool sizes follow from a model, the options and a device. Pure arithmetic; plan_memory() in engine.h adds the
// reading of headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/engine.h"
#include "engine/scheduler.h"

namespace kadence::engine {

// Most checkpoints of one request in one step: two grid points at the prompt's end and a branch point (or a chunk end).
inline constexpr int32_t kCheckpointsPerGrant = 3;

struct ModelSizes {
  model::CacheShape cache;
  int64_t max_context = 0;  // of the config; 0 = unknown
  size_t weight_bytes = 0, workspace_bytes = 0;
};

// What can be said of options without a model: ranges, grids, names of backends. Throws Error{kInvalidArgument} naming
// the flag, what was wanted and what was got. plan_memory() calls it first.
void check_options(const EngineOptions& options);
// What the model is prepared for; a function of the options alone, so that plan and engine agree.
model::ForwardOptions forward_options(const EngineOptions& options);
// Limits of the scheduler. Throws Error{kInvalidArgument} naming the flag and the number to use.
SchedulerLimits scheduler_limits(const EngineOptions& options, const state::Grids& grids, int32_t running_requests);
state::StateShape state_shape(const model::CacheShape& cache, const EngineOptions& options);
state::KvShape kv_shape(const model::CacheShape& cache, const EngineOptions& options);

// The rest of plan_memory(). Throws Error{kInvalidArgument} for options that contradict each other or do not fit.
MemoryPlan size_pools(const ModelSizes& sizes, const EngineOptions& options, const device::DeviceInfo& device);

}  // namespace kadence::engine
