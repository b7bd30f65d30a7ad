// The only part of the engine that hands memory to the model: views of the pools, forward passes, slot copies. It is
// also the only one that stamps slots, from what it ran and nothing else; so a slot that was left out of a batch, or
// written at another depth than its owner thinks, cannot be published.
#pragma once

#include "device/device.h"
#include "model/model.h"
#include "state/kv_pool.h"
#include "state/state_pool.h"

namespace kadence::engine {

class Executor {
 public:
  // Keeps references; all must outlive the executor.
  Executor(model::Model& model, state::StatePool& states, const state::KvPool& pages, device::Stream& stream);

  // Enqueues the batch and waits for it: when this returns, every slot and page that it names has been written, and the
  // slots are stamped. Throws Error{kInternal} before anything runs if a row's state_in is not stamped with its start.
  void forward(const model::ForwardBatch& batch, const model::LogitsSink& sink);
  // Runs the copies of `plan` over all layers, states and windows; a copy takes its source's stamp.
  void run(const state::CopyPlan& plan);

  const model::CacheViews& views() const { return views_; }

 private:
  model::Model& model_;
  state::StatePool& states_;
  device::Stream& stream_;
  model::CacheViews views_;
  device::Buffer lists_;  // device copy of a plan's lists
};

}  // namespace kadence::engine
