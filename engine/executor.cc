#include "engine/executor.h"

#include <vector>

#include "ops/kda.h"

namespace kadence::engine {

using base::SlotId;

Executor::Executor(model::Model& model, state::StatePool& states, const state::KvPool& pages, device::Stream& stream)
    : model_(model), states_(states), stream_(stream) {
  const state::StateShape& s = states.shape();
  views_.states = {states.states(),           s.state_dtype, states.slots(),
                   states.state_slot_pitch(), s.layers,      states.state_layer_pitch()};
  views_.windows = {states.windows(),           s.conv_dtype, states.slots(),
                    states.window_slot_pitch(), s.layers,     states.window_layer_pitch()};
  const state::KvShape& k = pages.shape();
  views_.latents = {pages.data(), k.dtype, pages.pages(), pages.page_pitch(), k.page_size};
  views_.latent_layer_pitch = pages.layer_pitch();
}

void Executor::forward(const model::ForwardBatch& batch, const model::LogitsSink& sink) {
  for (size_t i = 0; i < batch.start.size(); ++i) {
    if (batch.state_in[i] >= 0) states_.require_publishable(SlotId(batch.state_in[i]), batch.start[i], false);
  }
  model_.forward(batch, views_, sink, stream_);
  stream_.synchronize();
  const bool extend = batch.phase == ops::GemmPhase::kPrefill;
  const auto stamp = [&](int32_t slot, int64_t depth) {
    states_.set_stamp(SlotId(slot), {.depth = depth,
                                     .written = true,
                                     .accepted = true,
                                     .origin = extend ? state::Origin::kExtend : state::Origin::kStep});
  };
  for (size_t i = 0; i < batch.start.size(); ++i) {
    for (auto c = static_cast<size_t>(batch.ckpt_begin[i]); c < static_cast<size_t>(batch.ckpt_begin[i + 1]); ++c) {
      stamp(batch.ckpt_slot[c], batch.start[i] + batch.ckpt_depth[c]);
    }
    stamp(batch.state_out[i], batch.start[i] + batch.seq_begin[i + 1] - batch.seq_begin[i]);
  }
}

void Executor::run(const state::CopyPlan& plan) {
  if (plan.empty()) return;
  for (size_t i = 0; i < plan.src().size(); ++i) {
    states_.set_stamp(SlotId(plan.dst()[i]), states_.stamp(SlotId(plan.src()[i])));
  }
  const state::StateShape& s = states_.shape();
  if (s.layers == 0) return;
  std::vector<int32_t> lists = plan.src();
  lists.insert(lists.end(), plan.dst().begin(), plan.dst().end());
  lists.insert(lists.end(), plan.cleared().begin(), plan.cleared().end());
  const size_t bytes = lists.size() * sizeof(int32_t);
  if (lists_.size() < bytes) lists_ = device::Buffer::allocate(stream_.info(), bytes * 2);
  device::copy_async(lists_.data(), lists.data(), bytes, stream_);

  ops::StateCopyArgs args;
  args.states = views_.states;
  args.windows = views_.windows;
  args.HV = s.HV, args.V = s.V, args.K = s.K, args.conv_channels = s.conv_channels;
  args.copies = static_cast<int32_t>(plan.src().size());
  args.clears = static_cast<int32_t>(plan.cleared().size());
  args.src = lists_.as<int32_t>();
  args.dst = args.src + args.copies;
  args.clear = args.dst + args.copies;
  ops::run_state_copy(args, stream_);
  stream_.synchronize();  // `lists` is read until here
}

}  // namespace kadence::engine
