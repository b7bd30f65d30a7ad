// Host entries of verify and commit: fill the parameters and pick the instance.
#include "base/error.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/step_core/params.h"
#include "ops/cuda/sm90/verify_commit/kernel.cuh"
#include "ops/cuda/sm90/verify_commit/launch.h"

namespace kadence::ops::cuda::sm90 {
namespace {

[[noreturn]] void no_instance(const KdaProblem& p) {
  base::throw_error(base::ErrorCode::kInternal, std::string("no verify kernel for K ") + std::to_string(p.K) +
                                                    ", states " + base::to_string(p.state_in));
}

// f.operator()<K, E, ITS>() of the instance.
template <class F>
void dispatch(const KdaProblem& problem, int iterations, F&& f) {
  bool found = false;
  with_state_type(problem.state_in, [&]<class E>(E) {
    found = with_shape(problem.K, iterations, [&]<int K, int ITS>() { f.template operator()<K, E, ITS>(); });
  });
  if (!found) no_instance(problem);
}

}  // namespace

void run_verify(const KdaPlan& plan, const KdaVerifyArgs& args, device::Stream& stream) {
  if (args.rows == 0) return;
  const KdaProblem& problem = plan.problem();
  const VerifyChoice choice = decode_verify_choice(plan.variant_);
  LaunchScope scope(stream);
  VerifyParams p;
  p.q = token_input(args.q, problem.io);
  p.k = token_input(args.k, problem.io);
  p.v = token_input(args.v, problem.io);
  p.decay = token_input(args.decay, problem.decay);
  p.beta = token_input(args.beta, problem.beta);
  p.gate = gate_params(plan, args.A_log, args.dt_bias);
  p.out = args.out.data, p.out_token_pitch = args.out.pitch, p.out_type = problem.io;
  p.H = problem.H, p.HV = problem.HV, p.rows = args.rows, p.D = problem.D;
  p.n_draft = args.n_draft, p.parent = args.parent, p.slot_in = args.slot_in;
  p.state = args.state_in.base, p.pitch = args.state_in.slot_pitch, p.slots = args.state_in.slots;
  p.scratch = static_cast<float*>(args.scratch);
  p.layout = ScratchLayout::of(problem.H, problem.HV, problem.K, problem.V);
  p.round_states = choice.round_states;
  p.status = args.status;
  dispatch(problem, choice.verify_iterations, [&]<int K, class E, int ITS>() {
    if constexpr (K == 128 && ITS == 4) {
      if (choice.gram && choice.verify_warps == 8) return launch_gram_instance<K, E, ITS, 8>(p, scope);
      if (choice.verify_warps == 8) return launch_verify_instance<K, E, ITS, 8>(p, scope);
    }
    if (choice.gram) return launch_gram_instance<K, E, ITS, 4>(p, scope);
    launch_verify_instance<K, E, ITS, 4>(p, scope);
  });
}

void run_commit(const KdaPlan& plan, const KdaCommitArgs& args, device::Stream& stream) {
  if (args.rows == 0 || args.states.layers == 0) return;
  const KdaProblem& problem = plan.problem();
  const VerifyChoice choice = decode_verify_choice(plan.variant_);
  LaunchScope scope(stream);
  CommitParams p;
  p.H = problem.H, p.HV = problem.HV, p.rows = args.rows, p.D = problem.D;
  p.n_draft = args.n_draft, p.parent = args.parent, p.slot_in = args.slot_in;
  p.node = args.node, p.slot_out = args.slot_out, p.track_node = args.track_node, p.track_slot = args.track_slot;
  p.scratch = static_cast<const float*>(args.scratch);
  p.scratch_layer = static_cast<int64_t>(args.scratch_layer_bytes / sizeof(float));
  p.layout = ScratchLayout::of(problem.H, problem.HV, problem.K, problem.V);
  p.states = args.states.base, p.pitch = args.states.slot_pitch, p.slots = args.states.slots;
  p.layer_pitch = args.states.layer_pitch, p.layers = args.states.layers;
  p.round_states = choice.round_states;
  p.status = args.status;
  if (args.conv_x.data && args.windows.base) {
    const WindowView& w = args.windows;
    const int64_t size = static_cast<int64_t>(base::size_of(w.dtype));
    const int64_t bits =
        reinterpret_cast<intptr_t>(args.conv_x.data) | reinterpret_cast<intptr_t>(w.base) |
        (args.conv_x.pitch | args.conv_x_layer_pitch | w.slot_pitch | w.layer_pitch | args.conv_channels) * size;
    p.word_bytes = static_cast<int32_t>(bits % 16 == 0 ? 16 : size);
    const int64_t per_word = p.word_bytes / size;
    p.conv_x = args.conv_x.data, p.x_pitch = args.conv_x.pitch / per_word,
    p.x_layer = args.conv_x_layer_pitch / per_word;
    p.windows = w.base, p.window_pitch = w.slot_pitch / per_word, p.window_layer = w.layer_pitch / per_word,
    p.window_slots = w.slots;
    p.window_words = static_cast<int32_t>(args.conv_channels / per_word);
  }
  dispatch(problem, choice.commit_iterations,
           [&]<int K, class E, int ITS>() { launch_commit_instance<K, E, ITS>(p, scope); });
}

}  // namespace kadence::ops::cuda::sm90
