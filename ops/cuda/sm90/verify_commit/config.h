// Launch shapes of verify and commit, and the layout of the scratch that one leaves for the other. Host facts only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kda.h"

namespace kadence::ops::cuda::sm90 {

// Scratch of one layer: a record per draft node n * D + d, in floats: k [H,K] after normalisation, decay [HV,K]
// (exp(g)), u [HV,V]. With them commit repeats the state's arithmetic and nothing else.
struct ScratchLayout {
  int64_t decay_at = 0, u_at = 0, record = 0;
  static ScratchLayout of(int64_t H, int64_t HV, int64_t K, int64_t V) {
    return {H * K, H * K + HV * K, H * K + HV * K + HV * V};
  }
};

// Drafts that the kernel without step's bits (gram.cuh) takes.
inline constexpr int kGramDrafts = 8;

struct VerifyChoice {
  int verify_iterations = 4;  // as StepChoice::iterations
  int verify_warps = 4;
  int commit_iterations = 4;  // four warps
  bool round_states = true;   // states of 16 bits: round after every node, as the step sequence does
  bool gram = false;          // by sums of other order, see gram.cuh
};

// CTAs of the commit kernel that share a multiprocessor.
constexpr int commit_ctas_per_sm(int iterations, int warps) {
  return iterations == 4 ? 16 / warps : iterations == 2 ? 5 : 6;
}

VerifyChoice choose_verify(const KdaProblem& problem, const KdaOptions& options, int sm_count);
int32_t encode(const VerifyChoice& choice);
VerifyChoice decode_verify_choice(int32_t variant);

// Shared memory of one CTA.
constexpr size_t verify_shared_bytes(int K, int rows_per_cta, int D) {
  return sizeof(float) * (static_cast<size_t>(D) * (3 * K + 2 * rows_per_cta) + 5 * static_cast<size_t>(D));
}

}  // namespace kadence::ops::cuda::sm90
