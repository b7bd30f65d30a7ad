// Host side of chunked extend: what it can run, its workspace, its launches.
#pragma once

#include "ops/cuda/sm80/extend_chunked/config.h"

namespace kadence::ops::cuda::sm80 {

// Features that the chunked kernels lack for an extend problem; empty = they can run it.
std::vector<std::string> chunked_misses(const KdaProblem& problem, const device::DeviceInfo& device);
// From host facts alone. block_tokens: KdaOptions::extend_block_tokens.
Shape choose_shape(const KdaProblem& problem, int32_t block_tokens);
Workspace layout_workspace(const KdaProblem& problem, const Shape& shape);
void plan_chunked(KdaPlan& plan);
void run_chunked(const KdaPlan& plan, const KdaExtendArgs& args, device::Stream& stream);

// The arguments of all launches of a call, without a device: for run_chunked and for running the kernels on a CPU.
struct Call {
  RowsParams rows;
  WindowParams window;  // of no window yet
  int32_t windows = 0;  // launches 0 .. windows prepare and scan
  // The arguments of launch i.
  WindowParams launch(int32_t i) const;
};
Call make_call(const KdaPlan& plan, const KdaExtendArgs& args);

// inst/*.cu
using WindowKernel = void (*)(WindowParams);
WindowKernel bf16_kernel(bool decay_fp32);
WindowKernel f16_kernel(bool decay_fp32);

}  // namespace kadence::ops::cuda::sm80
