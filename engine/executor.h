// The only part of the engine that hands memory to the model: views of the pools, forward passes, slot copies.
#pragma once

#include "device/device.h"
#include "model/model.h"
#include "state/kv_pool.h"
#include "state/state_pool.h"

namespace kadence::engine {

class Executor {
 public:
  // Keeps references; all must outlive the executor.
  Executor(model::Model& model, const state::StatePool& states, const state::KvPool& pages, device::Stream& stream);

  // Enqueues the batch and waits for it: when this returns, every slot and page that it names has been written.
  void forward(const model::ForwardBatch& batch, const model::LogitsSink& sink);
  // Runs the copies and clears of `plan` over all layers, states and windows.
  void run(const state::CopyPlan& plan);

  const model::CacheViews& views() const { return views_; }

 private:
  model::Model& model_;
  const state::StatePool& states_;
  device::Stream& stream_;
  model::CacheViews views_;
  device::Buffer lists_;  // device copy of a plan's lists
};

}  // namespace kadence::engine
