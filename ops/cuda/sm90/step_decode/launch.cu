// Host entry of the step: fills the parameters and picks the instance.
#include "base/error.h"
#include "ops/cuda/conv1d/launch.h"
#include "ops/cuda/sm90/step.h"
#include "ops/cuda/sm90/step_core/host.h"
#include "ops/cuda/sm90/step_core/params.h"
#include "ops/cuda/sm90/step_decode/config.h"
#include "ops/cuda/sm90/step_decode/kernel.cuh"
#include "ops/cuda/sm90/step_decode/launch.h"

namespace kadence::ops::cuda::sm90 {
namespace {

// y = rms_norm(o) * weight * sigmoid(z) for one head per warp.
__global__ void __launch_bounds__(128)
    gated_norm_kernel(const float* o, TokenInput z, const float* weight, float eps, void* out, int64_t out_pitch,
                      DType out_type, const int32_t* slot_in, int64_t heads, int32_t HV, int32_t V) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (i >= heads) return;
  const int64_t n = i / HV, hv = i % HV;
  const int lane = threadIdx.x % 32;
  const int64_t at = n * out_pitch + hv * V;
  if (slot_in[n] < 0) {
    for (int c = lane; c < V; c += 32) store_scalar(out, at + c, out_type, 0.0f);
    return;
  }
  float sum = 0;
  for (int c = lane; c < V; c += 32) sum = __fmaf_rn(o[i * V + c], o[i * V + c], sum);
  const float norm = rsqrtf(reduce_lanes<32>(sum) / V + eps);
  for (int c = lane; c < V; c += 32) {
    RawScalar gate;
    gate.load(z.data, n * z.pitch + hv * V + c, z.type);
    store_scalar(out, at + c, out_type, o[i * V + c] * norm * weight[c] * sigmoid_f32(gate.get(z.type)));
  }
}

template <int K, class EIn, class EOut, int ITS>
void launch(const StepChoice& choice, const StepParams& p, const LaunchScope& scope) {
  const bool fused = choice.fusion == StepFusion::kOneLaunch;
  if constexpr (K == 128 && ITS == 4) {
    if (fused && choice.warps == 8) return launch_step_instance<K, EIn, EOut, ITS, 8, true>(p, scope);
  }
  if (fused) return launch_step_instance<K, EIn, EOut, ITS, 4, true>(p, scope);
  launch_step_instance<K, EIn, EOut, ITS, 4, false>(p, scope);
}

[[noreturn]] void no_instance(const KdaProblem& p) {
  base::throw_error(base::ErrorCode::kInternal, std::string("no step kernel for K ") + std::to_string(p.K) +
                                                    ", states " + base::to_string(p.state_in) + " -> " +
                                                    base::to_string(p.state_out));
}

void dispatch(const KdaProblem& problem, const StepChoice& choice, const StepParams& p, const LaunchScope& scope) {
  bool found = false;
  with_state_type(problem.state_in, [&]<class EIn>(EIn) {
    if (problem.state_in == problem.state_out) {
      found = with_shape(problem.K, choice.iterations,
                         [&]<int K, int ITS>() { launch<K, EIn, EIn, ITS>(choice, p, scope); });
    } else {
      with_state_type(problem.state_out, [&]<class EOut>(EOut) {
        if constexpr (!std::is_same_v<EIn, EOut>) launch<128, EIn, EOut, 2>(choice, p, scope), found = true;
      });
    }
  });
  if (!found) no_instance(problem);
}

}  // namespace

void run_step(const KdaPlan& plan, const KdaStepArgs& args, device::Stream& stream) {
  if (args.rows == 0) return;
  const KdaProblem& problem = plan.problem();
  const StepChoice choice = decode_step_choice(plan.variant_);
  LaunchScope scope(stream);

  StepParams p;
  p.q = token_input(args.q, problem.io);
  p.k = token_input(args.k, problem.io);
  p.v = token_input(args.v, problem.io);
  p.decay = token_input(args.decay, problem.decay);
  p.beta = token_input(args.beta, problem.beta);
  p.gate = gate_params(plan, args.A_log, args.dt_bias);
  p.out = args.out.data;
  p.out_token_pitch = args.out.pitch;
  p.out_type = problem.io;
  p.H = problem.H, p.HV = problem.HV, p.rows = args.rows;
  p.slot_in = args.slot_in, p.slot_out = args.slot_out;
  p.state_in = args.state_in.base, p.state_out = args.state_out.base;
  p.in_pitch = args.state_in.slot_pitch, p.out_pitch = args.state_out.slot_pitch;
  p.in_slots = args.state_in.slots, p.out_slots = args.state_out.slots;
  p.status = args.status;
  if (choice.fusion == StepFusion::kNone) return dispatch(problem, choice, p, scope);

  const KdaFusedStep& f = args.fused;
  p.z = token_input(f.z, problem.io);
  if (choice.fusion == StepFusion::kOneLaunch) {
    p.x = token_input(f.x, problem.conv);
    p.conv_weight = f.conv_weight, p.conv_bias = f.conv_bias;
    p.windows = f.windows.base, p.window_pitch = f.windows.slot_pitch, p.window_slots = f.windows.slots;
    p.norm_weight = f.norm_weight, p.eps = f.eps;
    return dispatch(problem, choice, p, scope);
  }

  // Convolution, step, norm: fp32 in between, so nothing is rounded that the one-launch form does not round.
  const int64_t channels = 2LL * problem.H * problem.K + static_cast<int64_t>(problem.HV) * problem.V;
  float* y = static_cast<float*>(args.workspace);
  const size_t y_bytes = static_cast<size_t>(plan.problem().bounds.max_rows) * channels * 4;
  float* o = reinterpret_cast<float*>(static_cast<char*>(args.workspace) +
                                      (y_bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
  ConvStepParams conv;
  conv.x = f.x.data, conv.x_pitch = f.x.pitch, conv.y = y, conv.y_pitch = channels, conv.y_f32 = true;
  conv.channels = static_cast<int32_t>(channels);
  conv.weight = f.conv_weight, conv.bias = f.conv_bias;
  conv.rows = args.rows, conv.slot_in = args.slot_in, conv.slot_out = args.slot_out;
  conv.window_in = conv.window_out = f.windows.base;
  conv.in_pitch = conv.out_pitch = f.windows.slot_pitch;
  conv.in_slots = conv.out_slots = f.windows.slots;
  launch_conv_step(conv, problem.conv, scope.stream());

  const int64_t key_channels = static_cast<int64_t>(problem.H) * problem.K;
  p.q = {y, channels, DType::kF32};
  p.k = {y + key_channels, channels, DType::kF32};
  p.v = {y + 2 * key_channels, channels, DType::kF32};
  p.out = o, p.out_token_pitch = static_cast<int64_t>(problem.HV) * problem.V, p.out_type = DType::kF32;
  dispatch(problem, choice, p, scope);

  const int64_t heads = static_cast<int64_t>(args.rows) * problem.HV;
  gated_norm_kernel<<<static_cast<unsigned>((heads + 3) / 4), 128, 0, scope.stream()>>>(
      o, p.z, f.norm_weight, f.eps, args.out.data, args.out.pitch, problem.io, args.slot_in, heads, problem.HV,
      problem.V);
  check_launch("gated norm kernel launch");
}

}  // namespace kadence::ops::cuda::sm90
