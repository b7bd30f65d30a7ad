#include "base/error.h"
#include "ops/cuda/sm80/extend_recurrent/kernel.cuh"
#include "ops/cuda/sm80/extend_recurrent/launch.h"
#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/step_core/params.h"

namespace kadence::ops::cuda::sm80 {
namespace {

// 64 rows of the state per CTA of K = 128; enough CTAs matter more than few loads of the factors.
template <int K, int ITS>
void launch(const RecurrentParams& p, cudaStream_t stream) {
  const int splits = K / (kRecurrentWarps * ITS * Lanes<K>::kGroups);
  recurrent_kernel<K, ITS>
      <<<rows_grid(static_cast<unsigned>(p.HV * splits), p.table.meta.rows), 32 * kRecurrentWarps, 0, stream>>>(p);
  check_launch("recurrent extend kernel launch");
}

StateSlots slots(const StateView& v) { return {v.base, v.dtype, v.slot_pitch}; }

}  // namespace

void run_recurrent(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream) {
  const KdaProblem& problem = plan.problem();
  if (args.tokens == 0 && args.metadata.rows == 0) return;
  LaunchScope scope(stream);
  // Whatever no good row covers is zero.
  const size_t size = base::size_of(problem.io),
               width = static_cast<size_t>(problem.HV) * static_cast<size_t>(problem.V) * size;
  if (args.tokens > 0)
    check(cudaMemset2DAsync(args.out.data, static_cast<size_t>(args.out.pitch) * size, 0, width,
                            static_cast<size_t>(args.tokens), scope.stream()),
          "zeroing out");
  if (args.metadata.rows == 0) return;
  RecurrentParams p;
  p.q = token_input(args.q, problem.io);
  p.k = token_input(args.k, problem.io);
  p.v = token_input(args.v, problem.io);
  p.decay = token_input(args.decay, problem.decay);
  p.beta = token_input(args.beta, problem.beta);
  p.gate = gate_params(plan, args.A_log, args.dt_bias);
  p.out = args.out.data, p.out_token_pitch = args.out.pitch, p.out_type = problem.io;
  p.H = problem.H, p.HV = problem.HV;
  p.table.meta = args.metadata, p.table.seq_int64 = problem.seq_int64, p.table.tokens = args.tokens;
  p.table.in_slots = args.state_in.slots, p.table.out_slots = args.state_out.slots,
  p.table.ckpt_slots = args.checkpoints.slots;
  p.table.max_checkpoints = problem.bounds.max_checkpoints;
  p.in = slots(args.state_in), p.to = slots(args.state_out), p.ckpt = slots(args.checkpoints);
  p.in.type = problem.state_in, p.to.type = problem.state_out, p.ckpt.type = problem.checkpoints;
  switch (problem.K) {
    case 64:
      return launch<64, 1>(p, scope.stream());
    case 128:
      return launch<128, 2>(p, scope.stream());
    case 256:
      return launch<256, 4>(p, scope.stream());
    default:
      base::throw_error(base::ErrorCode::kInternal, "no recurrent kernel for K " + std::to_string(problem.K));
  }
}

}  // namespace kadence::ops::cuda::sm80
