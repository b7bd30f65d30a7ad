// Every instance of the verify and commit kernels by template arguments; the definitions are in inst/*.cu.
#pragma once

#include <cuda_runtime.h>

namespace kadence::ops::cuda::sm90 {

struct VerifyParams;
struct CommitParams;

template <int K, class E, int ITS>
void launch_verify_instance(const VerifyParams& params, cudaStream_t stream);
template <int K, class E, int ITS>
void launch_commit_instance(const CommitParams& params, cudaStream_t stream);

}  // namespace kadence::ops::cuda::sm90
