// One instance of every kernel, compiled for architectures that CI has no other use of; linked into nothing.
#include "ops/cuda/conv1d/extend.cuh"
#include "ops/cuda/conv1d/step.cuh"
#include "ops/cuda/sm80/extend_chunked/kernel.cuh"
#include "ops/cuda/sm80/extend_chunked/rows.cuh"  // not a template: compiled by being here
#include "ops/cuda/sm80/extend_recurrent/kernel.cuh"
#include "ops/cuda/sm90/step_decode/kernel.cuh"
#include "ops/cuda/sm90/verify_commit/kernel.cuh"

namespace kadence::ops::cuda {

template __global__ void sm90::step_kernel<128, float, float, 2, 4, false>(const __grid_constant__ StepParams);
template __global__ void sm90::step_kernel<128, __nv_bfloat16, __nv_bfloat16, 4, 8, true>(
    const __grid_constant__ StepParams);
template __global__ void sm90::verify_kernel<128, float, 4, 8>(const __grid_constant__ VerifyParams);
template __global__ void sm90::commit_kernel<128, float, 4, 4>(const __grid_constant__ CommitParams, int);
template __global__ void sm80::window_kernel<__nv_bfloat16, false>(const __grid_constant__ WindowParams);
template __global__ void sm80::recurrent_kernel<128, 2>(const __grid_constant__ RecurrentParams);
template __global__ void conv_extend_kernel<__nv_bfloat16, 4>(const __grid_constant__ ConvExtendParams);
template __global__ void conv_step_kernel<__nv_bfloat16, 8>(const __grid_constant__ ConvStepParams);
template __global__ void conv_verify_kernel<__nv_bfloat16, 8>(const __grid_constant__ ConvVerifyParams);

}  // namespace kadence::ops::cuda
